"""Speed from the physics engine alone to the whole training.

    python -m benchmarks.levels task=quadruped out=bench.json

All levels step the same recorded states the same number of times. They take turns `repeats` times,
so that a ratio compares neighbors in time. The keys are those of train.py,
and these; algo.symmetry=auto is none here.

    repeats=5    repetitions of every level, in turn; the medians are reported
    seconds=2.0  length [s] of one repetition of the training; every level takes as many steps
    warmup=10    training iterations before the first measurement, so that the robots move
    out=null     JSON file for the results

`physics_only` is the engine as it comes: MuJoCo C's `Batch` on all cores, or a captured
`mujoco_warp.step`. It replays the recorded controls with the training model; no sensor is copied,
nothing randomized. It bounds the speed of training: see training/physics_only.
"""

import math
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import mujoco_warp as mjw
import torch
import warp as wp
from mujoco.batch import Batch, SimulationError
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import program
from gpusim_rl.algorithms.iteration import ELSEWHERE, SHARES, Iteration
from gpusim_rl.config import compose, resume
from gpusim_rl.core import errors
from gpusim_rl.core.distributed import SINGLE
from gpusim_rl.core.graphs import WARM_UP, PartTime, capture
from gpusim_rl.core.provenance import processor, versions
from gpusim_rl.core.streams import torch_threads, warp_device
from gpusim_rl.core.waiting import waiting
from gpusim_rl.envs.task import Task
from gpusim_rl.sim.actuated import engine
from gpusim_rl.sim.base import STATE
from gpusim_rl.sim.native import fast
from gpusim_rl.sim.warp import Warp
from gpusim_rl.sim.warp_model import accepted
from gpusim_rl.training.memory import make_on_device

LEVELS = ("physics_only", "sim", "env", "rollout", "training")
RATIOS = tuple((level, LEVELS[0]) for level in LEVELS[1:]) + tuple(
    zip(LEVELS[2:], LEVELS[1:-1], strict=True)
)
# Keys of a training with a run directory; a benchmark has none.
WITHOUT = ("resume", "auto_resume", "run_dir", "plan", "stop_at")

State = dict[str, Tensor]  # of a training, all of it


class Engine(NamedTuple):
    """An engine without the rest of a Sim."""

    load: Callable[[State], None]  # puts its worlds into a state
    play: Callable[[Tensor], None]  # holds each of the controls (T, B, nu) for a control step


class Recording(NamedTuple):
    """K rollouts of T steps of a policy with its training noise, to be replayed by every level.

    Every level begins each rollout in the state recorded here. The engine alone restarts nobody and
    its model is not randomized; so its worlds stay like the recorded ones.
    """

    starts: list[State]
    actions: Tensor  # (K, T, B, nu)
    controls: Tensor  # (K, T, B, nu) in the engine's precision


def make_training(words: list[str], *, mirrored: bool = False) -> tuple[Iteration, dict[str, Any]]:
    """The training that is measured, and its configuration.

    A mistake in the words, which are those of train.py, is one line and exit code 2.

    mirrored: whether algo.symmetry=auto finds a mirror image. Figures of before, and those of other
        trainers, are without.
    """
    with errors.one_line_errors():
        for key in (override.key_or_group for override in compose.parse(words)):
            if key in WITHOUT:
                raise ValueError(f"{key}=: it does not take that: it measures a new training")
        cfg = resume.check_training(compose.compose_plain("config", words), words)
        if not mirrored and cfg.plain["algo"].get("symmetry") == "auto":
            cfg = cfg.replace({"algo.symmetry": "none"})
        with waiting("building"):
            training, cfg, _ = make_on_device(cfg, SINGLE)
    return training, cfg.plain


