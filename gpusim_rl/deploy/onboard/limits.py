"""The last layer before the servos: limits of position, of change and of torque. NumPy alone."""

from typing import Any

import numpy as np

Array = np.ndarray


class Limits:
    """What targets of position servos are cut to, for the robot of an exported policy.

    Args:
        outputs: what a policy's file says of its targets.
        change: greatest change in a control step, in multiples of the greatest in training.
        least_change: it is at least this [rad, m].

    Attributes:
        cut: (nu,) bool, whether the last targets were changed.
    """

    def __init__(self, outputs: dict[str, Any], change: float, least_change: float):
        pairs = zip(outputs["control_range"], outputs["joint_range"], strict=True)
        ends = [control or joint or (-np.inf, np.inf) for control, joint in pairs]
        self.low, self.high = np.array(ends, float).T
        self.change = np.maximum(change * np.array(outputs["change"]), least_change)
        self.kp, self.kd = np.array(outputs["kp"]), np.array(outputs["kd"])
        self.torque = np.array([np.inf if x is None else x for x in outputs["torque_limit"]])
        self.cut = np.zeros(len(self.kp), bool)

    def __call__(
        self, targets: Array, before: Array, pose: Array | None, speed: Array | None
    ) -> Array:
        """(nu,) targets within control or joint range, near those before, and within the torque.

        A servo's torque is kp (q* - q) - kd q̇, for a target q*, a joint's position q and speed q̇.
        The limit of torque does not move a target out of the range. Not a number: that before.

        Args:
            targets, before: of this control step and of the last one [rad, m].
            pose, speed: of the joints [rad, m; rad/s, m/s]; None if they are not known.
        """
        x = np.minimum(np.maximum(targets, self.low), self.high)
        x = np.minimum(np.maximum(x, before - self.change), before + self.change)
        if pose is not None:
            damped = 0.0 if speed is None else self.kd * speed
            least, greatest = (
                pose + (damped + end) / self.kp for end in (-self.torque, self.torque)
            )
            lowest, highest = np.minimum(self.low, x), np.maximum(self.high, x)
            x = np.clip(np.minimum(np.maximum(x, least), greatest), lowest, highest)
        x = np.where(np.isfinite(x), x, before)
        self.cut = np.abs(x - targets) > 1e-6
        return x
