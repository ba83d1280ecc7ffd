"""Actions that move the targets of position servos: from where the joints are, or step by step."""

from torch import Tensor


def relative(joint_pos: Tensor, step: Tensor, limits: Tensor) -> Tensor:
    """(B, nu) targets a step (B, nu) [rad, m] from the joints' positions, within limits (2, nu).

    With a step of 0 a servo does not pull: the target is where the joint is measured.
    """
    return (joint_pos + step).clamp(limits[0], limits[1])


# Why: docs/decisions/arms.md
def integrated(
    target: Tensor, step: Tensor, limits: Tensor, joint_pos: Tensor, ahead: float
) -> Tensor:
    """(B, nu) the targets of the step before, moved by a step (B, nu), within limits (2, nu).

    They stay within `ahead` [rad, m] of the measured positions, so that they do not run away from a
    joint that cannot follow. A task keeps them as memory: `control` returns them, and `update`
    computes them again, of the positions that are measured a control step later.
    """
    target = target + step
    target = target.clamp(joint_pos - ahead, joint_pos + ahead)
    return target.clamp(limits[0], limits[1])