@torch.no_grad()
def record(training: Iteration, rollouts: int) -> Recording:
    """K rollouts as a training collects them."""
    env, collector, starts, actions, controls = training.env, training.source, [], [], []
    for _ in range(rollouts):
        starts.append(training.state())
        for _ in range(len(collector.record.rows)):
            collector.act()
            controls.append(env.sim.ctrl.clone())
            env.step_physics()
            collector.finish_step()
        actions.append(collector.record.action.clone())
    controls = torch.stack(controls).unflatten(0, (rollouts, -1))
    return Recording(starts, torch.stack(actions), controls)


def native_engine(task: Task, num_envs: int) -> Engine:
    """A plain Batch on all cores; derived fields are computed by its steps alone."""
    batch = Batch(fast(task.physics), num_envs)
    ctrl = batch.bind("ctrl")

    def load(state: State) -> None:
        batch.state[:] = state["sim/rows"].numpy()

    def play(controls: Tensor) -> None:
        for row in controls.numpy():
            ctrl[:] = row
            with suppress(SimulationError):  # names the worlds that failed; the others went on
                batch.step(nstep=task.substeps)

    return Engine(load, play)


def warp_engine(task: Task, sim: Warp) -> Engine:
    """mujoco_warp.step in a graph for each control step, with the capacities of our Sim."""
    device = sim.qpos.device
    mjm = accepted(task.physics)
    with wp.ScopedDevice(warp_device(device)):
        m = mjw.put_model(mjm)
        d = mjw.make_data(mjm, len(sim.qpos), naconmax=sim.d.naconmax, njmax=sim.d.njmax)
    m.opt.graph_conditional = sim.m.opt.graph_conditional
    m.opt.warn_overflow = 0
    live = {name: wp.to_torch(getattr(d, name)) for name in STATE}

    def advance() -> None:
        with wp.ScopedDevice(warp_device(device)):
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

    return Engine(load, play)


