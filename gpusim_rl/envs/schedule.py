"""Writes the numbers of a curriculum while a policy is trained."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from gpusim_rl.envs.curriculum import NEAR, Plan, config_at
from gpusim_rl.envs.task import Task

SHARE = 0.5  # of an evaluation in the success that schedules follow


class Curriculum:
    """Writes the numbers of a plan into a PPO and its Env, in place, between two iterations.

    Schedules `by: success` follow a mean of the evaluations, `Env.success`, which begins at 0. Each
    evaluation moves it half of the way to what was measured with `task_now`. It settles where the
    success equals the mean.
    """

    def __init__(self, plan: Plan | None = None):
        self.plan = plan or {}
        self._ends: dict[str, tuple[Any, Any]] = {}

    @property
    def needs_evaluation(self) -> bool:
        """Whether a schedule follows the success of evaluations."""
        return any(entry["by"] == "success" for entry in self.plan.values())

    def follow(self, success: float, mean: Tensor) -> None:
        """Move the mean () of evaluations towards the success of a new one. In place."""
        mean += SHARE * (success - mean)
        mean.masked_fill_(mean < NEAR, 0.0)  # half of half of a number is never 0

    def is_over(self, mean: float) -> bool:
        """Whether every schedule by success is at its end where the evaluations have this mean."""
        return all(mean >= x["stop"] - NEAR for x in self.plan.values() if x["by"] == "success")

    def task_now(self, task: Task, cfg: dict[str, Any], mean: float) -> tuple[Task, dict[str, Any]]:
        """A task, and its section of a configuration, with numbers by success as they are now.

        Numbers by iteration are at their ends. No file is read again.
        """
        section = config_at(self.plan, cfg, {"success": mean})["task"]
        names = [key.removeprefix("task.") for key in self.plan if key.startswith("task.")]
        own = {name: section[name] for name in names if "." not in name}
        own = {name: tuple(x) if isinstance(x, list) else x for name, x in own.items()}
        return replace(task, randomise=section["randomise"], **own), section

    def set_first_values(self, task: Task) -> None:
        """Give a task the numbers with which its first worlds start.

        Raises:
            ValueError: a number cannot be scheduled, or begins out of its range.
        """
        for key, entry in self.plan.items():
            section, _, rest = key.partition(".")
            if rest.startswith("randomise."):
                name, _, which = rest.removeprefix("randomise.").rpartition(".")
                if name not in task.randomization.entries:
                    raise ValueError(
                        f"curriculum: {key}: cannot be scheduled, "
                        "since this actuator has learned its gains"
                    )
                if which == "low":
                    task.randomization.check_low(name, entry["from"])
                task.randomization.scheduled_number(name, which).fill_(entry["from"])
            elif section == "task" and "." not in rest:
                first, last = (
                    tuple(x) if isinstance(x, list) else x for x in (entry["from"], entry["to"])
                )
                place = task.scheduled_number(rest)
                now = getattr(task, rest)
                if now != last:
                    raise ValueError(f"curriculum: {key} ends at {last}, but this robot has {now}")
                replace(task, **{rest: first})  # its constructor checks it
                place.copy_(task.tensor(first))

    def prepare(self, cfg: Any, tensor: Callable[[Any], Any]) -> dict[str, Any]:
        """Keep what `write` reads, and return the first values of PPO's settings, as tensors ().

        `tensor` makes a tensor of a number or a list, on PPO's device. Raises ValueError if a
        setting begins out of its range.
        """
        self._ends = {
            key: (tensor(entry["from"]), tensor(entry["to"])) for key, entry in self.plan.items()
        }
        begin = {
            key[5:]: entry["from"] for key, entry in self.plan.items() if key.startswith("algo.")
        }
        replace(cfg, **begin)  # its constructor checks them
        return {name: tensor(value) for name, value in begin.items()}

    def write(self, ppo: Any, iteration: int) -> None:
        """Write the numbers for an iteration, counted from 0. It reads no tensor on the host."""
        for key, entry in self.plan.items():
            place = ppo.scheduled_number(key)
            now = ppo.env.success
            if entry["by"] == "iteration":
                now = now.new_full((), iteration)
            first, last = self._ends[key]
            done = ((now - entry["start"]) / (entry["stop"] - entry["start"])).clamp(0, 1)
            place.copy_((1 - done) * first + done * last)
        if any(
            key.startswith("task.noise.") or (key.startswith("task.") and key.count(".") == 1)
            for key in self.plan
        ):
            # The critic may observe a number, and a run that is loaded here observes it anew.
            ppo.env.update_observations()

    def numbers(self, ppo: Any) -> dict[str, Tensor]:
        """What is scheduled as it is now: `schedule/KEY` → (), or `schedule/KEY.i` for a list."""
        columns = {}
        for key, entry in self.plan.items():
            place = ppo.scheduled_number(key).flatten()
            if isinstance(entry["to"], list):
                columns |= {f"schedule/{key}.{i}": x for i, x in enumerate(place)}
            else:  # the noise of a reading is one number in each of its columns
                columns[f"schedule/{key}"] = place[0]
        return columns
