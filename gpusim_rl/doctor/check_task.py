"""mode=check of play.py: zero and random actions in a task, and what is found wrong with it."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import mujoco

from gpusim_rl.assembly.environment import build_env
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.core.waiting import waiting
from gpusim_rl.deploy.describe import describe_command
from gpusim_rl.doctor import findings
from gpusim_rl.doctor.findings import Finding
from gpusim_rl.doctor.living import living
from gpusim_rl.doctor.samples import Samples, sample
from gpusim_rl.envs.check_methods import methods_named
from gpusim_rl.envs.command_columns import can_show, place_target
from gpusim_rl.envs.env import Env
from gpusim_rl.robots.models import AUTORESET, RESETS, find_mjcf, find_own_mjcf

STEPS, WORLDS = 1000, 64  # control steps; worlds with zero actions, and as many with random ones
# Of sim=warp beside sim=native: on a CPU it is ten times slower, and there to be compared.
COMPARED_STEPS, COMPARED_WORLDS = 50, 8

Say = Callable[[str], None]


def check_task(
    configs: Mapping[str, Config], say: Say, steps: int = STEPS, worlds: int = WORLDS
) -> list[Finding]:
    """What is wrong with a task, in every simulator; what is certain comes first.

    Args:
        configs: simulator → the configuration of a training with it. The first one is checked
            whole; the others are compared to it in fewer steps.
        say: takes lines of progress, and what chance scores.
        steps, worlds: control steps; worlds with zero actions, and as many with random ones.
    """
    first, results = next(iter(configs)), dict[str, Finding]()
    reference: Any = None  # the samples of the first simulator
    for name, cfg in configs.items():
        n, length, beside = worlds, steps, name != first
        if beside:
            n, length = min(n, COMPARED_WORLDS), min(length, COMPARED_STEPS)
        try:
            with methods_named(), torch_threads(cfg.threads or 1):
                with waiting(f"sim={name}: building {2 * n} worlds", say):
                    env = build_env(cfg, 2 * n, stagger=False)
                x = sample(env, length, first_std(cfg), f"sim={name}: {length} steps", say)
                weights, bonus = cfg.task.weights, {*env.task.bonus(env.current_state())}
                rows = findings.of_samples(env.task, x, env.current_state(), bonus, weights)
                if beside:
                    rows = [row for row in rows if row.certain]  # its time is short
                    rows += findings.disagreement(env.task, reference, x)
                else:
                    rows, reference = rows + of_task(cfg, env, x, say), x
        except (ValueError, OSError) as error:
            rows = [Finding(f"failed {error}", errors.reason(error), certain=True)]
            if not beside:
                return rows  # it would be said again of every simulator
        for row in rows:
            only = f" (sim={name} alone)" if beside and row.key != "simulators" else ""
            results.setdefault(row.key, Finding(row.key, row.text + only, row.certain))
    return sorted(results.values(), key=lambda row: not row.certain)


def first_std(cfg: Config) -> float:
    """The standard deviation of an untrained policy's actions."""
    std, bound = (cfg.plain["algo"].get(key, 1.0) for key in ("std", "bound"))
    return float(std * bound) if isinstance(std, int | float) else 1.0


def of_task(cfg: Config, env: Env, x: Samples, say: Say) -> list[Finding]:
    """Findings that one simulator is enough for: model, discount, and what chance scores."""
    gamma: Any = cfg.plain["algo"].get("gamma")
    rows = [*autoreset(cfg), *hidden_command(env), *findings.discount(env.task, gamma)]
    if x.valid.any() and not x.wrong:
        half = x.action.shape[1] // 2
        zero, wrong = findings.by_chance(env.task, x, slice(0, half))
        random, _ = findings.by_chance(env.task, x, slice(half, None))
        say(f"zero actions: {zero}")
        say(f"random actions: {random}")
        rows += [Finding("score", wrong, certain=True)] if wrong else []
        rows += findings.chance(zero, random)
        if env.task.base and env.agents == 1 and gamma is not None:
            rows += living(env, first_std(cfg), gamma)
    return rows


def autoreset(cfg: Config) -> list[Finding]:
    """A finding if the task's file lets MuJoCo reset worlds whose state is not finite."""
    if cfg.robot.values["mjcf"] is not None:
        return []  # a robot's file is no task's
    file = find_mjcf(find_own_mjcf(cfg.task.numbers["mjcf"], cfg.task_code))
    if mujoco.MjSpec.from_file(str(file)).option.disableflags & AUTORESET:
        return []
    return [Finding("autoreset", f"{file.name}: {RESETS}")]


def hidden_command(env: Env) -> list[Finding]:
    """A finding if no film can show the command; else it is placed as in a first frame."""
    description, model = describe_command(env.task), copy.copy(env.task.mjm)
    if "shown_by" not in description:
        return []
    if not can_show(model, name := description["shown_by"]):
        text = f"the command is shown by the body {name!r}, which no film can move: it must lie in"
        return [Finding("shown_by", f"{text} the worldbody, without a joint or mocap")]
    place_target(model, description, env.memory["command"][0].cpu().numpy())
    return []
