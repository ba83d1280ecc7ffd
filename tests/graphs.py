"""What a captured iteration must do, on Warp's CPU graphs and on CUDA (tests/test_gpu.py)."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import warp as wp

from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core.graphs import WARM_UP, Graph, capture, fetch, record
from gpusim_rl.core.streams import one_stream
from tests.guard import guard
from tests.worlds import differing, make_config

SLEEP = 3.0  # s that the device is kept busy before an iteration is enqueued
CALLS = WARM_UP + 3  # so many iterations run every captured function eagerly, captured and replayed


def build(device: str, task: str = "quadruped", num_envs: int = 8, *words: str) -> PPO:
    """An iteration on MuJoCo Warp with short episodes: worlds restart in every rollout."""
    about = [f"task={task}", "sim=warp", f"device={device}", f"num_envs={num_envs}", "num_steps=4"]
    about += ["algo.hidden=[32,32]", "task.episode=0.2"]
    if not {"algo=sac", "algo=dream"} & {*words}:  # they have neither
        about += ["algo.num_minibatches=2", "algo.update_epochs=2"]
    return make_iteration(make_config(*about, *words))


def captured(ppo: PPO) -> list[Graph]:
    """All of its functions that may be captured, those of the Sim too."""
    owners = (vars(ppo), vars(ppo.learner), ppo.source.parts, vars(ppo.env.sim))
    return [value for owner in owners for value in owner.values() if isinstance(value, Graph)]


def uncaptured(ppo: PPO) -> dict[str, str]:
    """Why functions are not captured, where they could be."""
    reasons = {fn.fn.__qualname__: fn.reason for fn in captured(ppo)}
    return {name: x for name, x in reasons.items() if x not in ("", "switched off")}


def replays(ppo: PPO) -> bool:
    """Whether everything that this device can capture is replayed, and something is."""
    able = [fn for fn in captured(ppo) if not fn.reason]
    # what lies within another is called by itself only while an Env is made
    live = [fn for fn in able if fn.calls > WARM_UP]
    return bool(live) and all(fn.graph is not None for fn in live)


def captured_is_eager(device: str, task: str, *words: str) -> PPO:
    """Seven iterations with graphs and without give the same state, bit by bit.

    Returns the iteration with graphs.
    """
    plan = [word for word in words if not word.startswith("graph=")]
    # on CUDA atomics add in any order unless told not to
    with_graphs = build(device, task, 8, "sim.deterministic=true", *words)
    without = build(device, task, 8, "sim.deterministic=true", "graph=off", *plan)
    restarts = 0
    for k in range(CALLS + 1):
        for ppo in (with_graphs, without):
            ppo.iteration()
        differ = differing(with_graphs.state(), without.state())
        assert differ == [], f"iteration {k + 1}"
        ended = with_graphs.source.record.truncated | with_graphs.source.record.terminated
        restarts += int(ended.sum())
    assert restarts >= 8
    assert replays(with_graphs) and not any(fn.graph for fn in captured(without))
    ours, theirs = with_graphs.report()(), without.report()()
    assert ours.keys() == theirs.keys() and ours["fault"] == theirs["fault"] == 0
    return with_graphs


@contextmanager
def never_reads(device: torch.device) -> Iterator[None]:
    """Any host read inside raises: by the guard, or on CUDA by torch and a sleeping device."""
    if device.type == "cpu":
        with guard():
            yield
        return
    torch.cuda.synchronize()
    torch.cuda._sleep(int(SLEEP * 1e9 * clock_rate()))
    with waiting_raises():
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
    asleep = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert asleep, (
        "the device woke before the work was enqueued: something waited, or the sleep was too short"
    )
    assert spent < 0.05, f"{spent:.3f} s to enqueue an iteration: something waits for the device"


@contextmanager
def waiting_raises() -> Iterator[None]:
    """Every call inside that waits for a CUDA device raises."""
    with warnings.catch_warnings():
        # torch says once that this mode is a prototype
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def clock_rate() -> float:
    """Cycles of torch.cuda._sleep a nanosecond, measured."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(10**8)
    end.record()
    end.synchronize()
    return 1e8 / (begin.elapsed_time(end) * 1e6)


