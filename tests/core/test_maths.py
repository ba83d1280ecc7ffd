"""Formulas against MuJoCo's rotations."""

import math

import mujoco
import numpy as np
import torch

from gpusim_rl.core import maths
from gpusim_rl.core.maths import from_euler, rotate, unrotate

TURNS = 50


def rotations() -> tuple[torch.Tensor, torch.Tensor]:
    """Random unit quaternions and vectors, float64."""
    rng = np.random.default_rng(0)
    q, v = rng.standard_normal((TURNS, 4)), rng.standard_normal((TURNS, 3))
    return torch.from_numpy(q / np.linalg.norm(q, axis=1, keepdims=True)), torch.from_numpy(v)


def by_mujoco(function, width: int, *arguments: torch.Tensor) -> torch.Tensor:
    """(TURNS, width) what a function of MuJoCo writes for each row of the arguments."""
    want = np.zeros((TURNS, width))
    for i in range(TURNS):
        function(want[i], *(np.ascontiguousarray(x[i].numpy()) for x in arguments))
    return torch.from_numpy(want)


def test_rotations_as_mujoco():
    """rotate is mju_rotVecQuat, unrotate that by the conjugate quaternion: it undoes rotate."""
    q, v = rotations()
    back, turned = by_mujoco(mujoco.mju_negQuat, 4, q), mujoco.mju_rotVecQuat
    torch.testing.assert_close(rotate(q, v), by_mujoco(turned, 3, v, q), rtol=0, atol=1e-14)
    torch.testing.assert_close(unrotate(q, v), by_mujoco(turned, 3, v, back), rtol=0, atol=1e-14)
    torch.testing.assert_close(unrotate(q, rotate(q, v)), v, rtol=0, atol=1e-14)


def test_euler_as_mujoco():
    """from_euler is mju_euler2Quat of intrinsic z-y-x angles."""
    drawn = np.random.default_rng(1).uniform(-math.pi, math.pi, (TURNS, 3))
    angles = torch.from_numpy(drawn)  # roll, pitch, yaw
    want = by_mujoco(lambda out, x: mujoco.mju_euler2Quat(out, x, "zyx"), 4, angles.flip(1))
    torch.testing.assert_close(from_euler(*angles.T), want, rtol=0, atol=1e-14)


def test_products_as_mujoco():
    """product is mju_mulQuat, conjugate mju_negQuat: together they are no rotation."""
    p, q = rotations()[0], rotations()[0].flip(0)
    product = maths.product(p, q)
    torch.testing.assert_close(product, by_mujoco(mujoco.mju_mulQuat, 4, p, q), rtol=0, atol=1e-15)
    torch.testing.assert_close(maths.conjugate(q), by_mujoco(mujoco.mju_negQuat, 4, q))
    none = torch.tensor([1.0, 0, 0, 0], dtype=p.dtype).expand(TURNS, 4)
    torch.testing.assert_close(maths.product(q, maths.conjugate(q)), none, rtol=0, atol=1e-15)


def test_rotation_vectors_as_mujoco():
    """log is mju_quat2Vel in one second, also of tiny turns and of -q, and has a gradient at 1."""
    q, tiny = rotations()[0], rotations()[0]
    tiny = torch.cat([torch.ones(TURNS, 1, dtype=q.dtype), 1e-6 * tiny[:, 1:]], 1)
    for turn in (q, tiny / tiny.norm(dim=1, keepdim=True)):
        want = by_mujoco(lambda out, q: mujoco.mju_quat2Vel(out, q, 1.0), 3, turn)
        torch.testing.assert_close(maths.log(turn), want, rtol=0, atol=1e-12)
        torch.testing.assert_close(maths.log(-turn), want, rtol=0, atol=1e-12)
    none = torch.tensor([1.0, 0, 0, 0], requires_grad=True)
    maths.log(none).sum().backward()
    assert none.grad is not None and none.grad.tolist() == [0, 2, 2, 2]


