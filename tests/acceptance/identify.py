"""Identification of drawn robots, and what training with the ranges is worth.

    python -m tests.acceptance.identify hang [robots=20] [first=0]
    python -m tests.acceptance.identify walk [robots=20] [first=0]
    python -m tests.acceptance.identify train [robots=5] [first=0]
    python -m tests.acceptance.identify drift [robots=20] [first=0]

`hang` prints how far off kp, armature and dry friction (shares), and the delay [s], are after 60 s.
`walk` prints the root mean squares of errors after 20 s, alone and after hanging. Both tell how
many ranges hold the truth. `train` trains the quadruped with and without each robot's ranges, and
judges both policies on that robot. `drift` compares walks of 20 s with what recipe=robot draws. It
prints how many quantities that lie outside are told, and how many that lie inside are said to.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.config.compose import compose_plain
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.drive import drive
from gpusim_rl.gate.judge import succeeded
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.gate.scenarios import Plan
from gpusim_rl.tools.identify import drift, hang, main, simulated, walk
from tests.command_lines import succeed
from tests.worlds import ROOT

DEMO = ROOT / "gpusim_rl" / "demo" / "quadruped.onnx"
SCENARIOS = ("normal", "pushes", "commands", "sensors")
QUICK = ("log=none", "report=false", "episodes=16", "device=cpu", "sim.threads=1", "threads=1")


def hanging(seeds: range) -> None:
    """Robots that hang for 60 s."""
    policy, rows = Policy(DEMO), []
    for seed in seeds:
        truth = simulated.draw(seed)
        estimates = hang.identify(simulated.hanging_motion(policy, truth, 60.0, seed)).estimates
        off = {name: x.value - truth[name] for name, x in estimates.items() if name != "kd"}
        shares = {x: y if x == "delay" else y / truth[x] for x, y in off.items()}
        inside = {x: estimates[x].range[0] <= truth[x] <= estimates[x].range[1] for x in off}
        print(seed, {name: round(x, 5) for name, x in shares.items()}, inside, flush=True)
        rows.append([*np.abs([*shares.values()]), *inside.values()])
    print("largest", np.max(rows, 0)[:4], "in range", np.mean(rows, 0)[4:])


def walking(seeds: range) -> None:
    """Robots that walk for 20 s: alone, and after they hung for 20 s."""
    policy = Policy(DEMO)
    settings: Any = compose_plain("play", ["mode=gate"])["gate"]
    command = simulated.commands(policy, settings, 20.0)
    rows: dict[str, list[Any]] = {}
    for seed in seeds:
        truth = simulated.draw(seed)
        ends = {name: (x, x) for name, x in truth.items()}
        _, _, readings = walk.walks(policy, command, settings, ends, 1, seed)
        readings = {name: x[:, 0] for name, x in readings.items()}
        targets = readings.pop("targets")
        joints = hang.identify(simulated.hanging_motion(policy, truth, 20.0, seed)).estimates
        arrays = readings, targets, command
        for what, known in {"alone": {}, "after hanging": joints}.items():
            how = {"joints": known, "trained": {}, "robots": walk.ROBOTS, "seed": 0}
            estimates, _ = walk.identify(policy, *arrays, settings, **how)
            for name, x in estimates.items():
                inside = x.range[0] <= truth[name] <= x.range[1]
                rows.setdefault(f"{name} {what}", []).append([(x.value - truth[name]) ** 2, inside])
    for name, values in rows.items():
        square, inside = np.mean(values, 0)
        print(f"{name}: {np.sqrt(square):.4f} RMS, in range {inside:.2f}")


def training(seeds: range) -> None:
    """Policies with and without ranges, on the robots that these are of."""
    here = Path(tempfile.mkdtemp())
    words = ("task=quadruped", "seed=1", *QUICK)
    succeed("train.py", *words, "run_dir=plain", cwd=here, timeout=7200)
    for seed in seeds:
        name = f"robot{seed}"
        files = [str(here / f"{what}{seed}.mcap") for what in ("hang", "walk")]
        main.main(["simulate", str(DEMO), *files, "seconds=20", f"seed={seed}"])
        (here / "conf" / "ranges").mkdir(parents=True, exist_ok=True)
        main.main([*files, f"policy={DEMO}", f"out={here}/conf/ranges/{name}.yaml"])
        succeed("train.py", *words, f"ranges={name}", f"run_dir={name}", cwd=here, timeout=7200)
        for run in ("plain", name):
            success, falls = judged(Policy(here / run / "policy.onnx"), simulated.draw(seed))
            print(f"robot {seed}, {run}: success {success:.3f}, falls {falls:.3f}", flush=True)


def drifting(seeds: range) -> None:
    """Robots that walk for 20 s, each told by the same simulated ones."""
    policy = Policy(DEMO)
    settings: Any = compose_plain("play", ["mode=gate"])["gate"]
    command, walks = simulated.commands(policy, settings, 20.0), walk.walks
    shared = walks(policy, command, settings, walk.DRAWS, walk.ROBOTS, 0)
    names, robot = [*walk.QUANTITIES], make_robot(policy)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps(compose_plain("config", ["task=quadruped", "recipe=robot"])))
        trained = drift.trained_ranges(file, names, robot)
    told: dict[tuple[str, bool], list[bool]] = {}
    for seed in seeds:
        truth = simulated.draw(seed)
        ends = {name: (x, x) for name, x in truth.items()}
        walk.walks = walks
        _, _, readings = walk.walks(policy, command, settings, ends, 1, seed)
        walk.walks = lambda *_: shared
        readings = {name: x[:, 0] for name, x in readings.items()}
        arrays = readings, readings.pop("targets"), command
        how: dict[str, Any] = {"joints": {}, "trained": trained, "robots": walk.ROBOTS, "seed": 0}
        estimates, _ = walk.identify(policy, *arrays, settings, **how)
        for name, (low, high) in trained.items():
            one = drift.Comparison(name, estimates[name], (low, high))
            told.setdefault((name, low <= truth[name] <= high), []).append(one.drifted)
            print(seed, f"{truth[name]:.3f}", one.line() if one.drifted else f"{name} stays")
    for (name, inside), values in sorted(told.items()):
        where = "inside" if inside else "outside"
        print(f"{name} {where}: {sum(values)} of {len(values)} are said to have left")


def judged(policy: Policy, numbers: dict[str, float]) -> tuple[float, float]:
    """Shares of success and falls of 32 copies of a robot with these numbers, in each scenario."""
    robot = make_robot(policy)
    for name, fields in hang.FACTORS.items():
        for field, column in fields if name in numbers else ():
            values = getattr(robot.model, field)
            values = values if column is None else values[:, column]
            values *= numbers[name]
    settings: Any = compose_plain("play", ["mode=gate"])["gate"] | {"late": [numbers["delay"]] * 2}
    plans = [Plan(robot, name, 32, 10, settings, 1) for name in SCENARIOS]
    for plan in plans:
        plan.friction[:], plan.payload[:] = numbers["friction"], numbers["payload"]
    results = drive(plans)
    won = [succeeded(*pair) for pair in zip(plans, results, strict=True)]
    return float(np.mean(won)), float(np.mean([x.fell | x.fault for x in results]))


if __name__ == "__main__":
    runs = {"hang": hanging, "walk": walking, "train": training, "drift": drifting}
    if sys.argv[1:2] not in [[name] for name in runs]:
        print(__doc__)
        raise SystemExit(sys.argv[1:2] != ["--help"])
    run = runs[sys.argv[1]]
    values = dict(word.split("=") for word in sys.argv[2:])
    first = int(values.get("first", 0))
    run(range(first, first + int(values.get("robots", 5 if run is training else 20))))
