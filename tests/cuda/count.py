"""Kernels and bytes of a control step on CUDA, part by part, counted on the simulated runtime.

    bash tests/cuda/run count.py [task] [num_envs] [words …]

Prints, for each part of a control step, for `pack_samples` and for one minibatch: launches of
torch's kernels, launches of Warp's, copies, and the bytes that torch's operators read and write.
The physics' bytes are not counted. In a graph each launch is a node.
"""

import sys
from collections import Counter
from functools import partial

import emulate
import simgpu
import torch
import warp as wp
from torch.utils._pytree import tree_leaves

emulate.start()
emulate.run_warp()

from tests import graphs  # noqa: E402 the simulation is set up first

launch, later = wp.launch, emulate.later
COUNTS: Counter[str] = Counter()


def counting_launch(*args, **options):
    """wp.launch, counted."""
    COUNTS["Warp"] += 1
    return launch(*args, **options)


def counting_later(func, args, kwargs, out):
    """What an operator reads and writes, counted."""
    tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
    COUNTS["bytes"] += sum(x.numel() * x.element_size() for x in tensors)
    return later(func, args, kwargs, out)


def count(function) -> Counter[str]:
    """What a function launches."""
    COUNTS.clear()
    simgpu.RUNTIME.fake_reset()
    function()
    for name, key in (("torch", "kernel on stream 1"), ("copies", "copy DtoD on stream 1")):
        COUNTS[name] = simgpu.RUNTIME.fake_count(key.encode())
    return COUNTS.copy()


def main(words: list[str]) -> None:
    """Prints the table."""
    task, num, *more = words if len(words) > 1 else [*words, *("quadruped", "4096")[len(words) :]]
    ppo = graphs.build("cuda", task, int(num), "graph=off", *more)
    ppo.iteration()
    wp.launch = wp._src.context.launch = counting_launch
    emulate.later = counting_later
    parts = {
        "act": ppo.source.act,
        "physics": ppo.env.step_physics,
        "settle": ppo.source.finish_step,
    }
    pack = partial(ppo.learner.pack_samples, ppo.source.record)
    parts |= {"pack_samples": pack, "minibatch": ppo.learner.minibatch}
    print(f"{task}, {num} worlds: launches of torch, of Warp; copies; MB of torch's operators")
    for name, function in parts.items():
        n = count(function)
        size = n["bytes"] / 1e6
        print(f"{name:14} {n['torch']:6} {n['Warp']:6} {n['copies']:6} {size:10.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
    simgpu.finish()
