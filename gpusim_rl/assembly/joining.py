"""An Env, a learner and reward models, joined by a record of control steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gpusim_rl.algorithms.collector import Collector, choose_columns, step_columns
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.learner import (
    Learner,
    LearnerSpec,
    RewardModel,
    RewardSpec,
    Say,
    Source,
    Spec,
)
from gpusim_rl.core import ranges, sections
from gpusim_rl.core.file_keys import Given
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.memory import check_free
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import Column, Columns, Record, row_bytes
from gpusim_rl.core.ring import Ring, RingSpec
from gpusim_rl.core.symmetry import ViewMirrors, view_mirrors
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.dreams import Dreams
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.mirror import derive_flips

# what a learner or a reward model of the user's own may lack, and the type of it
CALLED = dict.fromkeys(("update", "measures", "tensors"), Callable)
BOTH = {"columns": dict, "metrics": tuple} | CALLED
OF_LEARNERS = {"policy": object, "rates": dict} | BOTH
OF_REWARDS = dict.fromkeys(("open", "waits", "between", "add_reward"), Callable) | BOTH
OF_SOURCES = {"record": Record, "collect": Callable, "tensors": Callable}
ENTRIES: dict[str, type[Any]] = {"columns": Column, "metrics": Metric, "rates": Tensor}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a training has beside its Env and its algorithm."""

    num_steps: int  # T, control steps of each world in an iteration
    graph: str  # parts, whole or off
    threads: int  # of an update on the CPU, as `Spec` has them
    fuse: str = "off"
    # numbers of the task and of the settings that change; `changeable` are keys of others
    schedule: Curriculum = field(default_factory=Curriculum)
    changeable: Sequence[str] = ()
    reward: tuple[RewardSpec, Any] | None = None  # a reward model of ours, and its settings
    given: Given = field(default_factory=Given)  # as `Spec` has it
    # instead of a `Collector` of the Env, for as many worlds of this process
    make_source: Callable[[Env, Learner, Record], Source] | None = None
    num_envs: int | None = None
    older_policy: bool = False  # steps may be of an older policy than the one that learns
    iteration: type[Iteration] = Iteration


def assemble(env: Env, algorithm: LearnerSpec[Learner], settings: Any, run: RunSpec) -> Iteration:
    """An Env, a learner and what carries steps from the one to the other.

    ValueError if the algorithm lacks something, or a number cannot change.
    """
    if algorithm.dreams:
        check_dreams(env, run)
    schedule = run.schedule
    schedule.prepare(env.success)
    keys = list(dict.fromkeys([*schedule.plan, *run.changeable]))
    model, numbers = run.reward or (None, None)
    changing = changing_settings("algo", algorithm, settings, schedule, keys, env)
    paid = changing_settings("reward", model, numbers, schedule, keys, env)
    spec = replace(make_spec(env, run), older_policy=run.older_policy)
    base = algorithm.make(spec, replace(settings, **changing))
    check_parts(base, "learner", OF_LEARNERS)
    learner, begins = choose_learner(algorithm, base, spec)
    rewards = own_rewards(algorithm, base, spec)
    if run.reward:
        rewards.append(run.reward[0].make(spec, replace(run.reward[1], **paid), learner))
    columns = dict(learner.columns)
    for model in rewards:
        columns |= model.columns
    if not algorithm.make_source:  # a source of the user's own gives what it likes
        columns = choose_columns(columns, step_columns(env, learner.policy))
    record, ring = make_record(columns, spec, algorithm.ring(settings) if algorithm.ring else None)
    if run.make_source:
        source = run.make_source(env, learner, record)
    elif algorithm.make_source:
        source = algorithm.make_source(env, base, record)
        check_parts(source, "source", OF_SOURCES)
    else:
        source = Collector(
            *(env, learner.policy, record), graph=run.graph, fuse=run.fuse, timer=spec.timer
        )
    live = changing | {name: x for name, x in learner.rates.items() if name in changing}
    live = {f"algo.{x}": live[x] for x in live} | {f"reward.{x}": paid[x] for x in paid}
    live |= {key: env.scheduled_number(key) for key in keys if key not in live}
    more: dict[str, Any] = {"schedule": schedule, "numbers": live, "rewards": rewards, "ring": ring}
    more |= {"begins": begins, "graph": run.graph}
    return run.iteration(env, source, learner, spec, **more)