def an_iteration_reads_nothing(ppo: PPO) -> None:
    """Once captured, iterations do not wait for the device; on CUDA no report does."""
    assert replays(ppo)
    ppo.report()()  # its first copy allocates pinned memory
    with never_reads(ppo.env.device):
        ppo.iteration()
        # On the CPU it reads at once: there is nothing to wait for.
        if ppo.env.device.type == "cuda":
            ppo.report()
    before = ppo.spec.iteration.clone()
    ppo.iteration()
    ours = ppo.report()
    ppo.iteration()  # work that the report must not wait for
    assert ours()["fault"] == 0 and ppo.spec.iteration == before + 2


@wp.kernel(enable_backward=False)
def count_down(left: wp.array[int], done: wp.array[int]):
    """One turn of a loop."""
    left[0] = left[0] - 1
    done[0] = done[0] + 1


def a_graph_is_replayed(device: str) -> None:
    """A function of Warp launches is recorded without being run, and replayed as often as asked."""
    left, done = (wp.zeros(1, dtype=int, device=device) for _ in range(2))
    wp.launch(count_down, 1, inputs=[left, done], device=device)  # builds the kernel
    done.zero_()
    one_stream(device)
    replay = record(
        lambda: wp.launch(count_down, 1, inputs=[left, done], device=device), torch.device(device)
    )
    assert done.numpy()[0] == 0
    for _ in range(5):
        replay()
    assert done.numpy()[0] == 5


def another_shape_is_captured_anew(device: str) -> None:
    """Arguments at another address or of another shape are captured again."""
    a, b = (torch.zeros(n, device=device) for n in (4, 6))

    def add(x: torch.Tensor, n: int) -> None:
        wp.launch(increment, len(x), inputs=[wp.from_torch(x), n], device=device)

    fn = capture(add, device, kernels=True)
    for _ in range(CALLS):
        fn(a, 1)
    first = fn.graph
    assert first is not None and (a == CALLS).all()
    fn(b, 1)
    assert fn.graph is None and (b == 1).all() and (a == CALLS).all()
    for _ in range(CALLS):
        fn(b, 2)
    assert fn.graph is not None and fn.graph is not first and (b == 1 + 2 * CALLS).all()


@wp.kernel(enable_backward=False)
def increment(x: wp.array[float], n: int):
    """x + n"""
    i = wp.tid()
    x[i] = x[i] + float(n)


def a_fetch_is_of_its_moment(device: str) -> None:
    """What `fetch` reads is the value at the call, whatever is written after."""
    x = torch.arange(5.0, device=device)
    read = fetch(x)
    x.zero_()
    assert read() == [0, 1, 2, 3, 4] and read() == [0, 1, 2, 3, 4]


def trains_their_robot(device: str, *robot: str) -> PPO:
    """With all collisions and the period and networks of mjlab's Go1: captured, finite."""
    network = ("algo.hidden=[512,256,128]", "algo.activation=elu", "algo.symmetry=none")
    network += ("task.training=exact",)
    ppo = build(device, "quadruped", 8, *robot, "robot.collide=all", "task.dt=0.02", *network)
    for _ in range(CALLS):
        ppo.iteration()
    assert replays(ppo) and ppo.env.task.substeps == round(0.02 / ppo.env.task.mjm.opt.timestep)
    layers = [layer for layer in ppo.policy.actor.net if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in layers] == [512, 256, 128, 12]
    assert all(torch.isfinite(x).all() for x in ppo.learner.optimizer.weights.values())
    assert ppo.report()()["overflow"] == 0
    return ppo
