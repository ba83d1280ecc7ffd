"""Where an arm's tool can go: sampled poses, inverse kinematics, and what touches."""

from collections import Counter

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.robots.bodies import Array
from gpusim_rl.robots.chain import Chain

SAMPLES = 20_000  # poses whose tools are known
STARTS = 4  # of them, from which inverse kinematics begins for a goal
STEPS = 20  # of it
STEP = 0.3  # rad, its largest step
DIFFERENCE = 1e-6  # rad, for derivatives
DAMPING = 1e-3  # m, of damped least squares
LEVER = 0.1  # m/rad: how much of a distance a turn is
CLOSE = 2e-3  # m: the largest error of a goal that counts as reached
ALWAYS = 0.5  # share of poses in which two bodies touch that are neighbors
TRIED = 100  # poses to find neighbors


class Kinematics:
    """Poses of a chain of hinges.

    All angles (B, n) are in radians, from the base to the tool. Tensors are of float64. Nothing
    moves in the prepared model but the chain; its geoms collide as they do in the file, and with
    the ground. margin: how far angles keep from the ends of their ranges [rad].
    """

    def __init__(self, m: mujoco.MjModel, tool: str, margin: float):
        self.m, self.d, self.tool = m, mujoco.MjData(m), tool
        self.chain = Chain(m, tool)
        self.low, self.high = torch.from_numpy(m.jnt_range.T.copy())
        self.inner_low, self.inner_high = self.low + margin, self.high - margin
        generator = torch.Generator().manual_seed(0)
        share = torch.rand(SAMPLES, m.nq, generator=generator, dtype=torch.float64)
        self.samples = self.inner_low + share * (self.inner_high - self.inner_low)
        self.sampled = self.chain.pose(self.samples)
        mujoco.mj_kinematics(m, self.d)
        self.shoulder = self.d.xanchor[0].copy()  # m
        far = self.sampled[0] - torch.from_numpy(self.shoulder)
        self.reach = float(far.norm(dim=1).max())  # m
        # pairs of bodies that touch in most poses, as what is joined does
        counts = Counter(pair for pose in self.samples[:TRIED] for pair in self.contacts(pose))
        self.neighbors = {pair for pair, count in counts.items() if count > ALWAYS * TRIED}

    def turn_tool(self, quat: Array) -> None:
        """Give the tool's site another rotation (4,) in its body, in place."""
        self.m.site_quat[self.m.site(self.tool).id] = quat
        self.chain = Chain(self.m, self.tool)
        self.sampled = self.chain.pose(self.samples)

    # -- inverse kinematics ------------------------------------------------------------------------

    def solve(self, goals: Tensor, turns: Tensor | None) -> tuple[Tensor, Tensor]:
        """Angles (B, STARTS, n) near goals (B, 3) [m], and bool (B, STARTS): they are there.

        turns: (B, 3, 3) the tool's axes as columns, or None for any.
        """
        starts = self.nearest(goals, turns)
        angles = starts.flatten(0, 1)
        goals = goals.repeat_interleave(STARTS, 0)
        turns = None if turns is None else turns.repeat_interleave(STARTS, 0)
        for _ in range(STEPS):
            position, axes = self.chain.pose(angles)
            error, jacobian = goals - position, self.jacobian(angles, turns is not None)
            if turns is not None:
                error = torch.cat([error, LEVER * rotation(axes, turns)], 1)
            square = jacobian @ jacobian.mT + DAMPING**2 * torch.eye(error.shape[1]).double()
            step = (jacobian.mT @ torch.linalg.solve(square, error[..., None]))[..., 0]
            angles = (angles + step.clamp(-STEP, STEP)).clamp(self.inner_low, self.inner_high)
        position, axes = self.chain.pose(angles)
        there = (goals - position).norm(dim=1) < CLOSE
        if turns is not None:
            there &= LEVER * (turns - axes).flatten(1).norm(dim=1) < 2**0.5 * CLOSE
        return angles.view_as(starts), there.view(starts.shape[:2])

    def nearest(self, goals: Tensor, turns: Tensor | None) -> Tensor:
        """(B, STARTS, n) the samples whose tools are nearest to goals."""
        position, axes = self.sampled
        far = torch.cdist(goals, position)
        if turns is not None:  # tr(AᵀB) = 1 + 2 cos
            cos = (turns.flatten(1) @ axes.flatten(1).T - 1) / 2
            far = far + LEVER * cos.clamp(-1, 1).arccos()
        return self.samples[far.topk(STARTS, largest=False).indices]

    def jacobian(self, angles: Tensor, turning: bool) -> Tensor:
        """(B, 3, n) of the tool's position by the angles; turning: (B, 6, n), with its turn times
        LEVER."""
        count, n = angles.shape
        moved = angles[:, None] + DIFFERENCE * torch.eye(n, dtype=torch.float64)
        there, turned = self.chain.pose(moved.view(-1, n))
        position, axes = self.chain.pose(angles)
        change = (there.view(count, n, 3) - position[:, None]) / DIFFERENCE
        if turning:
            turn = rotation(axes.repeat_interleave(n, 0), turned).view(count, n, 3)
            change = torch.cat([change, LEVER * turn / DIFFERENCE], 2)
        return change.mT

    # -- contact -----------------------------------------------------------------------------------

    def contacts(self, angles: Tensor | Array) -> set[tuple[int, int]]:
        """Pairs of bodies that touch in a pose (n,)."""
        self.d.qpos[:] = np.asarray(angles)
        mujoco.mj_kinematics(self.m, self.d)
        mujoco.mj_comPos(self.m, self.d)
        mujoco.mj_collision(self.m, self.d)
        bodies = self.m.geom_bodyid[self.d.contact.geom[self.d.contact.dist < 0]]
        return {(int(a), int(b)) for a, b in np.sort(bodies, 1)}

    def touches(self, angles: Tensor | Array) -> set[tuple[int, int]]:
        """Pairs of bodies that touch in a pose (n,) and need not."""
        return self.contacts(angles) - self.neighbors

    def reached(self, goals: Tensor, turns: Tensor | None) -> Tensor:
        """(B,) bool: a pose within the ranges brings the tool to a goal, and nothing touches."""
        angles, there = self.solve(goals, turns)
        free = [
            any(ok and not self.touches(pose) for pose, ok in zip(poses, oks, strict=True))
            for poses, oks in zip(angles, there.tolist(), strict=True)
        ]
        return torch.tensor(free)


def rotation(axes: Tensor, others: Tensor) -> Tensor:
    """(B, 3) sine times axis of the rotation that brings axes (B, 3, 3) to others."""
    return torch.linalg.cross(axes, others, dim=1).sum(2) / 2
