"""Kernels and microseconds of each part of an iteration on a CUDA GPU.

    python -m benchmarks.cuda_parts [out=parts.json] KEY=VALUE …

The keys are those of train.py. Each part is captured, as in a training. `us` is the time of a call
when calls follow one another without a pause; `kernels` are those that torch's profiler saw in a
call, and `busy_us` is the sum of their times.
"""

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import program
from benchmarks.levels import make_training
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.core.graphs import WARM_UP
from gpusim_rl.core.provenance import versions

CALLS = 10  # of a part in the profiler
REPEATS = 100  # calls that are timed together


def parts(training: Iteration) -> dict[str, tuple[Callable[[], None], int]]:
    """The captured parts of a control step and of an update, each with how often it may follow
    itself."""
    learner, record = training.learner, training.source.record
    step = {name: (part, REPEATS) for name, part in training.source.parts.items()}
    return step | {
        "pack_samples": (partial(learner._pack_samples, record), REPEATS),
        # the next ones would begin beyond the last sample
        "minibatch": (learner._minibatch, learner.minibatches.count),
        "normalizers": (partial(learner._update_normalizers, record), REPEATS),
    }


def microseconds(call: Callable[[], None], calls: int) -> float:
    """Of a call, when calls follow one another."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / calls


def kernels(call: Callable[[], None], calls: int) -> dict[str, tuple[float, float]]:
    """Name of a kernel, a copy or a fill → how many in a call, and their microseconds."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    seen: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in trace.events() or []:
        if str(event.device_type).endswith("CUDA"):
            seen[event.name][0] += 1 / calls
            seen[event.name][1] += event.time_range.elapsed_us() / calls
    order = sorted(seen.items(), key=lambda item: -item[1][1])
    return {name[:90]: (round(n, 2), round(us, 2)) for name, (n, us) in order}


def measure(words: list[str]) -> dict[str, Any]:
    """Part → its figures, for a training of these words."""
    training, _ = make_training(["device=cuda", *words], mirrored=True)
    for _ in range(WARM_UP + 3):
        training.iteration()
    torch.cuda.synchronize()
    rows: dict[str, Any] = {}
    pack = training.learner._pack_samples
    for name, (call, calls) in parts(training).items():
        pack(training.source.record)
        us = microseconds(call, calls)
        pack(training.source.record)
        seen = kernels(call, min(calls, CALLS))
        rows[name] = {
            "us": round(us, 1),
            "kernels": round(sum(n for n, _ in seen.values())),
            "busy_us": round(sum(t for _, t in seen.values()), 1),
            "by_name": seen,
        }
    return rows


def main(words: list[str]) -> None:
    """Measure, print a table and write the figures."""
    own, words = program.split_words(__doc__, words, out=None)
    rows = measure(words)
    print(f"{'part':14} {'us':>9} {'kernels':>8} {'busy us':>9}")
    for name, row in rows.items():
        print(f"{name:14} {row['us']:9.1f} {row['kernels']:8} {row['busy_us']:9.1f}")
        for kernel, (n, us) in list(row["by_name"].items())[:8]:
            print(f"    {us:9.1f} us {n:6.1f} × {kernel[:70]}")
    if own.out:
        report = {"words": words, "parts": rows, "versions": versions()}
        program.write_json(own.out, report)


if __name__ == "__main__":
    main(sys.argv[1:])
