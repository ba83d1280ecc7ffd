"""Where the time of training goes: `python -m gpusim_rl.bench task=quadruped out=bench.json`.

Keys are train.py's, and repeats= seconds= warmup= out= (conf/bench.yaml). All levels step the same recorded states the
same number of times, interleaved, `repeats` times, so that a ratio is one of neighbours in time. `bare` is the engine as
it comes: MuJoCo C's `Batch` on all cores or a captured `mujoco_warp.step`, the training model, no sensors copied, nothing
randomised, replaying the recorded controls. The roofline of training is training/bare. `update` is PPO's, `plain` the same
written plainly (gpusim_rl/plain.py).
"""

import json
import math
import os
import platform
import re
import resource
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import mujoco_warp as mjw
import torch
import warp as wp
from mujoco.batch import Batch, SimulationError
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from gpusim_rl import config
from gpusim_rl.assemble import make_ppo
from gpusim_rl.graph import WARM, capture
from gpusim_rl.plain import Plain
from gpusim_rl.ppo import PPO, torch_threads
from gpusim_rl.run import versions, write_whole
from gpusim_rl.sim.warp import STATE, Warp, accepted
from gpusim_rl.task import Task

LEVELS = ("bare", "sim", "env", "rollout", "training")
RATIOS = tuple((level, "bare") for level in LEVELS[1:]) + tuple(zip(LEVELS[2:], LEVELS[1:-1], strict=True))
PARTS = ("act", "physics", "settle", "returns", "minibatches", "normalisers")  # of an iteration, in PPO's words

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
    """K rollouts as PPO collects them."""
    env, rollout, starts, actions, controls = ppo.env, ppo.rollout, [], [], []
    for _ in range(rollouts):
        starts.append(ppo.state())
        for _ in range(rollout.num_steps):
            rollout.act()
            controls.append(env.sim.ctrl.clone())
            env.advance()
            rollout.settle()
        actions.append(rollout.action.clone())
    return Tape(starts, torch.stack(actions), torch.stack(controls).unflatten(0, (rollouts, -1)))


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
    device = sim.qpos.device
    mjm = accepted(task.mjm)
    with wp.ScopedDevice(wp.device_from_torch(device)):
        m = mjw.put_model(mjm)
        d = mjw.make_data(mjm, len(sim.qpos), naconmax=sim._d.naconmax, njmax=sim._d.njmax)
    m.opt.graph_conditional = sim._m.opt.graph_conditional
    m.opt.warn_overflow = 0
    live = {name: wp.to_torch(getattr(d, name)) for name in STATE}

    def advance() -> None:
        with wp.ScopedDevice(wp.device_from_torch(device)):
            for _ in range(task.substeps):
                mjw.step(m, d)

    graph = capture(advance, device, kernels=True)

    def load(state: State) -> None:
        for name, value in live.items():
            value.copy_(state[f"sim/{name}"])

    def play(controls: Tensor) -> None:
        for row in controls:
            live["ctrl"].copy_(row)
            graph()

    return load, play


