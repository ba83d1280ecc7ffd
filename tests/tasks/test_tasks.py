"""The contract of every task in tasks/: widths, finite values, names, start states, purity, worlds
for themselves."""

import math
import re
from dataclasses import fields
from functools import cache

import mujoco
import pytest
import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.declarations import Vector
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task, reward_terms
from gpusim_rl.envs.tracing import needs
from gpusim_rl.report.scores import meaning
from tests.worlds import MATRIX, ROOT, copies, differing, make_env, make_task, numbers

B = 8
# docs/<page>.md of the tasks whose page has another name; the first tasks have none with terms
PAGES = {"reach_pose": "reach", "hopper": "gymnasium", "ant": "gymnasium"}
BEYOND = ("hopper", "ant")  # Gymnasium's, whose episodes begin beyond the limits of joints

pytestmark = pytest.mark.parametrize("name, sim", MATRIX)


@cache
def lived(name: str, sim: str) -> Env:
    """An Env some steps into its episodes, so that no reading is at rest. Not to be stepped."""
    env = make_env(name, B, sim=sim)
    g = torch.Generator().manual_seed(0)
    for _ in range(12):
        env.step(torch.randn(B, env.task.action_width, generator=g))
    return env


def outputs(task: Task, s: State, noise: Rng) -> dict[str, Tensor]:
    """All that a task says of a state and of the random numbers, flat."""
    out = {"control": task.control(s), "terminated": task.terminated(s)}
    for method, values in (
        ("start", task.start(B, noise)),
        ("update", task.update(s, noise)),
        ("observe", task.observe(s)),
        ("privileged", task.privileged(s)),
        ("reward", task.reward(s)),
        ("bonus", task.bonus(s)),
        ("measure", task.measure(s)),
    ):
        out |= {f"{method}/{key}": value for key, value in values.items()}
    return out


def test_shapes(name, sim):
    """Methods return B rows of the model's widths, float32; flags are bool, counts int64."""
    env = lived(name, sim)
    task, s, mjm = env.task, env.current_state(), env.task.mjm
    for key, value in outputs(task, s, env.rng).items():
        assert value.shape[0] == B, key
        counts = key in ("start/kind", "start/level")
        flags = key in ("terminated", "start/relevelled")
        want = torch.bool if flags else torch.int64 if counts else torch.float32
        assert value.dtype == want, key
    assert task.control(s).shape == (B, mjm.nu)
    start = task.start(B, env.rng)
    assert start["qpos"].shape == (B, mjm.nq) and start["qvel"].shape == (B, mjm.nv)
    rows = (*reward_terms(task, s).values(), *task.measure(s).values(), task.terminated(s))
    assert all(v.shape == (B,) for v in rows)
    assert all(v.ndim == 2 for v in (*task.observe(s).values(), *task.privileged(s).values()))


def test_finite(name, sim):
    """Everything is finite, along an episode of large random actions and of none."""
    for scale in (0.0, 3.0):
        env, g = make_env(name, B, sim=sim), torch.Generator().manual_seed(1)
        for _ in range(30):
            step = env.step(scale * torch.randn(B, env.task.action_width, generator=g))
            seen = outputs(env.task, env.current_state(), env.rng)
            seen |= dict(
                actor=step.observation["actor"], critic=step.observation["critic"], end=step.end
            )
            for key, value in seen.items():
                assert torch.isfinite(value).all(), key
            assert torch.isfinite(step.reward).all() and not step.fault.any()


def test_names_are_those_of_the_yaml(name, sim):
    """Its keys are settings, its weights the terms, its noise and biases the readings."""
    env, yaml = lived(name, sim), numbers(name)
    s, known = env.current_state(), {f.name for f in fields(env.task)}
    assert {*yaml} <= known | {"name", "weights", "noise"} and yaml["name"] == name
    assert set(reward_terms(env.task, s)) == set(yaml["weights"])
    for names in (yaml["noise"], yaml["randomise"]["bias"]):
        assert set(names) == set(env.readings) | (set(env.task.hide) & set(env.task.measured))
    assert yaml["dropout"] == yaml["history"] == {}
    assert not set(env.task.observe(s)) & set(env.task.privileged(s))


