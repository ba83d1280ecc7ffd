"""Recorded episodes in a safetensors file: what a policy is cloned from, and what a style is.

demos = Demonstrations.read(Path("walk.safetensors"))
demos.record.obs, demos.record.action  # (N, no) and (N, nu), episode after episode
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from gpusim_rl.core.files import write_whole
from gpusim_rl.core.record import FLAG, NUMBER, Column, Columns, Record, vector, view_columns
from gpusim_rl.runs.checkpoints import read_tensors

FORMAT = "1"


def demonstration_columns(views: Columns, action_width: int) -> Columns:
    """The columns of a recorded step.

    - `obs` (no,), `critic` (nc,): what actor and critic observe before the action; and the further
      views of the task;
    - `action` (nu,): as the Env takes it, so within ± `task.clip`;
    - `end` (nc,): the critic's observation at the end of the step, before any restart;
    - `reward`, `terminated`, `truncated`: the last two end an episode.
    """
    columns = view_columns(dict(sorted(views.items()))) | dict(
        action=vector(action_width), end=views["critic"]
    )
    return columns | dict(reward=NUMBER, terminated=FLAG, truncated=FLAG)


@dataclass(frozen=True)
class Demonstrations:
    """Whole episodes, one after another.

    Args:
        record: (N, …) with `demonstration_columns`.
        description: name → text: `task`, `dt` [s], `terms` (the critic's first ones, with their
            widths), `model` (a digest of the robot) and `schema` (the columns).
    """

    record: Record
    description: dict[str, str]

    @property
    def ended(self) -> Tensor:
        """(N,) bool: the last step of each episode."""
        return self.record.terminated | self.record.truncated

    @property
    def episodes(self) -> int:
        return int(self.ended.sum())  # of a file, outside an iteration

    def first(self, episodes: int) -> "Demonstrations":
        """The first episodes alone; ValueError if there are fewer."""
        if episodes > self.episodes:
            raise ValueError(f"{episodes} episodes are asked for, and {self.episodes} are there")
        steps = int(self.ended.nonzero()[episodes - 1]) + 1
        return self.mapped(lambda rows: rows[:steps])

    def to(self, device: torch.device) -> "Demonstrations":
        """The same episodes on a device."""
        return self.mapped(lambda rows: rows.to(device))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Demonstrations":
        parts = {dtype: change(rows) for dtype, rows in self.record.parts.items()}
        return Demonstrations(Record(self.record.columns, parts), self.description)

    def check(self, description: dict[str, str], clip: float, where: str) -> None:
        """ValueError in one line unless they are of the worlds that `description` describes.

        clip: `task.clip` of these worlds.
        """
        # the columns are its own, whatever the file says
        of_file = self.description | {"schema": self.record.schema}
        for name, here in description.items():
            if (there := of_file.get(name)) != here:
                there = f"{there}"[:200]
                raise ValueError(f"{where} does not fit: its {name} is {there}, here it is {here}")
        if (self.record.action.abs() > clip).any():
            largest = self.record.action.abs().max()
            raise ValueError(f"{where}: an action is {largest:.3g}, and task.clip is {clip:g}")

    def write(self, path: Path) -> None:
        """Write them to a file; OSError if that cannot be written."""
        columns = {name: getattr(self.record, name) for name in self.record.columns}
        tensors = {name: x.cpu().contiguous() for name, x in columns.items()}
        metadata = {"gpusim_rl": f"demonstrations {FORMAT}", **self.description}
        write_whole(path, to_bytes(tensors, metadata=metadata))

    @classmethod
    def read(cls, path: Path) -> "Demonstrations":
        """Those of a file, on the CPU.

        FileNotFoundError if there is none, ValueError if it is damaged or holds no demonstrations.
        """
        if not path.is_file():
            raise FileNotFoundError(f"no demonstrations {path}")
        tensors, description = read_tensors(path, "no whole safetensors file")
        if description.pop("gpusim_rl", "") != f"demonstrations {FORMAT}":
            raise ValueError(f"{path} holds no demonstrations: play.py mode=record writes them")
        return cls(packed_record(tensors, path), description)

    def steps(self, columns: Columns, rows: int, worlds: Tensor) -> Record:
        """Steps (rows, B, …) with these columns, as if B worlds had done them.

        Each world gets successive steps, from another one on. Its last row ends an episode, since
        no row that the worlds write later follows from it. ValueError if no demonstration has one
        of the columns.

        worlds: (B,) int64 global ids.
        """
        # nobody knows what an actor would have remembered: it begins blank
        named = [x for x in columns if x != "fault" and not x.startswith("memory/")]
        if missing := [x for x in named if x not in self.record.columns]:
            raise ValueError(f"demonstrations have no column {missing[0]!r}")
        steps = Record.zeros(columns, rows, len(worlds), device=worlds.device)
        order = torch.arange(rows, device=worlds.device)[:, None] + worlds * rows
        taken = order % len(self.record)  # (rows, B)
        for name in named:
            steps.column(name).copy_(self.record.column(name)[taken])
        steps.column("truncated")[-1] = 1.0 - steps.column("terminated")[-1]
        return steps


def packed_record(tensors: dict[str, Tensor], path: Path) -> Record:
    """The columns (N, …) of a file as a record.

    ValueError if they are no demonstrations, or hold a number that is not finite.
    """
    names = ("obs", "critic", "action")
    no, nc, nu = (tensors[name].shape[-1] if name in tensors else 0 for name in names)
    views = dict(actor=vector(no), critic=vector(nc))
    further = sorted(tensors.keys() - demonstration_columns(views, nu).keys())
    views |= {name: Column(tuple(tensors[name].shape[1:]), tensors[name].dtype) for name in further}
    columns = demonstration_columns(views, nu)
    size = len(tensors["obs"]) if "obs" in tensors else 0
    for name, column in columns.items():
        x = tensors.get(name)
        if x is None or x.shape != (size, *column.shape) or x.dtype != column.dtype:
            shape = None if x is None else [*x.shape]
            raise ValueError(f"{path} is damaged: its column {name!r} is {shape}")
        if not x.isfinite().all():
            raise ValueError(f"{path}: its column {name!r} has a number that is not finite")
    if not size or not (tensors["terminated"] | tensors["truncated"])[-1]:
        raise ValueError(f"{path} has no whole episode at its end")
    record = Record.zeros(columns, size, device=torch.device("cpu"))
    for name in columns:
        record.column(name).copy_(tensors[name])
    return record
