"""Nodes and bytes of a control step on CUDA by part and function, on the simulated runtime.

    bash tests/cuda/run count.py [task] [num_envs] [words …]   prints them
    bash tests/cuda/run count.py check TASK   ends with 1 if a part has grown since the table
    bash tests/cuda/run count.py renew        writes the table, counts.json, of all tasks

Parts are those of a control step, `pack_samples`, one minibatch and the normalizers. Bytes are what
torch's operators read and write; those of the physics are not counted. A node belongs to the
innermost function of the project on the stack, above `gpusim_rl/core`.
"""

import sys
from collections import Counter
from functools import partial

import counts
import emulate
import simgpu
import torch
import warp as wp
from torch.utils._pytree import tree_leaves

emulate.start()

from tests import graphs  # noqa: E402 the simulation is set up first
from tests.worlds import TASKS  # noqa: E402

WORLDS = 64  # counts do not depend on it
MARKS = ("gpusim_rl/", "tasks/")
NODES: Counter[str] = Counter()  # function → nodes
BYTES = [0]
dispatch, launch, queue = emulate.Emulate.__torch_dispatch__, wp.launch, emulate.queue


def function() -> str:
    """The function that launches now: its file and name."""
    frame = sys._getframe(1)
    while frame:
        path, code = frame.f_code.co_filename, frame.f_code
        for mark in MARKS:
            file = path.rpartition(f"/{mark}")[2]
            if file != path and "site-packages" not in path and not file.startswith("core/"):
                return f"{mark}{file}:{code.co_qualname.partition('.<locals>')[0]}"
        frame = frame.f_back
    return "autograd"


def seen() -> int:
    """Kernels, copies and fills of torch since `fake_reset`."""
    return sum(
        n
        for what, n in simgpu.counts().items()
        if "on stream" in what and not what.startswith(("event", "graph"))
    )


def counted_dispatch(self, func, types, args=(), kwargs=None):
    """An operator of torch, which is counted with what it reads and writes."""
    before = seen()
    out = dispatch(self, func, types, args, kwargs)
    if nodes := seen() - before:
        NODES[function()] += nodes
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        BYTES[0] += sum(x.numel() * x.element_size() for x in tensors)
    return out


def counted_launch(kernel, *args, **options):
    """wp.launch; a kernel of MuJoCo Warp does not run, and is counted here."""
    if kernel.func.__module__.startswith("mujoco_warp"):
        NODES[function()] += 1
    return launch(kernel, *args, **options)


def counted_queue(run) -> None:
    """Work that Warp queues: a kernel of ours, a fill or a copy."""
    NODES[function()] += sys._getframe(1).f_code is not emulate.later.__code__
    queue(run)


def count(task: str, num_envs: int, *words: str) -> tuple[counts.Counts, dict[str, float]]:
    """Part → function → nodes; part → MB of torch's operators."""
    ppo = graphs.build("cuda", task, num_envs, "graph=off", *words)
    ppo.iteration()
    record, learner = ppo.source.record, ppo.learner
    parts = ppo.source.parts | {
        "pack_samples": partial(learner.pack_samples, record),
        "minibatch": learner.minibatch,
        "normalizers": partial(learner.update_normalizers, record),
    }
    emulate.Emulate.__torch_dispatch__, emulate.queue = counted_dispatch, counted_queue
    wp.launch = wp._src.context.launch = counted_launch
    nodes, size = {}, {}
    for name, part in parts.items():
        NODES.clear()
        BYTES[0] = 0
        part()
        nodes[name], size[name] = dict(NODES.most_common()), BYTES[0] / 1e6
    emulate.Emulate.__torch_dispatch__, emulate.queue = dispatch, queue
    wp.launch = wp._src.context.launch = launch
    return nodes, size


def main(words: list[str]) -> int:
    """Does what the words say. Returns how many parts have grown."""
    if words == ["renew"]:
        counts.write({task: count(task, WORLDS)[0] for task in TASKS})
        return 0
    if words[:1] == ["check"]:
        lines = counts.growth(counts.read()[words[1]], count(words[1], WORLDS)[0])
        print("\n".join(lines))
        return len(lines)
    task, num, *more = words if len(words) > 1 else [*words, *("quadruped", "4096")[len(words) :]]
    nodes, size = count(task, int(num), *more)
    print(f"{task}, {num} worlds: nodes; MB of torch's operators")
    for part, functions in nodes.items():
        print(f"{sum(functions.values()):5} {part}; {size[part]:.1f} MB")
        for name, n in functions.items():
            print(f"{n:9} {name}", flush=True)
    return 0


if __name__ == "__main__":
    simgpu.finish(min(main(sys.argv[1:]), 1))