def test_start_and_command_are_valid(name, sim):
    """Starts are unit, within limits, different and not over; commands stay in their ranges."""
    env = make_env(name, 64, sim=sim)
    mjm, start = env.task.mjm, env.task.start(64, env.rng)
    qpos = start["qpos"]
    for joint in range(mjm.njnt):
        kind, at = mjm.jnt_type[joint], mjm.jnt_qposadr[joint]
        if kind in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL):
            at += 3 if kind == mujoco.mjtJoint.mjJNT_FREE else 0
            torch.testing.assert_close(qpos[:, at : at + 4].norm(dim=1), torch.ones(64))
        elif mjm.jnt_limited[joint] and name not in BEYOND:
            low, high = mjm.jnt_range[joint]
            assert ((qpos[:, at] >= low) & (qpos[:, at] <= high)).all(), mjm.joint(joint).name
    assert len(qpos.unique(dim=0)) == 64
    assert not env.task.terminated(env.current_state()).any()
    command = env.task.command
    if command is None:
        return
    drawn, count = env.memory["command"], env.memory["command"].shape[1]
    assert len(command.names) == len(command.units) == len(command.largest) == count
    assert (drawn >= torch.tensor(command.ends(-1))).all() and drawn.any()
    assert (drawn <= torch.tensor(command.ends(1))).all()
    vectors = [part for part in command.parts if isinstance(part, Vector)]
    assert all({*vector.mirrored} <= {*vector.names} for vector in vectors)
    assert len(command.signs(1)) == count


def test_methods_are_pure(name, sim):
    """No method changes state, random numbers or task, and asking again gives the same."""
    env = lived(name, sim)
    task, s = env.task, env.current_state()
    before = s.clone()

    def constants() -> dict[str, Tensor]:
        return {k: v for k, v in (vars(task) | task._nominal).items() if isinstance(v, Tensor)}

    first = outputs(task, s, env.rng)
    kept, held = copies(first), copies(constants())
    block, units = env.rng._words.clone(), env.rng._units.clone()
    second = outputs(task, s, env.rng)
    assert differing(s._tensors, before._tensors) == []
    assert torch.equal(env.rng._words, block) and torch.equal(env.rng._units, units)
    assert differing(held, constants()) == []
    assert differing(second, kept) == [] and differing(second, first) == []


def test_each_world_for_itself(name, sim):
    """Rubbish in the other worlds changes no bit of what a task says of this one."""
    env = lived(name, sim)
    s = env.current_state()
    want = outputs(env.task, s, env.rng)
    for rubbish in (math.nan, 1e9):
        spoiled = s.clone()
        for value in spoiled._tensors.values():
            value[B // 2 :] = rubbish if value.is_floating_point() else 12345
        for key, value in outputs(env.task, spoiled, env.rng).items():
            assert torch.equal(value[: B // 2], want[key][: B // 2]), key


def test_observation_is_measurable(name, sim):
    """What the actor observes, and the controls, follow from what a robot measures and keeps."""
    env = lived(name, sim)
    need = needs(env.task)
    assert {*need.readings} == {*env.readings} <= {*env.task.measured}
    assert need.command == (env.task.command is not None) == ("command" in env.memory)
    widths = {reading: x.shape[1] for reading, x in env.readings.items()}
    assert widths == {reading: env.task.measured[reading] for reading in env.readings}


def test_score(name, sim):
    """Scores are numbers, success in [0, 1]; evaluation runs a converged solver on the CPU."""
    task = make_task(name).evaluation()
    assert (task.mjm.opt.iterations, task.mjm.opt.ls_iterations, task.device) == (100, 50, "cpu")
    env, record = make_env(name, B, sim=sim, stagger=False), {}
    for _ in range(120):
        seen: list[dict[str, Tensor]] = []
        step = env.step(
            torch.zeros(B, task.mjm.nu), on_step=lambda s, seen=seen: seen.append(task.measure(s))
        )
        ends = {"terminated": step.terminated | step.fault, "reward": step.reward}
        for key, value in (seen[0] | ends).items():
            record.setdefault(key, []).append(value)
    scores = task.score({key: torch.stack(values) for key, values in record.items()})
    assert all(v is None or (isinstance(v, float) and math.isfinite(v)) for v in scores.values())
    assert 0 <= scores["success"] <= 1
    assert all(meaning(score, name, {})[1] for score in scores), "a report says what each means"


def test_docstring_is_the_maths(name, sim):
    """A task's docstring says what it is, its reward r = …, and its symbols and terms in tables."""
    env = lived(name, sim)
    text = type(env.task).__doc__ or ""
    assert "r = " in text and "| symbol |" in text
    own = [kind for kind in type(env.task).__mro__ if ".tasks." in kind.__module__]
    named = in_tables("\n".join(kind.__doc__ or "" for kind in own))
    terms = set(reward_terms(env.task, env.current_state()))
    assert terms <= named, f"no table of the docstring has the terms {terms - named}"
    page = ROOT / "docs" / f"{PAGES.get(name, name)}.md"
    if page.exists():
        missing = terms - set(re.findall(r"`(\w+)`", page.read_text()))
        assert not missing, f"{page} has no term {missing}"


def in_tables(text: str) -> set[str]:
    """What stands in backticks in the rows of tables."""
    rows = [line for line in text.splitlines() if line.strip().startswith("|")]
    return set(re.findall(r"`(\w+)`", "\n".join(rows)))
