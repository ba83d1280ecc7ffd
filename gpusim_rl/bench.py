"""Physics alone, Sim, Env, rollout and training in steps/s: `python -m gpusim_rl.bench task=quadruped out=bench.json`.

Keys are train.py's, and repeats= seconds= warmup= out= (conf/bench.yaml). All levels step the same recorded states the
same number of times, interleaved, `repeats` times, so that a ratio is one of neighbours in time. `bare` is the engine as
it comes: MuJoCo C's `Batch` on all cores or a captured `mujoco_warp.step`, the training model, no sensors copied, nothing
randomised, replaying the recorded controls.
"""

import copy
import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from mujoco.batch import Batch, SimulationError
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpusim_rl import config
from gpusim_rl.assemble import make_ppo
from gpusim_rl.ppo import PPO, torch_threads
from gpusim_rl.run import versions, write_whole
from gpusim_rl.sim.warp import STATE, Warp
from gpusim_rl.task import Task

LEVELS = ("bare", "sim", "env", "rollout", "training")
RATIOS = tuple((level, "bare") for level in LEVELS[1:]) + tuple(zip(LEVELS[2:], LEVELS[1:-1], strict=True))

SHARES = ("physics", "policy", "update")

State = dict[str, Tensor]  # PPO's, all of it
Load = Callable[[State], None]  # puts an engine there
Play = Callable[[Tensor], None]  # holds each of the controls (T, B, nu) for a control step


class Tape(NamedTuple):
    """K rollouts of T steps of a policy with its training noise. Every level begins each rollout as it began here: the
    bare engine restarts nobody and its model is not randomised, but so its worlds stay like those on the tape."""

    starts: list[State]
    actions: Tensor  # (K, T, B, nu)
    controls: Tensor  # (K, T, B, nu) in the engine's precision


@torch.no_grad()
def record(ppo: PPO, rollouts: int) -> Tape:
    """K rollouts as Rollout.collect makes them. A world that ends in a step shows its restart's controls there."""
    env, policy, starts, actions, controls = ppo.env, ppo.policy, [], [], []
    for _ in range(rollouts):
        starts.append(ppo.state())
        for _ in range(len(ppo.rollout.reward)):
            mean = policy.actor(env.views.obs)
            actions.append(mean + policy.std * env.noise.normal("policy/action", mean.shape[1]))
            env.step(actions[-1])
            controls.append(env.sim.ctrl.clone())
    return Tape(starts, *(torch.stack(x).unflatten(0, (rollouts, -1)) for x in (actions, controls)))


def bare_native(task: Task, num_envs: int) -> tuple[Load, Play]:
    """A plain Batch on all cores; derived fields are computed by its steps alone."""
    batch = Batch(task.mjm, num_envs)
    ctrl = batch.bind("ctrl")

    def load(state: State) -> None:
        batch.state[:] = state["sim/rows"].numpy()

    def play(controls: Tensor) -> None:
        for row in controls.numpy():
            ctrl[:] = row
            with suppress(SimulationError):  # names the worlds that failed; the others went on
                batch.step(nstep=task.substeps)

    return load, play


def bare_warp(task: Task, sim: Warp) -> tuple[Load, Play]:
    """mujoco_warp.step in a graph, a control step each, over its own model and Data with our Sim's capacities."""
    device = wp.device_from_torch(sim.qpos.device)
    stream = torch.cuda.Stream(sim.qpos.device) if device.is_cuda else None  # the default stream cannot be captured
    ours = wp.stream_from_torch(stream) if stream else None
    mjm = copy.copy(task.mjm)
    mjm.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # refused, and Warp never resets by itself
    with wp.ScopedDevice(device), torch.cuda.stream(stream), wp.ScopedStream(ours):
        m = mjw.put_model(mjm)
        d = mjw.make_data(mjm, len(sim.qpos), naconmax=sim._d.naconmax, njmax=sim._d.njmax)
        m.opt.graph_conditional = device.is_cuda and wp.is_conditional_graph_supported()
        m.opt.warn_overflow = 0
        mjw.step(m, d)  # builds the kernels
        with wp.ScopedCapture(device) as capture:
            for _ in range(task.substeps):
                mjw.step(m, d)
        live = {name: wp.to_torch(getattr(d, name)) for name in STATE}

    def load(state: State) -> None:
        for name, value in live.items():
            value.copy_(state[f"sim/{name}"])

    def play(controls: Tensor) -> None:
        with torch.cuda.stream(stream), wp.ScopedStream(ours):
            for row in controls:
                live["ctrl"].copy_(row)
                wp.capture_launch(capture.graph)  # type: ignore[arg-type]

    return load, play


