"""One training iteration: worlds fill a record, and a learner learns from it."""

from collections.abc import Callable

import torch
from torch import Tensor

from gpusim_rl.algorithms.collector import Collector
from gpusim_rl.algorithms.learner import Learner
from gpusim_rl.algorithms.timing import row_of_metrics
from gpusim_rl.core.graphs import capture
from gpusim_rl.core.states import Live, check_layout, copy_state, load_state, state_layout
from gpusim_rl.envs.schedule import Curriculum


class Iteration:
    """A collector, a learner and a schedule as one: iterate, report, save and continue.

    Args:
        collector: fills the record that the learner reads.
        learner: what `update`s a policy.
        schedule: the numbers that `__call__` changes before each iteration.
        whole: capture an iteration in one CUDA graph.
    """

    def __init__(
        self, collector: Collector, learner: Learner, schedule: Curriculum, graph: str = "parts"
    ):
        self.collector, self.learner, self.schedule = collector, learner, schedule
        self.env, self.policy, self.phases = collector.env, learner.policy, collector.phases
        self.group, self.graph = self.env.group, graph
        self.size = len(collector.record.rows) * self.env.num_envs
        self.iterations = self.logged = 0  # done; done at the last report
        whole = graph == "whole" and self.env.sim.capturable
        self._collect_and_update = capture(self._both, self.env.device, on=whole)

    def iteration(self) -> None:
        """Collect and learn. Nothing here reads a tensor on the host."""
        self.schedule.write(self, self.iterations)
        self.phases.mark("iteration" if self.graph == "whole" else "")
        self._collect_and_update()
        self.phases.mark("")
        self.iterations += 1

    def _both(self) -> None:
        self.collector.collect()
        self.update()

    def update(self) -> None:
        """Learn from what was collected. In place."""
        self.learner.update(self.phases.mark)

    def scheduled_number(self, key: str) -> Tensor:
        """The live number of a configuration key: the learner's or the Env's."""
        own = key.startswith("algo.")
        return self.learner.numbers[key[5:]] if own else self.env.scheduled_number(key)

    def report(self) -> Callable[[], dict[str, float]]:
        """Start copying the metrics since the last report; the function returned waits for them."""
        scheduled = self.schedule.numbers(self)
        own = self.learner.measures()
        values = torch.cat([own, *(x[None] for x in scheduled.values())])
        steps = self.group.size * (self.iterations - self.logged) * self.size
        names = [*self.learner.metrics, *scheduled]
        read = row_of_metrics(self.env, values, names, self.phases.take(), steps)
        self.logged = self.iterations
        self.learner.clear_measures()
        return read

    def metrics(self) -> dict[str, float]:
        """The metrics since the last report, at once."""
        return self.report()()

    def slow_down(self, factor: float) -> None:
        """Multiply the learning rates. In place."""
        for rate in self.learner.rates:
            rate.mul_(factor)

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        return self.collector.tensors() | self.learner.tensors()

    def state(self) -> dict[str, Tensor]:
        """Copies of all that changes, with the worlds of all processes: a checkpoint."""
        return copy_state(self.tensors(), self.group)

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Continue exactly from what `state` returned, in place; ValueError unless it fits."""
        live = self.tensors()
        check_layout(state, state_layout(live, self.group), where)
        ours = live.keys() - self.env.tensors().keys()
        load_state({name: live[name] for name in ours}, state, self.group)
        self.env.load({name: x for name, x in state.items() if name not in ours})
        self.iterations = self.logged = int(self.learner.iteration_count)
