"""The levels that `bench` measures, from the bare engine to a training iteration."""

import resource
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import mujoco_warp as mjw
import torch
import warp as wp
from mujoco.batch import Batch, SimulationError
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from gpusim_rl.algorithms.iteration import SHARES, Iteration
from gpusim_rl.core.graphs import capture
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.task import Task
from gpusim_rl.sim.native import fast
from gpusim_rl.sim.warp import Warp
from gpusim_rl.sim.warp_model import STATE, accepted
from gpusim_rl.tools.bench.reference_ppo import Plain

LEVELS = ("bare", "sim", "env", "rollout", "training")
# The parts of an iteration, in PPO's words.
PARTS = ("act", "control", "physics", "settle", "returns", "minibatches", "normalizers")

State = dict[str, Tensor]  # PPO's, all of it
Load = Callable[[State], None]  # puts an engine there
Play = Callable[[Tensor], None]  # holds each of the controls (T, B, nu) for a control step


class Tape(NamedTuple):
    """K rollouts of T steps of a policy with its training noise, to be replayed by every level.

    Every level begins each rollout in the state recorded here. The bare engine restarts nobody and
    its model is not randomized; so its worlds stay like the recorded ones.
    """

    starts: list[State]
    actions: Tensor  # (K, T, B, nu)
    controls: Tensor  # (K, T, B, nu) in the engine's precision


@torch.no_grad()
def record(ppo: Iteration, rollouts: int) -> Tape:
    """K rollouts as a training collects them."""
    env, collector, starts, actions, controls = ppo.env, ppo.source, [], [], []
    for _ in range(rollouts):
        starts.append(ppo.state())
        for _ in range(len(collector.record.rows)):
            collector.act()
            controls.append(env.sim.ctrl.clone())
            env.advance()
            collector.settle()
        actions.append(collector.record.action.clone())
    return Tape(starts, torch.stack(actions), torch.stack(controls).unflatten(0, (rollouts, -1)))


def bare_native(task: Task, num_envs: int) -> tuple[Load, Play]:
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

    return load, play


def bare_warp(task: Task, sim: Warp) -> tuple[Load, Play]:
    """mujoco_warp.step in a graph for each control step, with the capacities of our Sim."""
    device = sim.qpos.device
    mjm = accepted(task.physics)
    with wp.ScopedDevice(wp.device_from_torch(device)):
        m = mjw.put_model(mjm)
        d = mjw.make_data(mjm, len(sim.qpos), naconmax=sim.d.naconmax, njmax=sim.d.njmax)
    m.opt.graph_conditional = sim.m.opt.graph_conditional
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

    def __init__(self, ppo: Iteration, bare: tuple[Load, Play]):
        self.ppo, self.bare = ppo, bare
        # It is PPO's: another learner has no minibatches.
        self.plain = Plain(ppo) if hasattr(ppo.learner, "minibatches") else None
        env = ppo.env
        self.action = torch.zeros_like(env.action)
        on = partial(capture, device=env.device, on=ppo.graph != "off" and env.sim.capturable)
        self.act, self.advance, self.settle = (
            on(lambda: env.act(self.action)),
            on(env.advance),
            on(lambda: discard(env.settle())),
        )

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
        """Seconds of each level, of the parts of an iteration, of a plain update and of the host.

        The levels take turns at each rollout, so that a disturbance meets all of them.
        """
        ppo, (load, play), spent = self.ppo, self.bare, defaultdict[str, float](float)
        device, put = ppo.env.device, partial(ppo.load, where="the tape")
        for start, actions, controls in zip(*tape, strict=True):
            acts = {
                "bare": partial(play, controls),
                "sim": partial(self.sim, controls),
                "env": partial(self.env, actions),
            }
            with torch_threads(1):  # as PPO collects
                for level, act in acts.items():
                    (load if level == "bare" else put)(start)
                    spent[level] += timed(device, act)[0]
            put(start)
            collect = partial(ppo.source.collect, ppo.spec.num_steps)
            spent["rollout"] += timed(device, collect)[0]
            if self.plain:
                spent["plain"] += timed(device, self.plain.update)[0]
            put(start)
            ppo.timer.take()
            whole, host = timed(device, ppo.iteration)
            parts = {name: part.wall for name, part in ppo.timer.take()().items()}
            for name, seconds in ({"training": whole, "host": host} | parts).items():
                spent[name] += seconds
        spent["update"] = sum(spent[name] for name in SHARES["update"])
        return dict(spent)


def discard(_: object) -> None:
    """Drop a result, because a captured function returns None."""


class Operators(TorchDispatchMode):
    """Counts what reaches torch's kernels, backward included."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def launches(ppo: Iteration) -> dict[str, int]:
    """Kernels and graph launches of one iteration on CUDA; torch operators on the CPU."""
    if ppo.env.device.type == "cpu":
        with Operators() as seen:
            ppo.iteration()
        return {"operators": seen.count}
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    # acc_events: the profiler warns otherwise, though there is only one cycle of it
    with profile(activities=activities, acc_events=True) as trace:
        with record_function("iteration"):
            ppo.iteration()
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
        used |= {"warp": wp.get_mempool_used_mem_high(wp.device_from_torch(device))}
    return used
