"""The row of metrics of PPO: means that the device holds, and where the time went."""

from collections.abc import Callable

import torch
from torch import Tensor

from gpusim_rl.algorithms.ppo.loss import STATS
from gpusim_rl.core.graphs import fetch
from gpusim_rl.envs.env import Env

NAMES = (*STATS, "learning_rate", "std", "skipped", "bad")  # of PPO's own values
SHARES = {  # the timed parts that make up each share of the log
    "physics": ("physics",),
    "policy": ("act", "settle"),
    "update": ("returns", "minibatches", "normalizers"),
}


def report(
    env: Env, values: Tensor, seconds: Callable[[], dict[str, float]], steps: int
) -> Callable[[], dict[str, float]]:
    """Begin to copy metrics to the host; the function returned waits for them.

    Args:
        env: whose sums since the last report are read and cleared.
        values: PPO's own, as `NAMES` has them.
        seconds: gives the seconds of each timed part.
        steps: control steps of all worlds since the last report.
    """
    names, sums = env.report()
    numbers = fetch(torch.cat([sums, values]))

    def read() -> dict[str, float]:
        row = numbers()
        metrics = env.statistics.means(names, row)
        metrics |= dict(zip(NAMES, row[len(names) :], strict=True))
        return metrics | timing(seconds(), steps)

    return read


def timing(seconds: dict[str, float], steps: int) -> dict[str, float]:
    """Speed [steps/s], and the share of the time of each group of timed parts."""
    total = max(sum(seconds.values()), 1e-9)
    shares = {
        f"share/{share}": sum(seconds.get(part, 0.0) for part in parts) / total
        for share, parts in SHARES.items()
    }
    return {"steps_per_s": steps / total} | shares
