"""An Env, a learner and reward models, joined by a record of control steps."""

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.algorithms.cloning.cloning import Cloning
from gpusim_rl.algorithms.collector import Collector, choose_columns, step_columns
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.learner import RewardModel, Source, Spec
from gpusim_rl.core import ranges
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.memory import check_free
from gpusim_rl.core.ranges import Range
from gpusim_rl.core.record import Record, row_bytes
from gpusim_rl.core.sections import arguments, limits
from gpusim_rl.core.symmetry import ViewMirrors, view_mirrors
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.runs.demonstrations import Demonstrations

# what a learner or a reward model of the user's own may lack
BOTH = ("columns", "metrics", "update", "measures", "tensors")
OF_LEARNERS, OF_REWARDS = ("policy", "length", "rates", *BOTH), ("between", "add_reward", *BOTH)


def join(
    env: Env,
    kind: Any,
    settings: Any,
    *,
    num_steps: int,
    schedule: Curriculum | None = None,
    changeable: Sequence[str] = (),
    reward: tuple[Any, Any, dict[str, Any]] | None = None,
    graph: str,
    threads: int,
    fuse: str = "off",
    make_source: Callable[..., Source] | None = None,
    make_rewards: Callable[[Spec], Sequence[RewardModel]] | None = None,
    make_teacher: Callable[[Spec], Any] | None = None,
    demos: tuple[Demonstrations, Any] | None = None,
    num_envs: int | None = None,
    older_policy: bool = False,
    kind_of_iteration: type[Iteration] = Iteration,
) -> Iteration:
    """An Env, a learner and what carries steps from the one to the other.

    ValueError if a number is wrong, or cannot change.

    Args:
        kind: the class of the learner; settings: its `Settings`, or its numbers by name.
        num_steps: T, control steps of each world in an iteration.
        schedule: numbers of the task and of the settings that change; changeable: keys of others.
        reward: the class of a reward model of ours, its `Settings`, and its other arguments.
        graph: parts, whole or off; threads: of an update on the CPU, as `Spec` has them.
        make_source: (env, learner, record) → what fills the record; a `Collector` unless given.
        make_rewards: spec → reward models, which add to the reward before the update.
        make_teacher: spec → the actor that the learner imitates.
        demos: with which the learner begins, as a clone or in its ring; and how to clone.
        num_envs: worlds of this process's record, if others than `env` are stepped.
        older_policy: steps may be of an older policy than the one that learns.
    """
    schedule = schedule or Curriculum()
    schedule.prepare(env.success)
    keys = list(dict.fromkeys([*schedule.plan, *changeable]))
    settings, allowed = check_settings(kind, settings)
    changing = changing_settings("algo", kind, settings, allowed, schedule, keys, env)
    model, numbers, shown = reward or (None, None, {})
    paid = changing_settings("reward", model, numbers or {}, {}, schedule, keys, env)
    spec = replace(make_spec(env, num_steps, graph, threads, num_envs), older_policy=older_policy)
    if make_teacher:
        spec = replace(spec, teacher=make_teacher(spec))
    settings = settings | changing if isinstance(settings, dict) else replace(settings, **changing)
    learner = make_learner(kind, spec, settings, demos)
    rewards = [*make_rewards(spec)] if make_rewards else []
    for x in rewards:
        check_parts(x, "reward model", OF_REWARDS)
    rewards += [model(spec, replace(numbers, **paid), **shown)] if model and numbers else []
    ring = learner.length != num_steps
    if rewards and (learner.length < num_steps or (ring and make_source)):
        raise ValueError(f"reward models need a record of {num_steps} steps, not {learner.length}")
    known = not make_source or bool(num_envs)  # a source of the user's own gives what it likes
    record = make_record(env, learner, rewards, spec.num_envs, known)
    if make_source:
        source = make_source(env, learner, record)
    else:
        options = {
            "graph": graph,
            "fuse": fuse,
            "timer": spec.timer,
            "ring": ring and getattr(learner, "keeps_record", True),
            "newest": num_steps if rewards and ring else 0,
        }
        source = Collector(env, learner.policy, record, **options)
        if hasattr(learner, "begin_ring"):
            source.row.fill_(learner.begin_ring(record))
    live = changing | {name: x for name, x in learner.rates.items() if name in changing}
    registry = {f"algo.{x}": live[x] for x in live} | {f"reward.{x}": paid[x] for x in paid}
    registry |= {key: env.scheduled_number(key) for key in keys if key not in registry}
    more = {"schedule": schedule, "numbers": registry, "rewards": rewards, "graph": graph}
    return kind_of_iteration(env, source, learner, spec, **more)


