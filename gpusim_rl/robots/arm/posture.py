"""How an arm waits for its first goal, and which of its poses mirror which."""

import mujoco
import numpy as np
import torch

from gpusim_rl.robots.arm.kinematics import Kinematics
from gpusim_rl.robots.bodies import Array, Signs, beyond_limits, kinematics
from gpusim_rl.robots.chain import Chain

ALONG = 0.999  # least component of an axis that lies along another one
EVEN = 0.02  # of the width of the poses: how far a mirrored tool may be from its place
TILT = 0.05  # largest difference of a mirrored tool's axes
DEVIATION = 0.5  # rad about the home pose, of the poses that are compared
POSES = 64
CANDIDATES, EACH = 300, 20  # of the best poses that are tried for the home pose; of the rest
LEAN, CENTER = 0.1, 0.1  # weights of a lean [1/rad] and of angles far from a range's center
SIDES = torch.tensor([1.0, -1.0, 1.0]).double()  # what a mirror across y does to places


def fault(arm: Kinematics, angles: Array) -> str:
    """Why an arm cannot wait like this, or ""."""
    if beyond_limits(angles, arm.low.numpy(), arm.high.numpy()):
        return "a joint is beyond its limits"
    touching = arm.touches(angles)
    names = [f"{arm.m.body(a).name!r} and {arm.m.body(b).name!r}" for a, b in sorted(touching)]
    return f"{names[0]} touch" if names else ""


def find_home(arm: Kinematics) -> Array | None:
    """(n,) angles with the tool in front of the shoulder and pointing down as far as it goes.

    They are free of contact. Joints that turn an arm out of the plane y = 0 are at 0 where that is
    its plane. None if each pose that is tried touches something.
    """
    angles = arm.samples.clone()
    center = torch.zeros(1, angles.shape[1], dtype=torch.float64).clamp(arm.low, arm.high)
    signs = mirror_signs(arm.m, arm.chain, center[0].numpy(), axes=False) or ()
    turning = torch.tensor([sign < 0 for sign in signs])
    if turning.any():
        angles[:, turning] = center[:, turning]
    position, axes = arm.chain.pose(angles)
    front = torch.from_numpy(arm.shoulder + np.array([0.5 * arm.reach, 0, 0]))
    center, half = (arm.low + arm.high) / 2, (arm.high - arm.low) / 2
    cost = (position - front).norm(dim=1) / arm.reach
    cost += LEAN * (-axes[:, 2, 2]).clamp(-1, 1).arccos()
    cost += CENTER * ((angles - center) / half).square().mean(1)
    order = cost.argsort().tolist()
    for i in (*order[:CANDIDATES], *order[CANDIDATES::EACH]):
        if not arm.touches(angles[i]):
            return angles[i].numpy()
    return None


def turn_signs(m: mujoco.MjModel, joints: list[int], angles: Array) -> Signs:
    """The sign of each joint in a pose's mirror image, from its axis; () if one has none.

    A mirror across y leaves turns about y as they are, and turns others round.
    """
    qpos = m.qpos0.copy()
    qpos[m.jnt_qposadr[joints]] = angles
    d = kinematics(m, qpos)
    sideways = np.abs(d.xaxis[joints, 1])
    if ((sideways < ALONG) & (sideways > 1 - ALONG)).any():
        return ()
    return (*np.where(sideways > 0.5, 1.0, -1.0).tolist(),)


def mirror_signs(
    m: mujoco.MjModel, chain: Chain, home: Array, signs: Signs = (), axes: bool = True
) -> Signs | None:
    """(n,) signs s: if home + δ is a pose, the tool of home + s δ is its mirror image across y = 0.

    None if these are not mirror images of one another, as of many arms with joints side by side.
    Without `axes`, only the tool's places have to be.
    """
    signs = signs or turn_signs(m, chain.joints, home)
    if not signs:
        return None
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(POSES, len(signs), generator=generator, dtype=torch.float64)
    change, center = DEVIATION * (2 * share - 1), torch.tensor(np.array(home)).double()
    position, straight = chain.pose(center + change)
    image, turned = chain.pose(center + change * torch.tensor(signs).double())
    limit = EVEN * float((position.amax(0) - position.amin(0)).max())
    tilted = (turned - SIDES[:, None] * straight * SIDES).abs().max()
    wrong = (image - position * SIDES).norm(dim=1).max()
    even = wrong <= limit and (tilted <= TILT or not axes)
    return tuple(signs) if even else None


def forward_turn(chain: Chain, home: Array) -> float:
    """The angle [rad] by which the tool has to turn about its z for its x to point forward, or up,
    as far as it can in the home pose."""
    _, axes = chain.pose(torch.tensor(np.array(home)).double()[None])
    ahead = axes[0, 0] + axes[0, 2]  # (3,) components of each axis along (1, 0, 1)
    return float(torch.atan2(ahead[1], ahead[0]))
