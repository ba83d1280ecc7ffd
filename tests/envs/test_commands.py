"""Commands about a center and of rotations, bonuses, and targets that actions move."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.core.maths import leaning_rotation, rotate, yaw
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.schema import problems
from gpusim_rl.deploy.describe import describe_command
from gpusim_rl.envs.command_columns import check_command, plain_columns, rotations
from gpusim_rl.envs.declarations import Command, Rotation, Vector, check_shown_by
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task, reward_terms
from gpusim_rl.tasks.common.actions import integrated, relative
from gpusim_rl.viewer.window import tour
from gpusim_rl.web.controls import numbers
from tests.worlds import ROOT, make_env, make_sim_of, make_task

DOWN = (0.0, 1.0, 0.0, 0.0)  # turned upside down about x
POINT = Vector(
    names=("x", "y", "z"),
    units="m",
    largest=(0.1, 0.2, 0.3),
    center=(0.5, 0.0, 0.4),
    mirrored=("y",),
)
TURN = Rotation(lean=0.5, center=DOWN)
POSE = Command(parts=(POINT, TURN))


def altered(**members) -> Task:
    """The cartpole with other methods or properties."""
    task = make_task("cartpole")
    arguments = {f.name: getattr(task, f.name) for f in fields(task)}
    return type("Altered", (type(task),), members)(**arguments)


def drawn(command: Command, n: int = 4096) -> torch.Tensor:
    """(n, …) commands as a task draws them."""
    return altered(command=command).draw_command(Rng(3, torch.arange(n)))


def test_a_share_of_the_commands_is_at_the_ends():
    """Each number is at either end of its range in its half of the share, and uniform else."""
    task = altered(command=Command(parts=(POINT,)))
    task.share_at_ends = 0.4
    x = task.draw_command(Rng(3, torch.arange(20_000)))
    low, high = (torch.tensor(POINT.ends(sign)) for sign in (-1, 1))
    assert ((x >= low - 1e-6) & (x <= high + 1e-6)).all()
    for end in (low, high):
        share = ((x - end).abs() < 1e-6).double().mean(0)
        torch.testing.assert_close(share, torch.full((3,), 0.2).double(), atol=0.01, rtol=0)
    inner = (x - low) / (high - low)
    inner = inner[((inner > 1e-4) & (inner < 1 - 1e-4)).all(1)]
    torch.testing.assert_close(inner.var(0), torch.full((3,), 1 / 12), atol=0.004, rtol=0)


def test_a_center_moves_the_ranges():
    """Positions are uniform about the center, and its ranges are those that are described."""
    position = drawn(POSE)[:, :3]
    low, high = (torch.tensor(ends[:3]) for ends in (POSE.ends(-1), POSE.ends(1)))
    assert low.tolist() == pytest.approx([0.4, -0.2, 0.1])
    assert high.tolist() == pytest.approx([0.6, 0.2, 0.7])
    share = (position - low) / (high - low)
    assert ((share >= 0) & (share <= 1)).all()
    torch.testing.assert_close(share.mean(0), torch.full((3,), 0.5), atol=0.02, rtol=0)
    torch.testing.assert_close(share.var(0), torch.full((3,), 1 / 12), atol=0.004, rtol=0)


def test_rotations_turn_as_far_as_they_may():
    """With a spin of 0.6 rad the turn about z is uniform in ±0.6; half a turn is all of it."""
    unit = torch.rand(4000, 3, generator=torch.Generator().manual_seed(0))
    turned = yaw(leaning_rotation(unit, 0.0, 0.6))
    assert turned.abs().max().item() == pytest.approx(0.6, abs=2e-3)
    assert turned.abs().mean().item() == pytest.approx(0.3, abs=0.01)
    assert abs(turned.mean().item()) < 0.01
    assert torch.equal(leaning_rotation(unit, 0.4, 3.1416), leaning_rotation(unit, 0.4))


def test_rotations_lean_uniformly():
    """They are unit quaternions whose z is uniform on the cap about the center's z."""
    turn = drawn(POSE)[:, 3:]
    torch.testing.assert_close(turn.norm(dim=1), torch.ones(len(turn)))
    z = rotate(turn, torch.tensor([0.0, 0.0, 1.0]).expand(len(turn), 3))
    lean = torch.acos((-z[:, 2]).clamp(-1, 1))  # of the center, z points down
    assert 0.49 < lean.max() <= 0.5 + 1e-5
    height = (1 + z[:, 2]) / (1 - math.cos(0.5))  # uniform in [0, 1] on a sphere's cap
    assert height.mean().item() == pytest.approx(0.5, abs=0.02)
    assert height.var().item() == pytest.approx(1 / 12, abs=0.004)


def test_the_widest_cap_is_all_rotations():
    """With a lean of π the angle's density is (1 - cos θ)/π: E cos θ = -1/2, E cos² θ = 1/2."""
    unit = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    angle = 2 * torch.acos(leaning_rotation(unit, math.pi)[:, 0].abs().clamp(max=1))
    assert angle.cos().mean().item() == pytest.approx(-0.5, abs=0.015)
    assert (angle.cos() ** 2).mean().item() == pytest.approx(0.5, abs=0.015)


def test_a_bonus_is_an_amount_of_one_step():
    """The reward of a step is dt times the rates plus the bonuses, whatever dt is."""
    plain = make_env("cartpole", 64)
    task = altered(bonus=lambda self, s: dict(right=(s.qpos[:, 0] > 0).float()))
    weights = {name: 0.0 for name in reward_terms(plain.task, plain.current_state())}
    env = Env(task, make_sim_of(task, 64), seed=1, weights=weights | {"right": 3.0}, noise={})
    step = env.step(torch.zeros(64, 1))
    right = env.sim.qpos[:, 0] > 0
    assert right.any() and not right.all() and not step.truncated.any()
    torch.testing.assert_close(step.reward, 3.0 * right.float())


