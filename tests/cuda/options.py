"""Captured and eager PPO on the simulated GPU, compared bit by bit, for one option after another.

    bash tests/cuda/run options.py [case …]

Prints for each case what is not captured, which tensors differ from an eager run, what a steady
iteration asks of the device, and which of CUDA's rules were broken, and where.
"""

import gc
import json
import os
import sys
import time
import traceback

import emulate
import simgpu
import torch

if os.environ.get("STRICT", "1") == "1":
    simgpu.warnings_are_errors()
emulate.start()
emulate.run_warp()

from tests import graphs  # noqa: E402 the simulation is set up first
from tests.worlds import everything  # noqa: E402

ONE_BY_ONE = ("bias", "mass", "inertia", "payload", "centre")  # fields with a case of their own
RAMP = "by:iteration,start:0,stop:9"
SCHEDULE = (
    f"task.fastest:{{from:[0.2,0.1,0.2],to:[1,0.5,1],{RAMP}}},"
    f"algo.ent_coef:{{from:0.1,to:0,{RAMP}}},algo.gamma:{{from:0.9,to:0.97,{RAMP}}}"
)
BIAS = {
    "gyro": {"kind": "normal", "low": -0.02, "high": 0.02},
    "joint_pos": {"kind": "uniform", "low": -0.02, "high": 0.02},
}
CASES = {
    "cartpole": ("cartpole", []),
    "quadruped": ("quadruped", []),
    "whole": ("quadruped", ["graph=whole"]),
    "history": ("quadruped", ["task.history.joints=3", "task.observation_delay=[0,2]"]),
    "dropout": ("quadruped", ["task.dropout.gyro=0.2"]),
    "augment": ("quadruped", ["algo.symmetry=augment"]),
    "loss": ("quadruped", ["algo.symmetry=loss"]),
    "net": ("quadruped", ["algo.symmetry=net"]),
    "bf16": ("quadruped", ["algo.amp=bf16"]),
    "unfused": ("quadruped", ["algo.fused=false"]),
    "plan": ("quadruped", [f"curriculum={{{SCHEDULE}}}"]),
    "pd": ("quadruped", ["robot.actuator.kind=pd"]),
    "dc": (
        "quadruped",
        [
            "robot.actuator.kind=dc",
            "robot.actuator.no_load=20",
            "robot.actuator.delay=1",
            "robot.actuator.lag=1",
        ],
    ),
    "everything": (
        "quadruped",
        [f"task.randomise.{k}.kind=uniform" for k in everything() if k not in ONE_BY_ONE]
        + ["task.randomise.bias=" + json.dumps(BIAS).replace('"', "").replace(" ", "")],
    ),
    "masses": (
        "quadruped",
        [
            "task.randomise.mass.kind=uniform",
            "task.randomise.payload.kind=normal",
            "task.randomise.centre.kind=uniform",
        ],
    ),
}
STEADY = (
    "kernel on stream 1",
    "kernel on stream 0",
    "synchronise",
    "synchronise device",
    "synchronise event",
    "cudaMalloc",
    "cudaHostAlloc",
    "graph launch on stream 1",
    "copy HtoD pageable on stream 1",
)


def different(a, b) -> list[str]:
    """Names of the tensors of the state that are not bit-equal in both."""
    ours, theirs = a.state(), b.state()
    return [name for name in ours if not torch.equal(ours[name].cpu(), theirs[name].cpu())]


def steady_counts(ppo) -> dict[str, int]:
    """What one more iteration asks of the device."""
    simgpu.RUNTIME.fake_reset()
    simgpu.WATCH = True
    ppo.iteration()
    counts = {name: simgpu.RUNTIME.fake_count(name.encode()) for name in STEADY}
    return {name: count for name, count in counts.items() if count}


def of_a_launch(x: torch.Tensor) -> bool:
    """Whether only a launch of Warp holds the tensor, which the simulation keeps for replays."""
    owners = [owner for owner in gc.get_referrers(x) if isinstance(owner, dict)]
    return any(owner.get("_tensor") is x for owner in owners)


def reachable_in_private_pools() -> list[tuple]:
    """Tensors in graphs' private memory that Python still reaches: (pool, shape, owners)."""
    pools, reachable = simgpu.private_pools(), {}
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cuda" and x.numel():
            for begin, end, pool in pools:
                if begin <= x.data_ptr() < end and not of_a_launch(x):
                    owners = [type(owner).__name__ for owner in gc.get_referrers(x)][:3]
                    reachable[x.data_ptr()] = (pool, tuple(x.shape), owners)
    return list(reachable.values())


def run(name: str) -> None:
    """Trains a captured PPO and an eager one, and prints how they compare."""
    task, words = CASES[name]
    start = time.time()
    a = graphs.build("cuda", task, 8, *words)
    eager_words = [word for word in words if not word.startswith("graph=")]
    b = a if emulate.FAST else graphs.build("cuda", task, 8, "graph=off", *eager_words)
    built = time.time() - start
    for _ in range(graphs.CALLS - emulate.FAST):
        for ppo in (a,) if b is a else (a, b):
            ppo.iteration()
    reasons = {fn.name: fn.reason for fn in graphs.captured(a)}
    reasons = {n: reason for n, reason in reasons.items() if reason not in ("", "switched off")}
    differ, steady = different(a, b), steady_counts(a)
    report = a.report()
    a.env.worst_step.worst()
    a.env.worst_step.clear()
    metrics = report()
    reachable = reachable_in_private_pools()
    print(
        f"{name}: built {built:.0f} s, all {time.time() - start:.0f} s; "
        f"not captured: {reasons or 'none'}; "
        f"captured differs from eager in: {differ or 'nothing'}; "
        f"steady: {steady}; fault {metrics['fault']}",
        flush=True,
    )
    for tensor in reachable:
        print("     reachable in a private pool:", tensor)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        simgpu.SEEN.clear()
        simgpu.WATCH = False
        try:
            run(case)
        except Exception:
            print(case, "FAILED")
            traceback.print_exc(limit=-6)
        simgpu.print_seen("sync: cudaEventSynchronize")
        gc.collect()
    os._exit(0)
