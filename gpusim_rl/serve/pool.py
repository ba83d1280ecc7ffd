"""Sessions of robots that one exported file drives in batches, and the swap of that file.

Nothing here knows of a network. A session of one robot is a row of each array of a `Pool`; one of
many robots has as many rows.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpusim_rl.deploy.exported import check_operators
from gpusim_rl.deploy.onboard.verdict import digest
from gpusim_rl.deploy.runtime import Array, Policy, Readings, as_numbers
from gpusim_rl.serve.registry import SHORT, interface

LARGEST_MEMORY_BYTES = 1 << 30  # bytes of the memory of all sessions
Rows = int | Array  # of a session: one, or (n,) numbers of the rows of n robots


class Version:
    """An exported file that is ready to run; ValueError or FileNotFoundError if it is not.

    Attributes:
        digest: SHA-256 of the controller, with or without a verdict; name: its first digits.
        inputs: name of each reading, of the command and of each view → its shape and type.
        interface: what a client relies on, by name.
        network: names of the memory that these weights alone understand, such as a GRU's state.
    """

    def __init__(self, path: Path):
        if path.is_file():
            check_operators(path)
        self.policy = policy = Policy(path)
        self.digest = digest(policy.data)
        self.name, description = self.digest[:SHORT], policy.description
        command = policy.command or {}
        widths = policy.needs | ({"command": len(command["names"])} if command else {})
        self.inputs = {name: ((n,), "float32") for name, n in widths.items()} | policy.views
        self.interface = interface(policy)
        self.network = {x["name"] for x in description["memory"] if x.get("of") == "actor"}

    def metadata(self) -> dict[str, object]:
        """What a client has to know: the first message of a session."""
        policy, description = self.policy, self.policy.description
        return {
            "version": self.name,
            "task": description["task"],
            "robot": description["robot"],
            "dt": policy.dt,
            "readings": policy.needs,
            "reads": policy.reads,
            "views": policy.views,
            "command": policy.command,
            "actions": policy.outputs,
        }


class Pool:
    """Up to `size` robots, if memory allows, what each remembers, and what drives them."""

    def __init__(self, version: Version, size: int):
        one = sum(x.nbytes for x in version.policy.start.values())
        one += sum(np.zeros(shape, kind).nbytes for shape, kind in version.inputs.values())
        if one * size > LARGEST_MEMORY_BYTES:
            most = f"of at most {LARGEST_MEMORY_BYTES} together"
            raise ValueError(f"serve.sessions={size}: each remembers {one} bytes, {most}")
        self.version, self.size = version, size
        self.free = [*range(size)]
        self.begins = np.ones(size, bool)
        inputs = version.inputs.items()
        self.readings = {name: np.zeros((size, *shape), kind) for name, (shape, kind) in inputs}
        self.memory = {k: x.repeat(size, 0) for k, x in version.policy.start.items()}

    @property
    def sessions(self) -> int:
        """How many robots have one."""
        return self.size - len(self.free)

    def open(self, robots: int | None = None) -> Rows:
        """The row of a new session, or the rows of one of many robots; IndexError without room."""
        taken = [self.free.pop() for _ in range(robots or 1)]
        rows = taken[0] if robots is None else np.array(taken)
        self.restart(rows)
        return rows

    def close(self, rows: Rows) -> None:
        """End a session."""
        self.free += np.atleast_1d(rows).tolist()

    def restart(self, rows: Rows) -> None:
        """Forget the past of a session, or of some of its robots: an episode begins."""
        self.begins[rows] = True
        for name, start in self.version.policy.start.items():
            self.memory[name][rows] = start[0]

    def write(self, rows: Rows, values: Readings) -> None:
        """Take the readings of a session, views and a command, as `Policy.act` does; or ValueError.

        Those of many robots are arrays (n, …); a command (width,) is that of each, and
        `restart` may be (n,) truth values.
        """
        policy = self.version.policy
        for name, array in self.readings.items():
            x, shape = values.get(name), np.shape(rows) + array.shape[1:]
            if type(x) is np.ndarray and x.dtype == array.dtype and x.shape == shape:
                array[rows] = x  # the usual case, which needs no second look
            elif not isinstance(rows, int):
                array[rows] = of_each(name, x, shape, array.dtype)
            elif name == "command":
                array[rows] = policy.command_rows(x)[0]
            else:
                read = policy.view if name in policy.views else policy.reading
                array[rows] = read(name, values)[0]
        restart = values.get("restart")
        if restart is True:
            self.restart(rows)
        elif isinstance(restart, np.ndarray | list) and not isinstance(rows, int):
            self.restart(rows[of_each("restart", restart, rows.shape) != 0])

    def step(self, at: Array) -> tuple[Array, Array]:
        """(n, nu) targets and (n,) faults of rows (n,) of robots; ValueError as of `Policy.run`."""
        readings = {name: x[at] for name, x in self.readings.items()}
        memory = {name: x[at] for name, x in self.memory.items()}
        begins = self.begins[at]
        targets, fault, after = self.version.policy.run(readings, begins, memory)
        for name, x in after.items():
            self.memory[name][at] = x
        self.begins[at] = begins & fault
        return targets, fault

    def carried_memory(self, version: Version) -> list[str]:
        """Names of the memory that a new version takes over: the task's, where both have it alike.

        ValueError, which names what differs, unless the new version has the interface of the old.
        """
        old, new = self.version, version
        differing = [key for key, x in old.interface.items() if new.interface[key] != x]
        if differing:
            raise ValueError(f"version {new.name} has another interface: {', '.join(differing)}")
        before, after = (
            {name: (x.shape, x.dtype) for name, x in version.policy.start.items()}
            for version in (old, new)
        )
        alike = dict(before.items() & after.items())
        return [name for name in after if name in alike and name not in old.network | new.network]

    # Why: docs/decisions/registry.md
    def swap(self, version: Version) -> None:
        """Let another version drive from the next step on; ValueError if that cannot be."""
        carried = self.carried_memory(version)
        memory = Pool(version, self.size).memory
        self.memory = memory | {name: self.memory[name] for name in carried}
        self.version = version


def of_each(name: str, x: Any, shape: tuple[int, ...], kind: DTypeLike = np.float32) -> Array:
    """A reading of many robots in its shape (n, …); ValueError if it has another one."""
    x = as_numbers(x, kind)
    if x.shape != shape and not (name == "command" and x.shape == shape[1:]):
        raise ValueError(f"{name} has shape {x.shape}, expected {shape}: a row for each robot")
    return np.broadcast_to(x, shape)