def measure_seconds(device: torch.device, work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of work, all it queued included, and those after which the host was free again."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    wait(device)
    start = perf_counter()
    work()
    host = perf_counter() - start
    wait(device)
    return perf_counter() - start, host


def group_parts(parts: dict[str, PartTime], total: float) -> dict[str, PartTime]:
    """Time of each share of the log, and as `other` the rest of `total` seconds.

    A learner may name its parts as it likes: they belong to `update`. An iteration that is captured
    as a whole has no parts.
    """
    share_of = {
        part: share for share, names in SHARES.items() for part in names if share not in ELSEWHERE
    }
    sums = dict.fromkeys((x for x in SHARES if x not in ELSEWHERE), PartTime())
    for name, part in parts.items():
        if name != "iteration":
            share = share_of.get(name, "update")
            before = sums[share]
            sums[share] = PartTime(before.wall + part.wall, before.processor + part.processor)
    rest = total - sum(part.wall for part in sums.values())
    return sums | {"other": PartTime(max(rest, 0.0), 0.0)}


class Levels:
    """The levels of a training: each plays the rollouts of a recording."""

    def __init__(self, training: Iteration):
        self.training, env = training, training.env
        sim = engine(env.sim)  # with no servos of ours: the engine's own follow the targets
        self.engine = (
            warp_engine(env.task, sim)
            if isinstance(sim, Warp)
            else native_engine(env.task, env.num_envs)
        )
        self.action = torch.zeros_like(env.action)
        on = training.graph != "off" and env.sim.capturable
        self.apply_action, self.step_physics, self.finish_step = (
            capture(step, env.device, on=on)
            for step in (
                lambda: env.apply_action(self.action),
                env.step_physics,
                lambda: discard(env.finish_step()),
            )
        )

    def sim(self, controls: Tensor) -> None:
        """Physics of our Sim."""
        for row in controls:
            self.training.env.sim.ctrl.copy_(row)
            self.step_physics()

    def env(self, actions: Tensor) -> None:
        """Whole control steps of our Env."""
        for row in actions:
            self.action.copy_(row)
            self.apply_action()
            self.step_physics()
            self.finish_step()

    def measure(self, recording: Recording) -> dict[str, float]:
        """Seconds of each level, of the parts of an iteration, of its update and of the host.

        The levels take turns at each rollout, so that a disturbance meets all of them.
        """
        training, seconds = self.training, defaultdict[str, float](float)
        device, load = training.env.device, partial(training.load, where="the recording")
        for start, actions, controls in zip(*recording, strict=True):
            with torch_threads(1):  # as PPO collects
                for level, put, work in (
                    ("physics_only", self.engine.load, partial(self.engine.play, controls)),
                    ("sim", load, partial(self.sim, controls)),
                    ("env", load, partial(self.env, actions)),
                ):
                    put(start)
                    seconds[level] += measure_seconds(device, work)[0]
            load(start)
            collect = partial(training.source.collect, training.spec.num_steps)
            seconds["rollout"] += measure_seconds(device, collect)[0]
            load(start)
            training.timer.read()
            whole, host = measure_seconds(device, training.iteration)
            parts = training.timer.read()()
            walls = {name: part.wall for name, part in parts.items()}
            walls |= {"update": group_parts(parts, whole)["update"].wall, "host": host}
            for name, wall in ({"training": whole} | walls).items():
                seconds[name] += wall
        return dict(seconds)


def discard(_: object) -> None:
    """Drop a result, because a captured function returns None."""


class Operators(TorchDispatchMode):
    """Counts what reaches torch's kernels, backward included."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def launches(training: Iteration) -> dict[str, int]:
    """Kernels and graph launches of one iteration on CUDA; torch operators on the CPU."""
    if training.env.device.type == "cpu":
        with Operators() as operators:
            training.iteration()
        return {"operators": operators.count}
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    # acc_events: the profiler warns otherwise, though there is only one cycle of it
    with profile(activities=activities, acc_events=True) as trace:
        with record_function("iteration"):
            training.iteration()
        torch.cuda.synchronize()
    events = trace.events() or []
    span = next(event.time_range for event in events if event.name == "iteration")
    # What the host called.
    names = [event.name for event in events if span.start <= event.time_range.start <= span.end]
    return {
        "kernels": sum(str(event.device_type).endswith("CUDA") for event in events),
        "kernel_launches": sum("LaunchKernel" in name for name in names),
        "graph_launches": sum("GraphLaunch" in name for name in names),
        "synchronisations": sum("Synchronize" in name for name in names),
        "copies_to_host": sum("DtoH" in event.name for event in events),
    }


def memory(device: torch.device) -> dict[str, int]:
    """Highest use so far, in bytes."""
    used = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "cuda":
        used |= {"torch": torch.cuda.max_memory_reserved(device)}
        used |= {"warp": wp.get_mempool_used_mem_high(warp_device(device))}
    return used


def bench(
    training: Iteration, own: Any, build_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure every level `own.repeats` times.

    Args:
        own: the keys of this program.
        build_s: seconds that making the training took.
    """
    env, load = training.env, os.getloadavg()
    first = measure_seconds(env.device, training.iteration)[0]
    times = [measure_seconds(env.device, training.iteration)[0] for _ in range(own.warmup)]
    recording = record(training, math.ceil(own.seconds / min(times)))
    steps, levels = recording.actions[..., 0].numel(), Levels(training)
    rounds: list[dict[str, float]] = []
    for i in range(own.repeats + 1):
        turn = f"repetition {i} of {own.repeats}" if i else "warm-up"
        with waiting(turn):
            seconds = levels.measure(recording)
        rounds += [seconds] if i else []
        speeds = "  ".join(f"{level} {steps / seconds[level]:,.0f}" for level in LEVELS)
        say(f"{turn}: {speeds} steps/s")
    return {
        "command": program.command_line("levels"),
        "sim": type(engine(env.sim)).__name__.lower(),
        "device": str(env.device),
        **{"num_envs": env.num_envs, "num_steps": training.spec.num_steps},
        **{"repeats": own.repeats, "warmup": own.warmup, "substeps": env.task.substeps},
        "steps": steps,
        **summary(rounds, steps, len(recording.starts), env.task.substeps),
        "an_iteration": launches(training),
        "start_s": {"build": build_s, "first_iteration": first, "next": times[:WARM_UP]},
        "memory": memory(env.device),
        "versions": versions() | {"cpu": processor(), "cores": os.cpu_count()},
        "load": {"before": load, "after": os.getloadavg()},
    }


def summary(
    rounds: list[dict[str, float]], steps: int, iterations: int, substeps: int
) -> dict[str, Any]:
    """Speeds, their ratios and milliseconds of an iteration's parts, each over all rounds."""
    rates = {level: [steps / seconds[level] for seconds in rounds] for level in LEVELS}
    parts = [name for name in rounds[0] if name not in LEVELS]
    groups = {
        "steps_per_s": rates,
        "physics_steps_per_s": {level: [substeps * v for v in x] for level, x in rates.items()},
        "ratios": {
            f"{a}/{b}": [x / y for x, y in zip(rates[a], rates[b], strict=True)] for a, b in RATIOS
        },
        "milliseconds": {
            name: [1e3 * seconds[name] / iterations for seconds in rounds] for name in parts
        },
    }
    return {
        group: {
            name: {"median": median(x), "min": min(x), "max": max(x), "all": x}
            for name, x in values.items()
        }
        for group, values in groups.items()
    }


def speed_table(results: dict[str, Any]) -> Table:
    """A row for each level."""
    heads = ("steps/s", "lowest", "highest", "physics steps/s", "of physics", "of the one above")
    table = program.table_of_numbers("", *heads)
    for i, level in enumerate(LEVELS):
        rate, physics = results["steps_per_s"][level], results["physics_steps_per_s"][level]
        speeds = (rate["median"], rate["min"], rate["max"], physics["median"])
        others = (LEVELS[0], LEVELS[i - 1]) if i else ()
        ratios = [results["ratios"][f"{level}/{other}"]["median"] for other in others]
        table.add_row(level, *(f"{x:,.0f}" for x in speeds), *(f"{x:.2f}" for x in ratios))
    return table


def lines_below(results: dict[str, Any]) -> Iterator[str]:
    """The lines below the table."""
    machine, load, start = results["versions"], results["load"], results["start_s"]
    yield (
        f"{results['task']}, {results['num_envs']} worlds, sim={results['sim']},"
        f" device={results['device']}; medians of {results['repeats']} repetitions of"
        f" {results['steps']:,} steps of {results['substeps']} timesteps"
    )
    parts = (f"{name} {x['median']:.4g}" for name, x in results["milliseconds"].items())
    yield f"an iteration in ms: {', '.join(parts)}"
    counts = (f"{n:,} {name.replace('_', ' ')}" for name, n in results["an_iteration"].items())
    used = (f"{name} {n / 2**30:.2f} GiB" for name, n in results["memory"].items())
    yield f"an iteration: {', '.join(counts)}; memory: {', '.join(used)}"
    yield (
        f"building took {start['build']:.1f} s,"
        f" the first iteration {start['first_iteration']:.1f} s"
    )
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, GPU {machine['gpu']};"
        f" load {load['before'][0]:.1f} to {load['after'][0]:.1f}"
    )
    packages = ("python", "torch", "mujoco", "mujoco-warp", "warp-lang")
    yield ", ".join(f"{key} {machine[key]}" for key in packages)
    yield f"commit {machine['commit']}"


def main(words: list[str]) -> None:
    """Compose, measure, print and write."""
    keys = dict(repeats=5, seconds=2.0, warmup=10, out=None)
    own, words = program.split_words(__doc__, words, **keys)
    console, start = program.make_console(), perf_counter()
    training, cfg = make_training(words)
    build_s = perf_counter() - start
    results = {"task": cfg["task"]["name"]}
    results |= bench(training, own, build_s, lambda line: program.say(console, [line]))
    console.print(speed_table(results))
    program.finish(console, results, lines_below(results), own.out)


if __name__ == "__main__":
    main(sys.argv[1:])
