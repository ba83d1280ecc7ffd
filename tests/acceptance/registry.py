"""Acceptance: the registry of policies keeps whole what several processes, or a kill, leave of it.

    python -m tests.acceptance.registry [kills=200] [policies=200] [processes=8] [versions=10000]
                                        [judged=true]

A process promotes and rolls back without end, and is killed with SIGKILL at a drawn moment. Opened
again, the database and the files of the aliases must agree. Several processes add policies, each of
which must become one version. A registry with many versions is opened. With judged=true the gate
judges the demo, which takes some minutes, and a failed, an edited and a foreign file are refused.
Exits with 1 unless all is so.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx

from gpusim_rl import registry
from gpusim_rl.commands.play_mode import DEMO
from gpusim_rl.deploy.onboard.verdict import read_verdict
from gpusim_rl.deploy.to_onnx import sealed
from gpusim_rl.gate.variants import without_checksums
from gpusim_rl.serve.registry import RELEASED, Registry

NAME = "quadruped"
PASS = {"verdict": "pass", "success": 0.99, "changed": {}, "complaints": []}
ADDER = """
import sys
from gpusim_rl import registry
for file in sys.argv[2:]:
    registry.add(sys.argv[1], file)
"""
FAST = ("gate.robots=16", "gate.seconds=10", "gate.endurance.robots=1")
FAST += ("gate.endurance.minutes=0.2", "gate.limits.falls=0.4", "gate.limits.told=0.7")
FAST += ("gate.limits.endurance_falls=2000.0",)


def demo_with(folder: Path, number: int, **further: Any) -> Path:
    """The demo with another lineage and other entries of its description: another controller."""
    model, path = onnx.load(DEMO), folder / f"policy-{number}.onnx"
    notes = {x.key: x.value for x in without_checksums(model).metadata_props}
    about = json.loads(notes["gpusim_rl"]) | further
    about["lineage"] |= {"iteration": number}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, notes | {"gpusim_rl": json.dumps(about)})
    path.write_bytes(sealed(model))
    return path


def forked(work: Callable[[], None]) -> int:
    """Start a function in a process of its own; its number."""
    if pid := os.fork():
        return pid
    try:
        work()
    finally:
        os._exit(0)


def disagreements(store: Registry) -> list[str]:
    """The files of aliases that do not hold what the database says."""
    return [name for name, text in store.alias_files().items() if text != store.alias_text(name)]


def kills(folder: Path, count: int, longest: float = 0.8) -> bool:
    """Kill a process that releases and rolls back, each time after at most so many seconds."""
    files = [demo_with(folder, number) for number in range(3)]
    for file in files:
        registry.add(folder / "killed", file)
    store = Registry(folder / "killed")
    for row in store.list():
        store.record_judgement(row["digest"], PASS, "")

    def work() -> None:
        mine, rng = Registry(folder / "killed"), random.Random(os.getpid())
        while True:
            for alias in (RELEASED, "candidate"):
                try:
                    if rng.random() < 0.5:
                        mine.promote(NAME, rng.randint(1, 3), alias)
                    else:
                        mine.rollback(NAME, alias)
                except ValueError:  # it is there already, or was the first
                    pass

    rng, behind, wrong, events = random.Random(0), 0, 0, []
    for number in range(count):
        pid = forked(work)
        time.sleep(rng.uniform(0.0, longest))
        while number == count - 1 and not store.history(NAME):  # on a busy machine
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        behind += bool(pending(folder / "killed"))
        store = Registry(folder / "killed")
        whole = [json.loads(store.alias_text(name)) for name in store.alias_files()]
        wrong += bool(disagreements(store)) or not all(
            store.is_whole(x["sha256"]) and x["version"] == store.trail(NAME, x["alias"])[-1]
            for x in whole
        )
        events.append(len(store.history(NAME)))
    print(f"{count} kills, {events[-1]} events: after {behind} a file was behind the database")
    print(f"opened again, database and files disagree after {wrong} of {count} kills")
    return wrong == 0 and events[-1] > 0


def pending(folder: Path) -> list[str]:
    """The disagreements that a killed process left, without opening the registry as users do."""
    import sqlite3

    peek = object.__new__(Registry)
    peek.folder, peek.db = folder, sqlite3.connect(folder / "registry.db", timeout=60)
    peek.db.row_factory = sqlite3.Row
    names = disagreements(peek)
    peek.db.close()
    return names


def adders(folder: Path, count: int, processes: int) -> bool:
    """Add policies from several processes at once, and one of each twice."""
    files = [demo_with(folder, number) for number in range(count)]

    lines = [
        [sys.executable, "-c", ADDER, str(folder / "many"), *files[n::processes], files[n]]
        for n in range(processes)
    ]
    for process in [subprocess.Popen(line) for line in lines]:
        if process.wait():
            return False
    rows = registry.list(folder / "many")
    good = [x["version"] for x in rows] == [*range(1, count + 1)]
    good &= len({x["digest"] for x in rows}) == count
    good &= all(Registry(folder / "many").is_whole(x["digest"]) for x in rows)
    print(f"{processes} processes added {count} policies: {len(rows)} versions, whole: {good}")
    return good


def opening(folder: Path, count: int) -> bool:
    """Open a registry with many versions and aliases."""
    store = Registry(folder / "large", create=True)
    with store.transaction():
        for number in range(1, count + 1):
            about = dict(digest=f"{number:064}", bytes=1, interface="", lineage="{}", note="")
            store.insert("version", name=NAME, version=number, **about)
            about = dict(action="promote", why="", evidence="{}")
            store.insert("event", name=NAME, alias="candidate", version=number, **about)
    store.write_aliases()
    times = []
    for _ in range(9):
        begun, cpu = time.perf_counter(), time.process_time()
        current = Registry(folder / "large").version(NAME, "candidate")["version"]
        times.append((time.perf_counter() - begun, time.process_time() - cpu))
        assert current == count
    wall, cpu = sorted(times)[len(times) // 2]
    print(f"a registry with {count} versions opens in {wall:.3f} s, {cpu:.3f} s of CPU")
    return cpu <= 0.3  # the wall time of a busy machine is its neighbours'


def refused(what: str, work: Callable[[], Any]) -> bool:
    """Whether something is refused in one line, which is printed."""
    try:
        work()
    except ValueError as error:
        print(f"{what}: {error}")
        return "\n" not in str(error)
    print(f"{what}: not refused")
    return False


def releases(folder: Path) -> bool:
    """Three releases, two roll-backs, and files that may not be released."""
    store = folder / "released"
    for number in range(3):
        registry.add(store, demo_with(folder, number))
    for number in (1, 2, 3):
        why = f"release {number}"
        registry.promote(store, NAME, number, RELEASED, why=why, words=FAST)
    verdict = read_verdict(Registry(store).path(NAME, RELEASED).read_bytes()) or {}
    steps = [registry.rollback(store, NAME, RELEASED)["version"] for _ in range(2)]
    good = verdict["verdict"] == "pass" and steps == [2, 1]
    good &= refused("a third roll-back", lambda: registry.rollback(store, NAME, RELEASED))
    for row in registry.history(store, NAME):
        print({key: row[key] for key in ("action", "version", "by", "at", "why")})

    def release(number: int, *words: str) -> None:
        registry.promote(store, NAME, number, RELEASED, words=(*FAST, *words))

    good &= refused("failed", lambda: release(2, "gate.limits.falls=0.0"))
    last = registry.add(store, demo_with(folder, 4))["version"]
    good &= refused("unjudged", lambda: Registry(store).promote(NAME, last, RELEASED))
    registry.add(store, demo_with(folder, 5, robot="another"))
    good &= refused("foreign", lambda: release(last + 1))
    path = demo_with(folder, 6)
    path.write_bytes(path.read_bytes().replace(b"trunk", b"trUnk", 1))
    good &= refused("edited", lambda: registry.add(store, path))
    path.write_bytes(b"another program's")
    return good & refused("of another program", lambda: registry.add(store, path))


def main(words: list[str]) -> None:
    """All of them."""
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        raise SystemExit
    keys = dict(kills=200, policies=200, processes=8, versions=10_000)
    given = dict(word.split("=", 1) for word in words)
    n = SimpleNamespace(**{key: int(given.get(key, x)) for key, x in keys.items()})
    folder = Path(tempfile.mkdtemp(prefix="accept-registry-"))
    results = [kills(folder, n.kills), adders(folder, n.policies, n.processes)]
    results.append(opening(folder, n.versions))
    if given.get("judged", "true") == "true":
        results.append(releases(folder))
    shutil.rmtree(folder)
    raise SystemExit(not all(results))


if __name__ == "__main__":
    main(sys.argv[1:])