def timed(device: Any, act: Callable[[], object]) -> float:
    """Seconds of act, all it queued included."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    wait(device)
    start = perf_counter()
    act()
    wait(device)
    return perf_counter() - start


def measure(ppo: PPO, tape: Tape, bare: tuple[Load, Play]) -> dict[str, float]:
    """Seconds of each level for the tape's steps, and the shares of a training iteration: rollout by rollout, level by level,
    that a disturbance meets all of them."""
    env, seconds, parts = ppo.env, dict.fromkeys([*LEVELS], 0.0), dict.fromkeys(SHARES, 0.0)
    load, play = bare

    def steps(controls: Tensor) -> None:
        for row in controls:
            env.sim.ctrl.copy_(row)
            env.sim.step(env.task.substeps)

    for start, actions, controls in zip(*tape, strict=True):
        acts = {
            "bare": partial(play, controls),
            "sim": partial(steps, controls),
            "env": lambda actions=actions: [env.step(action) for action in actions],
            "rollout": partial(ppo.rollout.collect, env, ppo.policy),
        }
        with torch_threads(1):  # as PPO collects
            for level, act in acts.items():
                (load if level == "bare" else partial(ppo.load, where="the tape"))(start)
                seconds[level] += timed(env.device, act)
        ppo.load(start, "the tape")
        ppo.metrics()  # clears the clocks
        seconds["training"] += timed(env.device, ppo.iteration)
        metrics = ppo.metrics()
        parts = {name: parts[name] + metrics[f"share/{name}"] / len(tape.starts) for name in SHARES}
    if env.device.type != "cpu":  # a GPU works on when the host's clock has stopped
        physics, rollout = (seconds[level] / seconds["training"] for level in ("sim", "rollout"))
        parts = dict(zip(SHARES, (physics, rollout - physics, 1 - rollout), strict=True))
    return seconds | parts


def spread(values: list[float]) -> dict[str, Any]:
    """Median, extremes and all."""
    return {"median": median(values), "min": min(values), "max": max(values), "all": values}


def processor() -> str:
    """Name of the CPU."""
    info = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def bench(ppo: PPO, cfg: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every level cfg["repeats"] times; all that `out` holds."""
    env, load = ppo.env, os.getloadavg()
    times = [timed(env.device, ppo.iteration) for _ in range(cfg["warmup"])]
    tape = record(ppo, math.ceil(cfg["seconds"] / min(times)))
    bare = bare_warp(env.task, env.sim) if isinstance(env.sim, Warp) else bare_native(env.task, env.num_envs)
    steps = tape.actions[..., 0].numel()
    rounds: list[dict[str, float]] = []
    for i in range(cfg["repeats"] + 1):
        seconds = measure(ppo, tape, bare)
        rounds += [seconds] if i else []  # the first is a warm-up
        speeds = "  ".join(f"{level} {steps / seconds[level]:,.0f}" for level in LEVELS)
        say(f"{f'repetition {i}' if i else 'warm-up'}: {speeds} steps/s")
    rates = {level: [steps / seconds[level] for seconds in rounds] for level in LEVELS}
    ratios = {f"{a}/{b}": [x / y for x, y in zip(rates[a], rates[b], strict=True)] for a, b in RATIOS}
    return {
        "command": " ".join(["python -m gpusim_rl.bench", *sys.argv[1:]]),
        "task": cfg["task"]["name"],
        "sim": type(env.sim).__name__.lower(),
        "device": str(env.device),
        **{key: cfg[key] for key in ("num_envs", "num_steps", "repeats", "warmup")},
        "substeps": env.task.substeps,
        "steps": steps,
        "steps_per_s": {level: spread(x) for level, x in rates.items()},
        "physics_steps_per_s": {level: spread([env.task.substeps * v for v in x]) for level, x in rates.items()},
        "ratios": {name: spread(x) for name, x in ratios.items()},
        "shares": {name: median(one[name] for one in rounds) for name in SHARES},
        "versions": versions() | {"cpu": processor(), "cores": os.cpu_count()},
        "load": {"before": load, "after": os.getloadavg()},
    }


def show(found: dict[str, Any], console: Console) -> None:
    """The table and what it was measured on."""
    table = Table(
        "", "steps/s", "lowest", "highest", "physics steps/s", "of bare", "of the one above", box=None, pad_edge=False
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for i, level in enumerate(LEVELS):
        rate, physics = found["steps_per_s"][level], found["physics_steps_per_s"][level]["median"]
        above = [found["ratios"][f"{level}/{other}"]["median"] for other in ("bare", LEVELS[i - 1])] if i else []
        speeds = [f"{value:,.0f}" for value in (rate["median"], rate["min"], rate["max"], physics)]
        table.add_row(level, *speeds, *(f"{ratio:.2f}" for ratio in above))
    made, load = found["versions"], found["load"]
    console.print(table)
    for line in (
        f"{found['task']}, {found['num_envs']} worlds, sim={found['sim']}, device={found['device']}; medians of "
        f"{found['repeats']} repetitions of {found['steps']:,} steps of {found['substeps']} timesteps",
        "a training iteration: " + ", ".join(f"{part} {share:.0%}" for part, share in found["shares"].items()),
        f"{made['cpu']}, {made['cores']} cores, GPU {made['gpu']}; load {load['before'][0]:.1f} to {load['after'][0]:.1f}",
        ", ".join(f"{key} {made[key]}" for key in ("python", "torch", "mujoco", "mujoco-warp", "warp-lang")),
        f"commit {made['commit']}",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def settle(cfg: dict[str, Any]) -> None:
    """Check what no constructor sees; ValueError names the first wrong value."""
    config.settle(cfg)
    config.positive(cfg, "repeats", "warmup")
    if not 0 < cfg["seconds"] < math.inf:
        raise ValueError(f"seconds={cfg['seconds']}: expected a number above 0")
    if cfg["out"] is not None and (not isinstance(cfg["out"], str) or not Path(cfg["out"]).parent.is_dir()):
        raise ValueError(f"out={cfg['out']!r}: expected a file to write, in a directory that exists")


def main(words: list[str]) -> None:
    """Compose, measure, print and write."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return
    cfg = config.compose_plain("bench", words)
    console = Console() if sys.stdout.isatty() else Console(width=100)
    with config.one_line():
        settle(cfg)
        ppo = make_ppo(cfg)
    found = bench(ppo, cfg, lambda line: console.print(line, highlight=False, soft_wrap=True))
    show(found, console)
    if cfg["out"]:
        write_whole(Path(cfg["out"]), (json.dumps(found, indent=1) + "\n").encode())
        console.print(f"wrote {cfg['out']}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