def test_axis_and_angle_as_mujoco():
    """from_axis_angle is mju_axisAngle2Quat, and log gives the turn back."""
    axis = rotations()[1]
    axis = axis / axis.norm(dim=1, keepdim=True)
    angle = torch.linspace(0.01, math.pi - 0.01, TURNS, dtype=axis.dtype)
    q = maths.from_axis_angle(axis, angle)
    want = by_mujoco(lambda out, a, t: mujoco.mju_axisAngle2Quat(out, a, t.item()), 4, axis, angle)
    torch.testing.assert_close(q, want, rtol=0, atol=1e-15)
    torch.testing.assert_close(maths.log(q), axis * angle[:, None], rtol=0, atol=1e-12)


def test_six_numbers_of_a_rotation():
    """to_6d are two columns of mju_quat2Mat."""
    q = rotations()[0]
    matrix = by_mujoco(mujoco.mju_quat2Mat, 9, q).unflatten(1, (3, 3))
    six = maths.to_6d(q)
    torch.testing.assert_close(six[:, :3], matrix[:, :, 0], rtol=0, atol=1e-14)
    torch.testing.assert_close(six[:, 3:], matrix[:, :, 1], rtol=0, atol=1e-14)


def test_rotations_are_uniform():
    """Angles have the density (1 - cos θ)/π and axes are uniform; a box of Euler angles is not."""
    g, n = torch.Generator().manual_seed(0), 20000
    q = maths.uniform_rotation(torch.rand(n, 3, generator=g, dtype=torch.float64))
    torch.testing.assert_close(q.norm(dim=1), torch.ones(n, dtype=q.dtype))
    flat = (torch.rand(n, 3, generator=g, dtype=q.dtype) - 0.5) * 2 * math.pi

    def distances(q: torch.Tensor) -> tuple[float, ...]:
        """Kolmogorov's, of the angle and of the height of the turned z."""
        rank = torch.arange(1, n + 1) / n
        angle = maths.log(q).norm(dim=1).sort().values
        up = rotate(q, torch.tensor([0.0, 0, 1], dtype=q.dtype).expand(n, 3))[:, 2].sort().values
        far = (
            ((angle - angle.sin()) / math.pi - rank).abs().max(),
            ((1 + up) / 2 - rank).abs().max(),
        )
        return far[0].item(), far[1].item()

    assert max(distances(q)) < 0.012  # 1 of 200 samples of this size is farther
    assert min(distances(from_euler(*flat.T))) > 0.024


def test_yaw_and_its_frame():
    """yaw is that of from_euler; its frame is level, and what remains of a turn has no yaw."""
    roll, pitch, turn = (torch.linspace(-0.9, 0.9, TURNS) * x for x in (1.0, -1.5, 3.0))
    q = from_euler(roll, pitch, turn)
    torch.testing.assert_close(maths.yaw(q), turn, rtol=0, atol=1e-5)
    frame = maths.yaw_frame(q)
    torch.testing.assert_close(frame, from_euler(0 * turn, 0 * turn, turn), rtol=0, atol=1e-6)
    rest = maths.product(maths.conjugate(frame), q)
    torch.testing.assert_close(maths.yaw(rest), 0 * turn, rtol=0, atol=1e-5)


def test_wrap():
    """wrap differs by whole turns, and lies in [-π, π)."""
    angle = torch.linspace(-20, 20, 401, dtype=torch.float64)
    wrapped = maths.wrap(angle)
    turns = (angle - wrapped) / (2 * math.pi)
    torch.testing.assert_close(turns, turns.round())
    assert (wrapped >= -math.pi).all() and (wrapped < math.pi).all()
    assert maths.wrap(torch.tensor(math.pi, dtype=torch.float64)) == -math.pi


def test_tolerance_as_dm_control():
    """1 within the bounds, 0.1 at the margin, and dm_control's Gaussian beyond."""
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)
    d = torch.where(x < -0.5, -0.5 - x, torch.where(x > 1, x - 1, 0 * x)) / 0.8
    want = torch.exp(-0.5 * (d * math.sqrt(-2 * math.log(0.1))) ** 2)
    torch.testing.assert_close(maths.tolerance(x, -0.5, 1.0, 0.8), want)
    ends = maths.tolerance(torch.tensor([-0.5, 1.0, -1.3, 1.8]), -0.5, 1.0, 0.8)
    torch.testing.assert_close(ends, torch.tensor([1.0, 1.0, 0.1, 0.1]))
