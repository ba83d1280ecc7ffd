"""One training iteration: a source fills a record, and a learner learns from it."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.algorithms.learner import Learner, RewardModel, Say, Source, Spec
from gpusim_rl.core.graphs import PartTime, capture, fetch
from gpusim_rl.core.metrics import Metric, check_metrics
from gpusim_rl.core.ring import Ring
from gpusim_rl.core.states import Live, check_layout, copy_state, load_state, shared, state_layout
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env
from gpusim_rl.networks.policy import Policy

SHARES = {  # the timed parts that make up each share of the log
    "physics": ("physics",),
    "environment": ("control", "settle"),
    "policy": ("act",),
    "update": ("rewards", "update", "returns", "minibatches", "normalizers"),
    "actors": ("wait",),
    "packets": ("packets",),
}
ELSEWHERE = ("actors", "packets")  # shares of those alone whose worlds are in other processes
METRICS = (
    Metric("steps_per_s", "perf/steps_per_s", "env steps per second"),
    Metric("cores", "perf/cores", "busy cores"),
    Metric("share/*", "perf/share/*"),
    Metric("schedule/*", "schedule/*"),
)


# gives the success; None if it is not known yet, and it is not to be waited for
Evaluation = Callable[[bool], float | None]


class Player:
    """A policy and worlds of its task: what is played, judged and exported."""

    def __init__(self, env: Env, policy: Policy):
        self.env, self.policy = env, policy
        self.iterations = 0  # done, of the training


class Iteration(Player):
    """A source, reward models, a learner and a schedule as one: iterate, report, save, continue.

    Args:
        env: the worlds whose task is learned, though the source's steps may be from elsewhere.
        ring: which the learner is given instead of the source's record, whose steps it takes.
        begins: what is done before the first step, with the record or the ring.
        rewards: reward models, whose rewards are added before the update.
        schedule: changes `numbers` before each iteration.
        numbers: the live numbers that a curriculum or a population may write, by their keys.
        graph: "parts" captures each part, "whole" an iteration in one graph, "off" nothing. The
            physics of a Sim that is not capturable stays outside.
    """

    def __init__(
        self,
        env: Env,
        source: Source,
        learner: Learner,
        spec: Spec,
        *,
        ring: Ring | None = None,
        begins: Sequence[Callable[[Any, Say], None]] = (),
        rewards: Sequence[RewardModel] = (),
        schedule: Curriculum | None = None,
        numbers: dict[str, Tensor] | None = None,
        graph: str,
    ):
        super().__init__(env, learner.policy)
        self.source, self.learner, self.spec, self.ring = source, learner, spec, ring
        self.group, self.timer, self.record = spec.group, spec.timer, ring or source.record
        self.rewards, self.graph, self.begins = rewards, graph, begins
        self.schedule, self.numbers = schedule or Curriculum(), numbers or {}
        # control steps of worlds in an iteration
        self.size = spec.num_steps * spec.num_rows // env.agents
        self.life = 0  # of `spec`, known to the host
        self.logged = 0  # iterations at the last report, known to the host as `iterations` is
        measured = [learner, *rewards, *([ring] if ring else [])]
        made = [x for model in measured for x in model.metrics]
        self.metrics = (*env.statistics.metrics, *METRICS, *made)
        check_metrics(self.metrics)
        self._measured, self._made = measured, [x.key for x in made]
        whole = graph == "whole" and env.sim.capturable
        self._iterate = capture(self.collect_and_update, env.device, on=whole)
        self._count = spec.capture(self.count)
        self._add_rewards = spec.capture(self.add_rewards)
        self._update_rewards = spec.capture(self.update_rewards)
        self._append = spec.capture(self.append)

    def begin(self, say: Say = lambda line: None) -> None:
        """What the algorithm does before the first step. In place."""
        for part in self.begins:
            part(self.record, say)

    def open(self, path: Path) -> None:
        """Tell the reward models the run's directory."""
        for model in self.rewards:
            model.open(path)

    def waits(self) -> str:
        """Why the next iteration cannot begin yet; empty if it can. The same in all processes."""
        if not self.rewards:
            return ""
        lines = (
            [model.waits(self.iterations) for model in self.rewards] if self.group.rank == 0 else []
        )
        return self.group.broadcast(next(filter(None, lines), ""))

    def iteration(self) -> None:
        """Collect and learn. But for `between` of reward models, nothing reads on the host."""
        for model in self.rewards:
            model.between(self.iterations)
        if self.schedule.write(self.numbers, self.env.success, self.iterations):
            self.env.update_observations()
        self.timer.start("iteration" if self.graph == "whole" else "")
        self._iterate()
        self.timer.start("")
        self.iterations += 1

    def collect_and_update(self) -> None:
        """One iteration. In place."""
        self.collect()
        self.update()

    def collect(self) -> None:
        """The steps of an iteration. In place."""
        self.source.collect(self.spec.num_steps)

    def update(self) -> None:
        """Learn from what was collected. In place."""
        self._with_rewards(self._add_rewards)
        self.timer.start("update")
        if self.ring:
            self._append()
        self.learner.update(self.record)
        # after the learner, which learns from what the model paid before it changes
        self._with_rewards(self._update_rewards)
        self.timer.start("")
        self._count()

    def _with_rewards(self, part: Callable[[], None]) -> None:
        if self.rewards:
            self.timer.start("rewards")
            with torch_threads(self.spec.threads):
                part()

    def add_rewards(self) -> None:
        """Let each reward model add to the rewards of the steps just collected. In place."""
        for model in self.rewards:
            model.add_reward(self.source.record)

    def update_rewards(self) -> None:
        """Let each reward model learn from these steps. In place."""
        for model in self.rewards:
            model.update(self.source.record)

    def append(self) -> None:
        """Append these steps to the ring. In place."""
        if self.ring:
            self.ring.write(self.source.record)

    def count(self) -> None:
        """Count the iteration on the device. In place."""
        self.spec.iteration.add_(1)

    def sums(self) -> tuple[list[str], Tensor]:
        """Names and values (n,) of the sums of all worlds since the last report."""
        return self.env.report()

    def report(self) -> Callable[[], dict[str, float]]:
        """Begin to read the means since the last report; the function returned waits for them."""
        names, sums = self.sums()
        scheduled = self.schedule.columns(self.numbers)
        parts = [sums, *(model.measures() for model in self._measured)]
        values = fetch(torch.cat([*parts, *(x[None] for x in scheduled.values())]))
        steps = self.group.size * (self.iterations - self.logged) * self.size
        spent, statistics = self.timer.read(), self.env.statistics
        keys = [*self._made, *scheduled]
        if sum(map(len, parts)) != len(names) + len(self._made):
            raise ValueError("`measures` gives another number of values than `metrics` names")
        self.logged = self.iterations

        def read() -> dict[str, float]:
            row = values()
            numbers = dict(zip(keys, row[len(names) :], strict=True))
            return statistics.means(names, row) | numbers | timing(spent(), steps)

        return read

    def slow_down(self, factor: float) -> None:
        """Multiply the learning rates, after a training went wrong. In place."""
        for rate in self.learner.rates.values():
            rate.mul_(factor)

    def begin_evaluation(self, evaluate: Callable[[Any], float]) -> Evaluation:
        """Let the policy of now be evaluated: here and at once, unless a subclass has a place."""
        success = evaluate(self)
        return lambda wait: success

    def close(self) -> None:
        """End what runs elsewhere for it."""

    def learned(self) -> dict[str, Live]:
        """The live tensors of what is learned, by name: one part of a checkpoint."""
        counts = {"iteration": self.spec.iteration}
        counts |= {"life": self.spec.life} if self.life else {}
        # what no schedule writes anew; a scheduled number follows from the iteration
        free = {key: x for key, x in self.numbers.items() if key not in self.schedule.plan}
        tensors = shared("", counts) | shared("numbers/", free) | self.learner.tensors()
        for model in self.rewards:
            tensors |= model.tensors()
        return tensors

    def held(self) -> dict[str, Live]:
        """The live tensors of the worlds and of the source: the other part of a checkpoint."""
        ring = self.ring.tensors() if self.ring else {}
        return self.env.tensors() | self.source.tensors() | ring

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        return self.held() | self.learned()

    def state(self) -> dict[str, Tensor]:
        """Copies of all that changes, with the worlds of all processes: a checkpoint."""
        return copy_state(self.tensors(), self.group)

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Continue exactly from what `state` returned. In place, or not at all.

        ValueError, which says `where` it was read from, if it does not fit.
        """
        with self.life_of(state):
            live = self.tensors()
            # before anything is written: a state that does not fit changes nothing
            check_layout(state, state_layout(live, self.group), where)
        self.begin_anew()
        learner_names = live.keys() - self.env.tensors().keys()
        load_state({name: live[name] for name in learner_names}, state, self.group)
        self.env.load({name: x for name, x in state.items() if name not in learner_names})
        self.read_counts()

    @contextmanager
    def life_of(self, state: dict[str, Tensor]) -> Generator[None]:
        """A context that has the life of a state; an error in it leaves the one before."""
        before, self.life = self.life, int(state.get("life", 0))
        try:
            yield
        except ValueError:
            self.life = before
            raise

    def begin_anew(self) -> None:
        """Before a state is written: a ring that no checkpoint holds is filled anew. In place."""
        if self.ring and not self.ring.spec.saved:
            self.ring.count.zero_()
            self.begin()

    def read_counts(self) -> None:
        """After a state was written: the host knows its iteration, the device its life."""
        self.spec.life.fill_(self.life)
        self.iterations = self.logged = int(self.spec.iteration)

    def load_learned(self, state: dict[str, Tensor], where: str) -> None:
        """Take what another run of the same learner has learned, of its `state`, and its success.

        Worlds, iteration and seed stay as they are, and the learner draws other numbers from now
        on. In place, or not at all: ValueError, which says `where` it was read from, if it does not
        fit.
        """
        own, live = ("iteration", "life"), shared("env/", {"success": self.env.success})
        for name, x in self.learned().items():  # of env/, a cluster's has sums of its own packets
            if not (x.worlds or name in own or name.startswith("env/")):
                live[name] = x
        taken = {name: x for name, x in state.items() if name in live}
        check_layout(taken, state_layout(live), where)
        load_state(live, taken)
        self.life += 1
        self.spec.life.fill_(self.life)


def timing(spent: dict[str, PartTime], steps: int) -> dict[str, float]:
    """Speed [steps/s], the share of each group of timed parts, and on the CPU the busy cores."""
    total = max(sum(part.wall for part in spent.values()), 1e-9)
    row = {"steps_per_s": steps / total}
    shares = {part: share for share, parts in SHARES.items() for part in parts}
    sums = dict.fromkeys(SHARES, 0.0)
    for part, time in spent.items():
        if part != "iteration":  # what is captured as a whole has no parts
            sums[shares.get(part, "update")] += time.wall  # whatever a learner calls its parts
    named = {x: wall for x, wall in sums.items() if wall or x not in ELSEWHERE}
    row |= {f"share/{share}": wall / total for share, wall in named.items()}
    processor = sum(part.processor for part in spent.values())
    return row | ({"cores": processor / total} if processor else {})