def timed(device: Any, act: Callable[[], object]) -> tuple[float, float]:
    """Seconds of act, all it queued included, and those after which the host was free again."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    wait(device)
    start = perf_counter()
    act()
    host = perf_counter() - start
    wait(device)
    return perf_counter() - start, host


class Levels:
    """What is measured: each level plays one of the tape's rollouts."""

    def __init__(self, ppo: PPO, bare: tuple[Load, Play]):
        self.ppo, self.bare, self.plain = ppo, bare, Plain(ppo)
        env = ppo.env
        self.action = torch.zeros_like(env.action)
        on = partial(capture, device=env.device, on=ppo.graph != "off")
        self.act, self.advance, self.settle = on(lambda: env.act(self.action)), on(env.advance), on(lambda: void(env.settle()))

    def sim(self, controls: Tensor) -> None:
        """Physics of our Sim."""
        for row in controls:
            self.ppo.env.sim.ctrl.copy_(row)
            self.advance()

    def env(self, actions: Tensor) -> None:
        """Whole control steps of our Env."""
        for row in actions:
            self.action.copy_(row)
            self.act()
            self.advance()
            self.settle()

    def measure(self, tape: Tape) -> dict[str, float]:
        """Seconds of each level for the tape's steps, of the parts of an iteration, of a plain update, and of the host.

        Rollout by rollout, level by level, that a disturbance meets all of them.
        """
        ppo, (load, play), spent = self.ppo, self.bare, defaultdict[str, float](float)
        device, put = ppo.env.device, partial(ppo.load, where="the tape")
        for start, actions, controls in zip(*tape, strict=True):
            acts = {"bare": partial(play, controls), "sim": partial(self.sim, controls), "env": partial(self.env, actions)}
            with torch_threads(1):  # as PPO collects
                for level, act in acts.items():
                    (load if level == "bare" else put)(start)
                    spent[level] += timed(device, act)[0]
            put(start)
            spent["rollout"] += timed(device, ppo.collect)[0]
            with torch_threads(max(1, torch.get_num_threads() // 2)):  # as PPO updates
                spent["plain"] += timed(device, self.plain.update)[0]
            put(start)
            ppo.phases.take()
            whole, host = timed(device, ppo.iteration)
            for name, seconds in ({"training": whole, "host": host} | ppo.phases.take()()).items():
                spent[name] += seconds
        spent["update"] = spent["returns"] + spent["minibatches"] + spent["normalisers"]
        return dict(spent)


def void(_: object) -> None:
    """What a captured function returns."""


class Operators(TorchDispatchMode):
    """Counts what reaches torch's kernels, backward included."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def launches(ppo: PPO) -> dict[str, int]:
    """What one iteration asks of the machine: kernels and graph launches on CUDA, torch operators on the CPU."""
    if ppo.env.device.type == "cpu":
        with Operators() as seen:
            ppo.iteration()
        return {"operators": seen.count}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        ppo.iteration()
        torch.cuda.synchronize()  # the one that is not counted below
    events = trace.events() or []
    names = [event.name for event in events]
    return {
        "kernels": sum(str(event.device_type).endswith("CUDA") for event in events),
        "kernel_launches": sum("LaunchKernel" in name for name in names),
        "graph_launches": sum("GraphLaunch" in name for name in names),
        "synchronisations": sum("Synchronize" in name for name in names) - 1,
        "copies_to_host": sum("DtoH" in name for name in names),
    }


def memory(device: torch.device) -> dict[str, int]:
    """Highest use so far, in bytes."""
    found = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "cuda":
        found |= {"torch": torch.cuda.max_memory_reserved(device)}
        found |= {"warp": wp.get_mempool_used_mem_high(wp.device_from_torch(device))}
    return found


def spread(values: list[float]) -> dict[str, Any]:
    """Median, extremes and all."""
    return {"median": median(values), "min": min(values), "max": max(values), "all": values}


def processor() -> str:
    """Name of the CPU."""
    info = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def bench(ppo: PPO, cfg: dict[str, Any], built: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every level cfg["repeats"] times; all that `out` holds. `built`: seconds that making ppo took."""
    env, load = ppo.env, os.getloadavg()
    first = timed(env.device, ppo.iteration)[0]
    times = [timed(env.device, ppo.iteration)[0] for _ in range(cfg["warmup"])]
    tape = record(ppo, math.ceil(cfg["seconds"] / min(times)))
    bare = bare_warp(env.task, env.sim) if isinstance(env.sim, Warp) else bare_native(env.task, env.num_envs)
    steps, levels = tape.actions[..., 0].numel(), Levels(ppo, bare)
    rounds: list[dict[str, float]] = []
    for i in range(cfg["repeats"] + 1):
        seconds = levels.measure(tape)
        rounds += [seconds] if i else []  # the first is a warm-up
        speeds = "  ".join(f"{level} {steps / seconds[level]:,.0f}" for level in LEVELS)
        say(f"{f'repetition {i}' if i else 'warm-up'}: {speeds} steps/s")
    rates = {level: [steps / seconds[level] for seconds in rounds] for level in LEVELS}
    iterations = len(tape.starts)
    parts = {
        name: [1e3 * seconds.get(name, 0.0) / iterations for seconds in rounds] for name in (*PARTS, "host", "update", "plain")
    }
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
        "milliseconds": {name: spread(x) for name, x in parts.items()},
        "update_speedup": spread([x / y for x, y in zip(parts["plain"], parts["update"], strict=True)]),
        "an_iteration": launches(ppo),
        "start_s": {"build": built, "first_iteration": first, "next": times[:WARM]},
        "memory": memory(env.device),
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
    spent = {name: found["milliseconds"][name]["median"] for name in found["milliseconds"]}
    asked = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in found["an_iteration"].items())
    used = ", ".join(f"{name} {n / 2**30:.2f} GiB" for name, n in found["memory"].items())
    console.print(table)
    for line in (
        f"{found['task']}, {found['num_envs']} worlds, sim={found['sim']}, device={found['device']}; medians of "
        f"{found['repeats']} repetitions of {found['steps']:,} steps of {found['substeps']} timesteps",
        "an iteration in ms: " + ", ".join(f"{part} {spent[part]:.4g}" for part in (*PARTS, "host")),
        f"update {spent['update']:.4g} ms, written plainly {spent['plain']:.4g} ms: x {found['update_speedup']['median']:.2f}",
        f"an iteration: {asked}; memory: {used}",
        f"building took {found['start_s']['build']:.1f} s, the first iteration {found['start_s']['first_iteration']:.1f} s",
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
        start = perf_counter()
        ppo = make_ppo(cfg)
    found = bench(ppo, cfg, perf_counter() - start, lambda line: console.print(line, highlight=False, soft_wrap=True))
    show(found, console)
    if cfg["out"]:
        write_whole(Path(cfg["out"]), (json.dumps(found, indent=1) + "\n").encode())
        console.print(f"wrote {cfg['out']}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
