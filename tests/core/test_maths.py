"""Formulas against MuJoCo's rotations and torch's distributions."""

import math

import mujoco
import numpy as np
import torch
from torch.distributions import Independent, Normal

from gpusim_rl.core.maths import entropy, from_euler, gauss, log_prob, rotate, squared, unrotate

TURNS = 50


def rotations() -> tuple[torch.Tensor, torch.Tensor]:
    """Random unit quaternions and vectors, float64."""
    rng = np.random.default_rng(0)
    q, v = rng.standard_normal((TURNS, 4)), rng.standard_normal((TURNS, 3))
    return torch.from_numpy(q / np.linalg.norm(q, axis=1, keepdims=True)), torch.from_numpy(v)


def test_rotate_as_mujoco():
    """rotate is mju_rotVecQuat."""
    q, v = rotations()
    want = np.zeros((TURNS, 3))
    for i in range(TURNS):
        mujoco.mju_rotVecQuat(want[i], v[i].numpy(), q[i].numpy())
    torch.testing.assert_close(rotate(q, v), torch.from_numpy(want), rtol=0, atol=1e-14)


def test_unrotate_is_the_inverse():
    """unrotate is mju_rotVecQuat by the conjugate quaternion, and undoes rotate."""
    q, v = rotations()
    want, back = np.zeros((TURNS, 3)), np.zeros(4)
    for i in range(TURNS):
        mujoco.mju_negQuat(back, q[i].numpy())
        mujoco.mju_rotVecQuat(want[i], v[i].numpy(), back)
    torch.testing.assert_close(unrotate(q, v), torch.from_numpy(want), rtol=0, atol=1e-14)
    torch.testing.assert_close(unrotate(q, rotate(q, v)), v, rtol=0, atol=1e-14)


def test_quarter_turn():
    """A quarter turn about z brings x to y; batches of any rank are welcome."""
    q = from_euler(*(torch.full((2, 3), a) for a in (0.0, 0.0, math.pi / 2)))
    x = torch.eye(3)[0].expand(2, 3, 3)
    torch.testing.assert_close(rotate(q, x), torch.eye(3)[1].expand(2, 3, 3), rtol=0, atol=1e-6)


def test_euler_as_mujoco():
    """from_euler is mju_euler2Quat of intrinsic z-y-x angles."""
    angles = np.random.default_rng(1).uniform(-math.pi, math.pi, (TURNS, 3))  # roll, pitch, yaw
    want = np.zeros((TURNS, 4))
    for i in range(TURNS):
        mujoco.mju_euler2Quat(want[i], angles[i, ::-1].copy(), "zyx")
    got = from_euler(*torch.from_numpy(angles).T)
    torch.testing.assert_close(got, torch.from_numpy(want), rtol=0, atol=1e-14)


def test_gauss():
    """gauss is 1 without error, 1/e at |e| = σ whatever the direction, 1/e⁴ at 2σ."""
    e = torch.tensor([[0.0, 0.0], [0.3, 0.4], [-0.5, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(
        gauss(e, 0.5), torch.tensor([1.0, math.exp(-1), math.exp(-1), math.exp(-4)])
    )


def test_squared():
    """squared sums squares over the last axis alone."""
    assert squared(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])).tolist() == [[5.0, 25.0]]


def test_densities_as_torch():
    """log_prob and entropy are those of torch's independent normals."""
    g = torch.Generator().manual_seed(0)
    x, mean = (torch.randn(6, 5, 3, generator=g, dtype=torch.float64) for _ in range(2))
    std = torch.rand(3, generator=g, dtype=torch.float64) + 0.1
    reference = Independent(Normal(mean, std), 1)
    torch.testing.assert_close(log_prob(x, mean, std), reference.log_prob(x))
    torch.testing.assert_close(entropy(std).expand(6, 5), reference.entropy())
