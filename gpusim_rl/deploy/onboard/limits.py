"""The last layer before the servos: limits of torque, of position and of change. NumPy alone."""

import numpy as np

from .verdict import Json

Array = np.ndarray


class Limits:
    """Limits of the targets of position servos, for the robot of an exported policy.

    Args:
        outputs: what a policy's file says of its targets.
        change: greatest change in a control step, in multiples of the file's `change`.
        least_change: it is at least this [rad, m].

    Attributes:
        cut: (nu,) bool, whether the last targets were changed.
    """

    def __init__(self, outputs: Json, change: float, least_change: float):
        pairs = zip(outputs["control_range"], outputs["joint_range"], strict=True)
        ends = [control or joint or (-np.inf, np.inf) for control, joint in pairs]
        self.low, self.high = np.array(ends, float).T
        self.change = np.maximum(change * np.array(outputs["change"], float), least_change)
        self.kp, self.kd = np.array([outputs["kp"], outputs["kd"]], float)
        torque = [np.inf if x is None else x for x in outputs["torque_limit"]]
        self.torque = np.array(torque, float)
        self.cut = np.zeros(len(self.kp), bool)

    def __call__(
        self, targets: Array, before: Array, pose: Array | None, speed: Array | None
    ) -> Array:
        """(nu,) targets within the torque, within control or joint range, and near those before.

        A servo's torque is kp (q* - q) - kd q̇, for a target q*, a joint's position q and speed q̇.
        That limit depends on readings, so it comes first: a wrong reading moves no target further
        than range and change allow. Not a number: that before.

        Args:
            targets, before: of this control step and of the last one [rad, m].
            pose, speed: of the joints [rad, m; rad/s, m/s]; None if they are not known.
        """
        x = targets
        if pose is not None:
            damped = 0.0 if speed is None else self.kd * speed
            low, high = (pose + (damped + end) / self.kp for end in (-self.torque, self.torque))
            x = np.minimum(np.maximum(x, low), high)
        x = np.minimum(np.maximum(x, self.low), self.high)
        x = np.minimum(np.maximum(x, before - self.change), before + self.change)
        x = np.where(np.isfinite(x), x, before)
        # 1e-6: float32 targets against limits in float64 [rad, m]
        self.cut = np.abs(x - targets) > 1e-6
        return x