def check_dreams(env: Env, run: RunSpec) -> None:
    """ValueError if a learner cannot dream of the worlds, or of what it is paid."""
    further = [*env.observer.further]
    reasons = {
        "of one agent, and the worlds have several": env.agents > 1,
        f"of rows alone, and the task has {', '.join(further)}": bool(further),
        "of the task's own reward alone: set reward=none": bool(run.reward),
        "of its own worlds: set cluster=none": bool(run.make_source),
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise ValueError(f"this learner dreams {reason}")


def own_rewards(algorithm: LearnerSpec[Learner], base: Learner, spec: Spec) -> list[RewardModel]:
    """The reward models that an algorithm brings; ValueError if one lacks something."""
    if not algorithm.make_rewards:
        return []
    made = check_type("what SPEC.make_rewards gives", algorithm.make_rewards(spec, base), Sequence)
    for model in made:
        check_parts(model, "reward model", OF_REWARDS)
    return [*made]


def choose_learner(
    algorithm: LearnerSpec[Learner], base: Learner, spec: Spec
) -> tuple[Learner, list[Callable[[Any, Say], None]]]:
    """A learner, or with demos= its clone, and what is done before the first step.

    ValueError if the algorithm has no use for demos=.
    """
    begins: list[Callable[[Any, Say], None]] = []
    if algorithm.begin:
        begins.append(partial(algorithm.begin, base))
    if "demos" not in spec.given or any(x.key == "demos" for x in algorithm.files):
        return base, begins
    if not algorithm.clone:
        raise ValueError(
            f"demos= is for algo=ppo and algo=sac, not for {type(base).__name__}: its SPEC has no "
            "clone, and no file key demos"
        )
    clone = algorithm.clone(base, spec)
    check_parts(clone, "clone", OF_LEARNERS | {"begin": Callable})
    return clone, [*begins, clone.begin]


def check_parts(x: object, what: str, parts: dict[str, Any]) -> None:
    """ValueError that names what an object of the user's own lacks, or what is of a wrong type."""
    name = f"the {what} {type(x).__name__}"
    if missing := [part for part in parts if not hasattr(x, part)]:
        raise ValueError(f"{name} lacks {', '.join(missing)}")
    for part, kind in parts.items():
        values: Any = check_type(f"{name}: {part}", getattr(x, part), kind)
        if entry := ENTRIES.get(part):
            for key in values if kind is dict else range(len(values)):
                check_type(f"{name}: {part}[{key!r}]", values[key], entry)


def check_type(what: str, value: T, kind: Any) -> T:
    """A value that a user's own code gives; ValueError if it is of another type."""
    if not isinstance(value, kind):
        raise ValueError(f"{what} is {type(value).__name__}, expected {kind.__name__}")
    return value


def make_record(columns: Columns, spec: Spec, size: RingSpec | None) -> tuple[Record, Ring | None]:
    """The record of an iteration, of zeros, and the ring that a learner draws from.

    ValueError if the ring is shorter, OutOfMemory if there is no room.
    """
    if size is not None:
        check_type("what SPEC.ring gives", size, RingSpec)
    rows, steps = size.rows if size else 0, spec.num_steps
    if size and rows < steps:
        raise ValueError(f"a ring of {rows} rows is too short for num_steps={steps}")
    what = f"{spec.num_rows} rows × a record of {rows or steps} steps"
    check_free(what, (rows + steps) * spec.num_rows * row_bytes(columns), spec.device)
    record = Record.zeros(columns, steps, spec.num_rows, device=spec.device)
    return record, Ring(columns, size, spec.num_rows, spec.device) if size else None


def make_spec(env: Env, run: RunSpec) -> Spec:
    """The specification of a learner for an Env, or for as many worlds like its."""
    whole = run.graph == "whole" and env.sim.capturable
    count = (run.num_envs or 0) * env.agents
    ours = torch.arange(count, device=env.device) + env.group.rank * count
    worlds = ours if count else env.rng_of_agents.worlds
    return Spec(
        views=env.views,
        action_width=env.task.action_width,
        term_widths=env.observer.view_terms,
        num_rows=len(worlds),
        num_steps=run.num_steps,
        horizon=env.task.horizon,
        dt=env.task.dt,
        worlds=worlds,
        iteration=torch.zeros((), dtype=torch.int64, device=env.device),
        life=torch.zeros(1, dtype=torch.int64, device=env.device),
        seed=env.seed,
        clip=env.task.clip,
        dreams=Dreams(env) if env.agents == 1 else None,
        given=run.given,
        mirrors=partial(find_mirrors, env, env.task.history),
        group=env.group,
        fused=run.fuse != "off",
        captured=run.graph != "off" and not whole,
        threads=run.threads,
        timer=PartTimer(env.device),
    )


def make_settings(algorithm: LearnerSpec[Learner], numbers: dict[str, Any], name: str) -> Any:
    """The settings of a user's own algorithm, of its numbers in conf/algo/<name>.yaml.

    ValueError if one is missing, unknown, out of its range, or has none.
    """
    kind = algorithm.settings
    made = sections.make(kind, numbers, "algo", f"algo/{name}")
    sections.check(made, "algo")
    known = {*sections.limits(kind, "algo"), *(file.key for file in algorithm.files)}
    for key, value in numbers.items():
        values = cast(list[Any], value) if isinstance(value, list) else [value]
        if any(type(x) in (int, float) for x in values) and f"algo.{key}" not in known:
            raise ValueError(f"algo.{key} has no range: {kind.__name__}.{key} = number(…)")
    return made


# Why: docs/decisions/graphs.md
def changing_settings(
    section: str,
    model: LearnerSpec[Learner] | RewardSpec | None,
    settings: Any,
    schedule: Curriculum,
    keys: list[str],
    env: Env,
) -> dict[str, Tensor]:
    """The first values of those settings that keys name, each a tensor ().

    ValueError if a number cannot change, or begins out of its range.

    section: algo, whose settings are a learner's, or reward, whose are a reward model's.
    """
    start, plan, can = f"{section}.", schedule.plan, model.changeable if model else ()
    names = [key.removeprefix(start) for key in keys if key.startswith(start)]
    for name in names:
        if name not in can:
            choices = ", ".join(f"{start}{x}" for x in can) or "none"
            raise ValueError(f"curriculum: {start}{name} cannot be scheduled: choose of {choices}")
    first = {
        x: plan[start + x]["from"] if start + x in plan else getattr(settings, x) for x in names
    }
    ranges.check(first, section, sections.limits(settings, section) if first else {})
    return {key: env.success.new_tensor(value) for key, value in first.items()}


def find_mirrors(env: Env, history: dict[str, int]) -> ViewMirrors | None:
    """The mirrors of observations, with so many steps of each term, and of the action.

    None for a task without a mirror image.
    """
    task = env.task
    flips = derive_flips(task) if task.mirror else None
    return view_mirrors(flips, env.term_widths, history) if flips else None
