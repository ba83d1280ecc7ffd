"""How far a training is: its time, and whether an evaluation may reach more than the last one."""

import time
from contextlib import contextmanager

from gpusim_rl.config.sections import Config


def number(text: str | None, least: float = 0.0) -> float:
    """A number of at least `least` from a file; `least` if it is none."""
    try:
        return max(least, min(float(text or least), 1e12))
    except ValueError:
        return least


def is_over(cfg: Config, metadata: dict[str, str], iterations: int) -> bool:
    """Whether a training needs no more than the iterations that it and its checkpoint have done."""
    reached = bool(cfg.stop_at) and number(metadata.get("success")) >= cfg.stop_at
    return reached or "done" in metadata or iterations >= cfg.iterations


class Progress:
    """The mean reward of all worlds since the last evaluation, and as it was at that one.

    metadata: of a checkpoint, with what `metadata` returned when it was saved.
    """

    def __init__(self, cfg: Config, metadata: dict[str, str]):
        self.changes = any(key.startswith("task.") for key in cfg.curriculum or {})
        self.every = cfg.eval_every
        self.reward = number(metadata.get("reward"), -1e12)
        self.rows = number(metadata.get("reward_rows"))
        self.judged = number(metadata.get("judged"), -2e12)

    def log(self, row: dict[str, float]) -> None:
        """Take the mean reward of a row of metrics."""
        self.rows += 1
        before = self.reward * (self.rows > 1)
        self.reward = before + (row["reward"] - before) / self.rows

    def begin_evaluation(self) -> float:
        """The mean reward until now, which later evaluations are to exceed; a new mean begins."""
        self.rows = 0
        return self.reward

    def may_reach(self, i: int) -> bool:
        """Whether the evaluation that is due at iteration i may do better than the last one.

        It may if the mean reward is higher. A schedule of the task changes what a reward means, and
        a reward is noisy: so with one no evaluation is left out, and without one each fourth is
        not.
        """
        # an evaluation takes seconds: it is left out where no better score is likely
        return self.changes or not i % (4 * self.every) or self.reward > self.judged

    def metadata(self) -> dict[str, str]:
        """Entries of a checkpoint's metadata."""
        numbers = {"reward": self.reward, "reward_rows": self.rows, "judged": self.judged}
        return {name: str(x) for name, x in numbers.items()}


class Stopwatch:
    """Measures time [s] from its creation on, added to `before`."""

    def __init__(self, before: float = 0.0):
        self.last = time.perf_counter()  # of the last `tick`
        self.start = self.last - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    @contextmanager
    def paused(self):
        """A context whose time does not count."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.start += time.perf_counter() - max(begun, self.last)

    def tick(self) -> None:
        """Note that the program runs. To be called often."""
        self.last = time.perf_counter()

    def skip(self, *_: object) -> None:
        """Do not count the time since the last `tick`: the process was stopped meanwhile.

        Work of that time, an iteration at most, does not count either.
        """
        now = time.perf_counter()
        self.start, self.last = self.start + now - self.last, now
