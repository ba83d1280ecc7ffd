"""The robot of an exported file: what it stands on, what follows its command, when it has fallen.

All is read from the file, since a robot's computer has nothing else.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import numpy as np

from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.robots.free_bodies import FreeBody, free_base
from gpusim_rl.robots.models import compile_spec
from gpusim_rl.robots.servos import driven_joints, gear, safe_controls

WALKS = ("m/s", "m/s", "rad/s")  # units of a command of velocities
TOUCHES = "gate base contacts"  # the sensor that is added to the model
UNNAMED = "gate base"  # the name of a base that has none
SETTLING = 0.2  # s in which a robot that stands touches the ground
ITERATIONS, LINE_SEARCHES = 100, 50  # of a solver that converges, as in an evaluation
JOINT = mujoco.mjtJoint
HINGE, SLIDE = int(JOINT.mjJNT_HINGE), int(JOINT.mjJNT_SLIDE)
Array = np.ndarray


@dataclass(frozen=True)
class Robot:
    """A policy and the model that it drives."""

    policy: Policy
    model: mujoco.MjModel  # with a solver that converges and a sensor of the base's contacts
    base: int  # the body that carries the robot, and can leave the ground; 0 if there is none
    free: FreeBody | None  # the base if it floats freely, so that it can be pushed anywhere
    up: Array  # (3,) the world's up axis in the base's axes, in the safe pose
    height: float  # of the base in the safe pose [m]; 0 unless the robot stands on the ground
    feet: int  # how many of its bodies touch the ground in that pose
    follows: str  # velocity | position | nothing: what of the robot follows the command
    place: str  # name of the sensor of the position that follows the command; empty if none does
    torque: Array  # (nu,) the largest force of each actuator; inf without a limit
    joints: Array  # (nu,) the joint of each actuator; -1 for none

    @property
    def kind(self) -> str:
        """The kind of robot that limits are of: arm, drone, biped, or walker for any other."""
        if not self.base:
            return "arm"
        if self.free and not self.height:
            return "drone"
        return "biped" if self.feet == 2 else "walker"


def make_robot(policy: Policy) -> Robot:
    """The robot of a policy whose file was checked before."""
    model = compiled(policy.mjcf)
    base = base_body(model)
    if base:
        model = compiled(policy.mjcf, base)
    up, height, feet = posture(model, base)
    follows, place = followed_by(policy, model)
    limits = policy.outputs["torque_limit"]
    torque = [np.inf if x is None else x / abs(gear(model, i)) for i, x in enumerate(limits)]
    actuators = np.array(torque), np.array(driven_joints(model))
    free = free_base(model)
    return Robot(policy, model, base, free, up, height, feet, follows, place, *actuators)


def compiled(mjcf: str, base: int = 0) -> mujoco.MjModel:
    """The model of a file, with a sensor of the contacts of its base, if it has one."""
    spec = mujoco.MjSpec.from_string(mjcf)
    if base:
        spec.compile()  # gives the bodies their numbers
        (body,) = [x for x in spec.bodies if x.id == base]
        body.name = body.name or UNNAMED  # a sensor needs a name
        kind, of = mujoco.mjtSensor.mjSENS_CONTACT, mujoco.mjtObj.mjOBJ_BODY
        sensor = spec.add_sensor(name=TOUCHES, type=kind, objtype=of, objname=body.name)
        sensor.intprm[0], sensor.intprm[2] = 1, 1  # how many contacts there are
    model = compile_spec(spec)
    model.opt.iterations, model.opt.ls_iterations = ITERATIONS, LINE_SEARCHES
    return model


def with_options(robot: Robot, **options: Any) -> Robot:
    """A robot whose model has other options, such as `cone`, than its file says."""
    model = copy.copy(robot.model)
    for name, value in options.items():
        setattr(model.opt, name, value)
    return replace(robot, model=model)


def base_body(model: mujoco.MjModel) -> int:
    """The free body that carries the robot, or the first with a vertical slide; 0 for neither."""
    base, vertical = free_base(model), abs(model.jnt_axis[:, 2]) > 0.99
    slides = model.jnt_bodyid[vertical & (model.jnt_type == SLIDE)]
    return base.body if base else int(min(slides, default=0))


def posture(model: mujoco.MjModel, base: int) -> tuple[Array, float, int]:
    """(3,) the up axis in the base's axes, the base's height, and the feet, in the safe pose.

    The height is 0 for a robot that touches no ground when it holds the pose for a moment. Feet are
    the bodies that touch what is fixed to the world then: a hand on a thigh is none.
    """
    data = safe_state(model)
    up, height = data.xmat[base].reshape(3, 3)[2].copy(), data.xpos[base][2] - ground(model)
    data.ctrl[:] = safe_controls(model)
    mujoco.mj_step(model, data, round(SETTLING / model.opt.timestep))
    bodies = model.geom_bodyid[data.contact.geom[: data.ncon]]  # (contacts, 2)
    fixed = model.body_weldid[bodies] == 0
    feet = {*bodies[~fixed & fixed[:, ::-1]]}
    return up, float(height) if base and feet else 0.0, len(feet)


def safe_state(model: mujoco.MjModel) -> mujoco.MjData:
    """The safe pose of a robot: the first keyframe, or the model's default."""
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    return data


def ground(model: mujoco.MjModel) -> float:
    """The height of the ground [m]: that of the highest plane, else 0."""
    plane = int(mujoco.mjtGeom.mjGEOM_PLANE)
    heights = [model.geom_pos[i][2] for i in range(model.ngeom) if model.geom_type[i] == plane]
    return float(max(heights, default=0.0))


def followed_by(policy: Policy, model: mujoco.MjModel) -> tuple[str, str]:
    """The quantity that follows a command, and the name of the sensor of its position.

    Velocities are those of the sensors `velocity` and `gyro`. A point is followed by what the
    model's only sensor of a position shows.
    """
    units = tuple(policy.command["units"]) if policy.command else ()
    names = {model.sensor(i).name: int(model.sensor_type[i]) for i in range(model.nsensor)}
    if units == WALKS and {"velocity", "gyro"} <= {*names}:
        return "velocity", ""
    kind = int(mujoco.mjtSensor.mjSENS_FRAMEPOS)
    places = [name for name, of in names.items() if of == kind]
    if units[:3] == ("m", "m", "m") and len(places) == 1:
        return "position", places[0]
    return "nothing", ""