def test_reward_and_bonus_do_not_share_a_name():
    """A term of both is refused by its name."""
    task = altered(bonus=lambda self, s: dict(upright=s.qpos[:, 0]))
    with pytest.raises(ValueError, match="reward and bonus both have a term 'upright'"):
        reward_terms(task, make_env("cartpole", 2).current_state())


def test_targets_that_actions_move():
    """A step from the joints, or step by step and not far ahead of them, within the limits."""
    limits = torch.tensor([[-1.0, -1.0], [1.0, torch.inf]])
    target = relative(torch.tensor([[0.9, 5.0]]), torch.tensor([[0.3, 0.3]]), limits)
    torch.testing.assert_close(target, torch.tensor([[1.0, 5.3]]))
    limits = torch.tensor([[-1.0] * 3, [1.0] * 3])
    target, step = torch.tensor([[0.0, 0.95, 0.0]]), torch.tensor([[0.1, 0.1, -0.1]])
    joint = torch.tensor([[0.0, 0.9, 0.5]])
    want = torch.tensor([[0.1, 1.0, 0.3]])  # free; at its limit; 0.2 behind the joint at most
    torch.testing.assert_close(integrated(target, step, limits, joint, 0.2), want)


def test_joint_limits_are_those_of_the_actuated_joints():
    """In the order of ctrl, infinite where a joint has none."""
    task = make_task("cartpole")
    torch.testing.assert_close(task.joint_limits, torch.tensor([[-1.8], [1.8]]))


@pytest.mark.parametrize(
    "part, wrong, says",
    [
        (POINT, dict(units=("m",)), "3 names, but not as many of `units`"),
        (POINT, dict(center=(0.5,)), "not as many of `center`"),
        (POINT, dict(largest=(0.1,) * 7), "not as many of `largest`"),
        (TURN, dict(center=(0.0, 2.0, 0.0, 0.0)), "is no unit quaternion"),
        (TURN, dict(lean=6.0), "lean=6.0: expected 0 to pi rad"),
    ],
)
def test_a_wrong_command_is_refused(part, wrong, says):
    """Numbers that do not fit together, and rotations that are none, are one line."""
    with pytest.raises(ValueError, match=says):
        replace(part, **wrong)


def test_numbers_beside_parts_are_refused():
    """The line shows how a command of parts is declared."""
    with pytest.raises(ValueError, match=r"^Command\(names=…\): .*Rotation\(lean=…\).*$"):
        Command(parts=(POINT, TURN), names=("x",))


def test_parts_of_a_command():
    """Each part has its columns, names, units and ranges, in any order; a vector may be alone."""
    command = Command(parts=(TURN, POINT, replace(TURN, names=tuple("abcd"))))
    assert command.columns == [slice(0, 4), slice(4, 7), slice(7, 11)]
    assert command.names == ("qw", "qx", "qy", "qz", "x", "y", "z", *"abcd")
    assert command.units == (*"1111", "m", "m", "m", *"1111")
    assert command.center == (*DOWN, *POINT.center, *DOWN)
    # in a mirror that swaps left and right, and in one that swaps front and back
    assert command.signs(1) == [1, -1, 1, -1, 1, -1, 1, 1, -1, 1, -1]
    assert command.signs(0)[:4] == [1, 1, -1, -1]
    rows = drawn(command)
    point, turn = rows[:, 4:7], drawn(Command(parts=(replace(POINT, largest=(1.0,) * 3),)))
    assert (point - point.new_tensor(POINT.center)).abs().max() <= 0.3 and turn.shape[1] == 3
    for columns in (slice(0, 4), slice(7, 11)):
        torch.testing.assert_close(rows[:, columns].norm(dim=1), torch.ones(len(rows)))
    assert not torch.equal(rows[:, :4], rows[:, 7:])
    alone = Command(names=("x", "y", "z"), units=("m",) * 3, largest=(0.1, 0.2, 0.3))
    assert torch.equal(drawn(alone), drawn(Command(parts=(replace(POINT, center=()),))))


@pytest.mark.parametrize("parts", [(POINT, TURN), (TURN,), (TURN, POINT), (POINT, TURN, TURN)])
def test_what_a_file_says_of_parts(parts):
    """The description of any parts is read back as their columns, and every reader follows it."""
    about = describe_command(altered(command=Command(parts=parts)))
    own = Command(parts=parts)
    turns = [columns for part, columns in zip(parts, own.columns, strict=True) if part is TURN]
    assert [turn.columns for turn in rotations(about)] == turns
    assert ("lean" in about) == (len(turns) == 1 and turns[0].stop == len(own.names))
    assert len(plain_columns(about)) == 3 * parts.count(POINT)
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    check_command(about, model, Path("policy.onnx"))
    for t in (0.0, 1.1, 9.9):
        asked = tour(about, 10.0)(t)
        assert all(np.linalg.norm(asked[x]) == pytest.approx(1) for x in turns)
    schema = json.loads((ROOT / "docs" / "policy.schema.json").read_text())["$defs"]["command"]
    assert problems(about, schema | {"required": []}, schema) == []
    assert len(numbers(about)) == 3 * len(parts)
    assert len({row[0] for row in numbers(about)}) == 3 * len(parts)


def test_an_unknown_target_is_refused():
    """A body that the model does not have is named when the Env is made."""
    command = Command(names=("x",), units=("m",), largest=(1.0,), shown_by="goal")
    with pytest.raises(ValueError, match="the body 'goal': cart, pole"):
        check_shown_by(command, make_task("cartpole").mjm)
