"""A row of metrics: means that the device holds, and where the time went."""

from collections.abc import Callable

import torch
from torch import Tensor

from gpusim_rl.core.graphs import Spent, fetch
from gpusim_rl.envs.env import Env

SHARES = {  # the timed parts that make up each share of the log
    "physics": ("physics",),
    "environment": ("control", "settle"),
    "policy": ("act",),
    "update": ("returns", "minibatches", "normalizers"),
}


def row_of_metrics(
    env: Env,
    values: Tensor,
    own: list[str],
    spent: Callable[[], dict[str, Spent]],
    steps: int,
) -> Callable[[], dict[str, float]]:
    """Begin to copy metrics to the host; the function returned waits for them.

    Args:
        env: whose sums since the last report are read and cleared.
        values: the learner's own and the numbers of a curriculum; `own` are their names.
        spent: gives the time of each timed part.
        steps: control steps of all worlds since the last report.
    """
    names, sums = env.report()
    numbers = fetch(torch.cat([sums, values]))

    def read() -> dict[str, float]:
        row = numbers()
        metrics = env.statistics.means(names, row)
        metrics |= dict(zip(own, row[len(names) :], strict=True))
        return metrics | timing(spent(), steps)

    return read


def timing(spent: dict[str, Spent], steps: int) -> dict[str, float]:
    """Speed [steps/s], and the share of the time of each group of timed parts.

    On the CPU also `cores`, how many were busy on average.
    """
    total = max(sum(part.wall for part in spent.values()), 1e-9)
    row = {"steps_per_s": steps / total}
    for share, parts in SHARES.items():
        row[f"share/{share}"] = sum(spent.get(part, Spent()).wall for part in parts) / total
    processor = sum(part.processor for part in spent.values())
    return row | ({"cores": processor / total} if processor else {})
