"""The `robot.actuator` section: what turns joint targets into torques, and the model it needs."""

import copy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpusim_rl.core.file_keys import FileKey
from gpusim_rl.core.ranges import OF_JOINTS, Range
from gpusim_rl.core.sections import check, number, word

if TYPE_CHECKING:  # loaded where there is a model, so that a mistake in a key is answered at once
    import mujoco
    import numpy as np

KINDS = ("position", "pd", "dc", "net")
GAINS = ("kp", "kd", "strength")  # of `sim.actuated.ActuatedSim`, with a value per world
FILES = (FileKey("robot.actuator.file", "copy", "model/actuator.safetensors"),)
DELAY = "delay"  # [s], likewise, (B, 1)
DELAY_RANGE_S = Range(0, 1, below=True, null=True)  # s


@dataclass(kw_only=True, frozen=True)
class Actuator:
    """The actuators of a robot; docs/actuators.md has the formulas.

    A number of a joint is given once for all joints, thrice (abduction, thigh, knee), or for each.

    Raises:
        ValueError: says in one line which number is out of range.
    """

    kind: str = word(*KINDS)  # the engine's own servo, or a torque computed at each timestep
    # s between a target and its effect: a number, or the least and the most, drawn for each world
    delay: Any = number(DELAY_RANGE_S, None)
    stall: Any = number(OF_JOINTS, None)  # N m, dc: torque at speed 0; the servo's force range
    no_load: Any = number(OF_JOINTS, None)  # rad/s, dc: speed at torque 0
    file: str | None = None  # net: a file that `gpusim identify actuator` wrote
    # N m, dry, of the driven joints; None: the model's
    friction: Any = number(Range(0, 10**8, null=True), None)

    def __post_init__(self) -> None:
        check(self, "robot.actuator")
        for key in ("stall", "no_load", "friction"):
            if getattr(self, key) in ([], ()):
                raise ValueError(f"robot.actuator.{key}=[]: expected a number for each joint")
        many = isinstance(self.delay, list | tuple)
        if many and (len(self.delay) != 2 or self.delay[0] > self.delay[1]):
            raise ValueError(
                f"robot.actuator.delay={list(self.delay)}: expected the least and the most [s]"
            )
        for key, kind in (("stall", "dc"), ("no_load", "dc"), ("file", "net")):
            value = getattr(self, key)
            if value is not None and self.kind != kind:
                raise ValueError(
                    f"robot.actuator.{key}={value} belongs to robot.actuator.kind={kind}, not "
                    f"{self.kind}"
                )
            if value is None and self.kind == kind and key != "stall":
                raise ValueError(f"robot.actuator.kind={kind} needs robot.actuator.{key}")

    @property
    def direct(self) -> bool:
        """Whether the engine's own servos follow each target at once."""
        return self.kind == "position" and not self.delays[1]

    @property
    def delays(self) -> tuple[float, float]:
        """The least and the largest delay [s] of a world."""
        low, high = self.delay if isinstance(self.delay, list | tuple) else [self.delay or 0.0] * 2
        return float(low), float(high)

    def gains(self, mjm: "mujoco.MjModel") -> dict[str, "np.ndarray"]:
        """The `GAINS` of a model's servos, (nu,) each."""
        import numpy as np

        kp, kd = mjm.actuator_gainprm[:, 0], -mjm.actuator_biasprm[:, 2]
        return {"kp": kp, "kd": kd, "strength": np.ones(mjm.nu)}

    def plant(self, mjm: "mujoco.MjModel") -> "mujoco.MjModel":
        """The model that is stepped; mjm itself where nothing differs.

        Servos become motors: ctrl is their torque [N m]. Motors have no limits of their own,
        because the torque is already limited, by the world's strength.
        """
        if self.kind == "position" and self.friction is None:
            return mjm
        model = copy.copy(mjm)
        if self.friction is not None:
            driven = self.per_joint("friction", mjm.nu)
            model.dof_frictionloss[mjm.jnt_dofadr[joints(mjm)]] = driven
        if self.kind != "position":
            check_servos(mjm, self.kind)
            model.actuator_gainprm[:], model.actuator_biasprm[:] = 0, 0
            model.actuator_gainprm[:, 0] = 1
            model.actuator_ctrllimited[:], model.actuator_forcelimited[:] = 0, 0
        return model

    def per_joint(self, key: str, nu: int) -> "np.ndarray":
        """(nu,) the number of a key for each joint; ValueError if there are neither 1, 3 nor nu."""
        import numpy as np

        value = np.atleast_1d(np.asarray(getattr(self, key), dtype=np.float64))
        if len(value) not in (1, nu) and (len(value) != 3 or nu % 3):
            raise ValueError(
                f"robot.actuator.{key} has {len(value)} numbers: expected 1, 3 or {nu}"
            )
        return np.tile(value, nu // len(value))

    def description(self) -> dict[str, Any]:
        """The facts of the actuators in an exported policy, which was trained with them.

        Its robot does not have to imitate them.
        """
        return {key: value for key, value in asdict(self).items() if key != "file"}


def joints(m: "mujoco.MjModel") -> "np.ndarray":
    """(nu,) the joints that the actuators drive; ValueError if one drives something else."""
    import mujoco

    if not (m.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT).all():
        raise ValueError(
            "robot.actuator: this model has actuators that drive no joint, which works only "
            "with the default"
        )
    return m.actuator_trnid[:, 0]


def check_servos(m: "mujoco.MjModel", kind: str) -> None:
    """ValueError unless every actuator is a plain position servo of a hinge or slide."""
    import mujoco
    import numpy as np

    turn = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
    kp = m.actuator_gainprm[:, 0]
    plain = (
        (kp > 0)
        & (m.actuator_biasprm[:, 1] == -kp)
        & (m.actuator_biasprm[:, 0] == 0)
        & (m.actuator_gear[:, 0] == 1)
    )
    plain &= (m.actuator_gaintype == mujoco.mjtGain.mjGAIN_FIXED) & (
        m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    )
    plain &= (m.actuator_dyntype == mujoco.mjtDyn.mjDYN_NONE) & np.isin(m.jnt_type[joints(m)], turn)
    if not plain.all():
        name = m.actuator(int(np.flatnonzero(~plain)[0])).name  # numpy, while it is built
        raise ValueError(
            f"robot.actuator.kind={kind} takes joint targets, but {name!r} of this model is no "
            f"position servo"
        )