def make_learner(
    kind: Any, spec: Spec, settings: Any, demos: tuple[Demonstrations, Any] | None
) -> Any:
    """A learner with its demonstrations; ValueError names what one of the user's own lacks."""
    learner = kind(spec, **settings) if isinstance(settings, dict) else kind(spec, settings)
    check_parts(learner, "learner", OF_LEARNERS)
    if demos and not hasattr(learner, "begin_ring"):
        return Cloning(learner, *demos, spec)
    if demos:
        learner.demos, _ = demos
    return learner


def check_parts(x: Any, what: str, names: Sequence[str]) -> None:
    """ValueError that names what an object of the user's own lacks."""
    if missing := [name for name in names if not hasattr(x, name)]:
        raise ValueError(f"the {what} {type(x).__name__} lacks {', '.join(missing)}")


def make_record(env: Env, learner: Any, rewards: list[Any], worlds: int, known: bool) -> Record:
    """The record that a learner and reward models learn from, of zeros.

    ValueError if no control step gives a column, OutOfMemory if there is no room.

    known: its columns are those of a control step. A source of the user's own gives others.
    """
    columns = dict(learner.columns)
    for model in rewards:
        columns |= model.columns
    if known:
        columns = choose_columns(columns, step_columns(env.dims, learner.policy))
    what = f"num_envs={worlds} × a record of {learner.length} steps"
    check_free(what, learner.length * worlds * row_bytes(columns), env.device)
    return Record.zeros(columns, learner.length, worlds, device=env.device)


def make_spec(
    env: Env, num_steps: int, graph: str, threads: int, num_envs: int | None = None
) -> Spec:
    """The specification of a learner for an Env, or for as many worlds like its."""
    whole = graph == "whole" and env.sim.capturable
    ours = torch.arange(num_envs or 0, device=env.device) + env.group.rank * (num_envs or 0)
    worlds = ours if num_envs else env.rng.worlds
    return Spec(
        dims=env.dims,
        term_widths=env.observer.view_terms,
        num_envs=len(worlds),
        num_steps=num_steps,
        horizon=env.task.horizon,
        dt=env.task.dt,
        worlds=worlds,
        iteration=torch.zeros((), dtype=torch.int64, device=env.device),
        life=torch.zeros(1, dtype=torch.int64, device=env.device),
        seed=env.seed,
        clip=env.task.clip,
        mirrors=partial(find_mirrors, env, env.task.history),
        group=env.group,
        captured=graph != "off" and not whole,
        threads=threads,
        timer=PartTimer(env.device),
    )


def check_settings(kind: Any, settings: Any) -> tuple[Any, dict[str, Range]]:
    """The settings that a learner takes, and key → what each of its numbers may be.

    Numbers by name, which are those of an algorithm of the user's own, are checked here: ValueError
    if one is missing, unknown or out of its range.
    """
    allowed = {f"algo.{key}": entry for key, entry in getattr(kind, "ranges", {}).items()}
    if isinstance(settings, dict):
        takes = getattr(kind, "Settings", kind)
        arguments(takes, settings, "algo", f"algo/{kind.__module__.rpartition('.')[2]}")
        ranges.check(settings, "algo", allowed)
        settings = takes(**settings) if takes is not kind else settings
    if is_dataclass(settings):
        allowed |= limits(settings, "algo")
    return settings, allowed


# Why: docs/decisions/graphs.md
def changing_settings(
    section: str,
    kind: Any,
    settings: Any,
    allowed: dict[str, Range],
    schedule: Curriculum,
    keys: list[str],
    env: Env,
) -> dict[str, Tensor]:
    """The first values of those settings that keys name, each a tensor ().

    ValueError if a number cannot change, or begins out of its range.

    section: algo, whose settings are a learner's, or reward, whose are a reward model's.
    """
    now = settings if isinstance(settings, dict) else vars(settings)
    start = f"{section}."
    names = [key.removeprefix(start) for key in keys if key.startswith(start)]
    can = getattr(kind, "changeable", ())
    for name in names:
        if name not in can:
            choices = ", ".join(f"{start}{x}" for x in can) or "none"
            raise ValueError(f"curriculum: {start}{name} cannot be scheduled: choose of {choices}")
    plan = schedule.plan
    first = {x: plan[start + x]["from"] if start + x in plan else now[x] for x in names}
    ranges.check(first, section, allowed)
    return {key: env.success.new_tensor(value) for key, value in first.items()}


def find_mirrors(env: Env, history: dict[str, int]) -> ViewMirrors | None:
    """The mirrors of observations, with so many steps of each term, and of the action.

    None for a task without a mirror image.
    """
    task = env.task
    flips = derive_flips(task) if task.mirror else None
    return view_mirrors(flips, env.term_widths, history) if flips else None
