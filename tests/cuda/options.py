"""Captured and eager learners on the simulated GPU, compared bit by bit, option after option.

    bash tests/cuda/run options.py [case …]

Prints for each case what is wrong: functions that are not captured, tensors that differ from an
eager run, what a steady iteration asks of the device beside launches of graphs, memory that it
takes, and rules of CUDA that were broken, and where. Ends with 1 if anything is.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

import emulate
import simgpu
import torch

if os.environ.get("STRICT", "1") == "1":
    simgpu.warnings_are_errors()
emulate.start()

from tests import graphs  # noqa: E402 the simulation is set up first
from tests.worlds import TASKS, differing, everything  # noqa: E402

ONE_BY_ONE = ("bias", "mass", "inertia", "payload", "center")  # fields with a case of their own
RAMP = "by:iteration,start:0,stop:9"
SCHEDULE = (
    f"task.fastest:{{from:[0.2,0.1,0.2],to:[1,0.5,1],{RAMP}}},"
    f"algo.ent_coef:{{from:0.1,to:0,{RAMP}}},algo.gamma:{{from:0.9,to:0.97,{RAMP}}}"
)
BIAS = {
    "gyro": {"kind": "normal", "low": -0.02, "high": 0.02},
    "joint_pos": {"kind": "uniform", "low": -0.02, "high": 0.02},
}
SLOW = ("no_load=20", "delay=[0.005,0.025]")
MASSES = ("mass.kind=uniform", "payload.kind=normal", "center.kind=uniform")
SAC = ["algo=sac", "algo.warmup=32", "algo.batch_size=16", "algo.replay=24"]
DREAM = ["algo=dream", "algo.warmup=32", "algo.replay=24"]
CASES = {name: (name, []) for name in TASKS} | {
    "seeing": ("quadruped_rough", ["task.hide=[]"]),
    "whole": ("quadruped", ["graph=whole"]),
    "history": ("quadruped", ["task.history.joints=3", "task.observation_delay=[0,2]"]),
    "dropout": ("quadruped", ["task.dropout.gyro=0.2"]),
    "augment": ("quadruped", ["algo.symmetry=augment"]),
    "net": ("quadruped", ["algo.symmetry=net"]),
    "bf16": ("quadruped", ["algo.amp=bf16"]),
    "unfused": ("quadruped", ["algo.fused=false"]),
    "gru": ("quadruped", ["algo.memory=gru"]),
    "attention": ("quadruped", ["algo.memory=attention"]),
    "plan": ("quadruped", [f"curriculum={{{SCHEDULE}}}"]),
    "rnd": ("cartpole", ["reward=rnd"]),
    "preference": ("cartpole", ["reward=preference", "reward.alike=[]", "start=none"]),
    "pd": ("quadruped", ["robot.actuator.kind=pd"]),
    "dc": ("quadruped", [f"robot.actuator.{x}" for x in ("kind=dc", *SLOW)]),
    "everything": (
        "quadruped",
        [f"task.randomise.{k}.kind=uniform" for k in everything() if k not in ONE_BY_ONE]
        + ["task.randomise.bias=" + json.dumps(BIAS).replace('"', "").replace(" ", "")],
    ),
    "masses": ("quadruped", [f"task.randomise.{x}" for x in MASSES]),
    "sac": ("cartpole", SAC),
    "replay": (
        "cartpole",
        [*SAC, "algo.draw=prioritized", "algo.memory=gru", "algo.sequence=2"],
    ),
    "dream": ("cartpole", DREAM),
    "distill": ("cartpole", ["algo=distill", "teacher="]),  # a run, which `trained` makes
}
# All that a steady iteration asks of the device: graphs, and events that time its parts.
STEADY = {"graph launch on stream 1", "event created", "event on stream 1"}
# But a curriculum writes its numbers between the iterations: by iteration it is a kernel for each.
PLAN = {"copy DtoD on stream 1": 3, "kernel on stream 1": 33, "allocations": 29}


def steady_counts(ppo) -> dict[str, int]:
    """What one more iteration asks of the device, beside STEADY."""
    before, reads = allocations(), sum(simgpu.SEEN.values())
    simgpu.RUNTIME.fake_reset()
    simgpu.WATCH = True
    ppo.iteration()
    counts = simgpu.counts() | {"allocations": allocations() - before}
    counts["reads or broken rules"] = sum(simgpu.SEEN.values()) - reads
    return {name: count for name, count in counts.items() if count and name not in STEADY}


def of_a_launch(x: torch.Tensor) -> bool:
    """Whether only launches of Warp hold the tensor, which the simulation keeps for replays."""
    owners = [owner for owner in gc.get_referrers(x) if isinstance(owner, dict)]
    return bool(owners) and all(owner.get("_tensor") is x for owner in owners)


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


def trained(name: str) -> tuple[Any, Any]:
    """A captured and an eager iteration of a case, after the same iterations."""
    task, words = CASES[name]
    if words[-1:] == ["teacher="]:
        words = [*words[:-1], f"teacher={make_teacher(task)}"]
    a = graphs.build("cuda", task, 8, *words)
    eager_words = [word for word in words if not word.startswith("graph=")]
    b = graphs.build("cuda", task, 8, "graph=off", *eager_words)
    for ppo in (a, b):
        for _ in range(graphs.CALLS):
            ppo.iteration()
    return a, b


def make_teacher(task: str) -> str:
    """The directory of a short run of a task, which trained on the CPU without the simulation."""
    run = tempfile.mkdtemp() + "/teacher"
    words = ("num_envs=8", "num_steps=4", "iterations=1", "episodes=2", "device=cpu", "log=none")
    words += (f"task={task}", "export=none", "report=false", f"run_dir={run}")
    env = {k: x for k, x in os.environ.items() if k not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    subprocess.run([sys.executable, "train.py", *words], env=env, check=True, capture_output=True)
    return run


def allocations() -> int:
    """Blocks that torch has handed out since the process began."""
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def problems(name: str) -> dict[str, object]:
    """What is wrong with a case: nothing, if it is captured and keeps CUDA's rules."""
    simgpu.SEEN.clear()
    emulate.Held.segments.clear()
    simgpu.WATCH = False
    a, b = trained(name)
    differ, counts = differing(a.state(), b.state()), steady_counts(a)
    report = a.report()
    a.env.worst_step.worst()
    a.env.worst_step.clear()
    # the first report takes pinned memory, which later ones use again
    broken = [rule for rule in simgpu.broken() if "sync: cudaHostAlloc" not in rule]
    # of the tasks' own curriculum, and of memories, whose start a rollout keeps
    own = {"kernel on stream 1": a.schedule.plan, "copy DtoD on stream 1": a.source.record.memory}
    allowed = PLAN if name == "plan" else {what: len(x) for what, x in own.items() if x}
    wrong = {
        "not captured": graphs.uncaptured(a),
        "captured differs from eager in": differ,
        "a steady iteration asks for": {} if counts == allowed else counts,
        "quarantined": report()["fault"],
        "reachable in a private pool": reachable_in_private_pools(),
        "broken rules": broken,
    }
    return {what: value for what, value in wrong.items() if value}


def main(cases: list[str]) -> int:
    """Prints what is wrong with each case. Returns how many have something wrong."""
    failed = 0
    for case in cases:
        start = time.time()
        try:
            wrong = problems(case)
        except Exception:
            traceback.print_exc(limit=-6)
            wrong = {"error": "see above"}
        failed += bool(wrong)
        print(f"{case}: {wrong or 'well'}, {time.time() - start:.0f} s", flush=True)
        gc.collect()
    return failed


if __name__ == "__main__":
    status = main(sys.argv[1:] or [*CASES])
    sys.stdout.flush()
    os._exit(min(status, 1))
