"""Sums over control steps and episodes, kept on the device until a row of the log reads them."""

import torch
from torch import Tensor

from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.states import Rows
from gpusim_rl.envs.step import StepEnd

METRICS = (
    Metric("reward", "train/reward", "reward of all worlds [1/s]", ".2f"),
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

    terms: names of the reward terms. dt: control period [s]. group: the processes whose sums are
    added.
    """

    metrics = METRICS

    def __init__(
        self,
        terms: list[str],
        worlds: int,
        dt: float,
        device: torch.device,
        group: ProcessGroup,
    ):
        self.terms, self.dt, self.group = terms, dt, group
        self.episode_return = torch.zeros(worlds, device=device)
        # control steps of the episode, since this object was made
        self.lived = torch.zeros(worlds, dtype=torch.int64, device=device)
        self.totals = torch.zeros(len(terms) + len(SUMS), device=device)
        self.term_sums, self.sums = self.totals.split([len(terms), len(SUMS)])
        # means over the last episodes that ended, as last logged
        self._ended = {"return": 0.0, "length": 0.0, "terminated": 0.0}

    def count(self, rows: Rows, terms: Tensor, end: StepEnd) -> Rows:
        """What a control step of each world adds: `statistics/added` (B, R + len(SUMS)); pure.

        With it the new rows of the episodes. terms are weighted (B, R) [1/s].
        """
        done, fault = end.terminated | end.truncated, end.fault
        returns, lived = rows["env/episode_return"] + end.reward, rows["env/lived"] + 1
        flags = (~fault, fault, rows["sim/overflow"], done, end.terminated)
        sums = torch.stack([*(x.float() for x in flags), done * returns, done * lived.float()], 1)
        ended = done | fault
        return {
            "statistics/added": torch.cat([torch.where(fault[:, None], 0.0, terms), sums], 1),
            "env/episode_return": returns.masked_fill(ended, 0.0),
            "env/lived": lived.masked_fill(ended, 0),
        }

    def add(self, added: Tensor) -> None:
        """Add `statistics/added` of all worlds. In place."""
        self.totals += added.sum(0)

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
        # copies, as a sum over processes is written in place
        sums = [self.group.all_reduce(x.clone()) for x in (self.term_sums, self.sums)]
        values = torch.cat([*sums, *means.values()])
        self.totals.zero_()
        return [*(f"reward/{name}" for name in self.terms), *SUMS, *means], values

    def means(self, names: list[str], values: list[float]) -> dict[str, float]:
        """The means of what `take` returned; those of episodes stay until another one ends."""
        sums = dict(zip(names, values, strict=False))
        steps, episodes = max(sums["steps"], 1), sums["episodes"]
        metrics = {
            name: value / steps for name, value in sums.items() if name.startswith("reward/")
        }
        metrics["reward"] = sum(metrics.values())
        if episodes:
            ended = (sums["returns"], sums["lengths"] * self.dt, sums["terminations"])
            self._ended = dict(zip(self._ended, (x / episodes for x in ended), strict=True))
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
