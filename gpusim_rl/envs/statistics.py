"""Sums over control steps and episodes, kept on the device until a row of the log reads them."""

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.graphs import is_empty_on_host
from gpusim_rl.core.metrics import Metric

METRICS = (
    Metric("return", "train/return", "return of an episode", ".2f", "return"),
    Metric("length", "train/episode_length", "length of an episode [s]", ".1f", "episode [s]"),
    Metric("terminated", "train/terminated", "share of episodes that the task ended", ".3f"),
    Metric("fault", "train/faults", "steps with a fault", ".2g", "faults"),
    Metric("overflow", "train/overflows", "steps beyond a capacity", ".2g"),
    Metric("reward/*", "reward/*", "reward term", "+.3f"),
    Metric("measure/*", "measure/*", "measure", ".3f"),
)
SUMS = ("steps", "faults", "overflows", "episodes", "terminations", "returns", "lengths")


class Statistics:
    """Means over B worlds for the log. A step with a fault is counted, but is in no mean.

    Args:
        terms: names of the reward terms.
        worlds: B.
        dt: control period [s].
        group: the processes whose sums are added.
    """

    metrics = METRICS

    def __init__(
        self,
        terms: list[str],
        worlds: int,
        dt: float,
        device: torch.device,
        group: ProcessGroup = SINGLE,
    ):
        self.terms, self.dt, self.group = terms, dt, group
        self.episode_return = torch.zeros(worlds, device=device)
        # control steps of the episode, since this object was made
        self.lived = torch.zeros(worlds, dtype=torch.int64, device=device)
        self.term_sums = torch.zeros(len(terms), device=device)
        self.sums = torch.zeros(len(SUMS), device=device)
        # means over the last episodes that ended, as last logged
        self._ended = {"return": 0.0, "length": 0.0, "terminated": 0.0}

    def add(
        self,
        terms: Tensor,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        fault: Tensor,
        overflow: Tensor,
    ) -> None:
        """One control step: weighted terms (B, R) [1/s], reward and the rest (B,). In place."""
        done = terminated | truncated
        self.episode_return += reward
        self.lived += 1
        self.term_sums += torch.where(fault[:, None], 0.0, terms).sum(0)
        flags = torch.stack([~fault, fault, overflow, done, terminated])
        self.sums[: len(flags)] += flags.sum(1)
        ended = done | fault
        if is_empty_on_host(ended):
            return
        sums = torch.stack([done * self.episode_return, (done * self.lived).float()])
        self.sums[len(flags) :] += sums.sum(1)
        self.episode_return.masked_fill_(ended, 0.0)
        self.lived.masked_fill_(ended, 0)

    def clear_overflows(self) -> None:
        """Set the count of steps that went over a capacity to 0. In place."""
        self.sums[SUMS.index("overflows")].zero_()

    def restart(self) -> None:
        """Every world begins an episode. In place."""
        self.episode_return.zero_()
        self.lived.zero_()

    def take(self, measures: dict[str, Tensor]) -> tuple[list[str], Tensor]:
        """Names and values (n,) of the sums, which it clears, and of the means of measures (B,)."""
        means = {
            f"measure/{name}": self.group.all_reduce(value.mean()[None]) / self.group.size
            for name, value in measures.items()
        }
        values = torch.cat(
            [
                # a copy, as the sum over processes is written in place
                self.group.all_reduce(self.term_sums.clone()),
                self.group.all_reduce(self.sums.clone()),
                *means.values(),
            ]
        )
        self.term_sums.zero_()
        self.sums.zero_()
        return [*(f"reward/{name}" for name in self.terms), *SUMS, *means], values

    def means(self, names: list[str], values: list[float]) -> dict[str, float]:
        """The means of what `take` returned; those of episodes stay until another one ends."""
        sums = dict(zip(names, values, strict=False))
        steps, episodes = max(sums["steps"], 1), sums["episodes"]
        metrics = {
            name: value / steps for name, value in sums.items() if name.startswith("reward/")
        }
        if episodes:
            sums_of_episodes = (sums["returns"], sums["lengths"] * self.dt, sums["terminations"])
            self._ended = dict(
                zip(self._ended, (value / episodes for value in sums_of_episodes), strict=True)
            )
        metrics |= self._ended | {"fault": sums["faults"], "overflow": sums["overflows"]}
        return metrics | {
            name: value for name, value in sums.items() if name.startswith("measure/")
        }

    def restore_means(self, row: dict[str, float]) -> None:
        """Take the means of the last episodes that ended from a row that was logged."""
        self._ended = {name: row.get(name, value) for name, value in self._ended.items()}

    def sums_by_name(self) -> dict[str, Tensor]:
        """The live sums over the worlds."""
        return {"term_sums": self.term_sums, "sums": self.sums}

    def episodes_by_name(self) -> dict[str, Tensor]:
        """The live tensors (B,) of the episodes that go on."""
        return {"lived": self.lived, "episode_return": self.episode_return}
