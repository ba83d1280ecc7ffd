"""What quadrupeds and humanoids have in common: legs of hinges below a free base."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from gpusim_rl.robots import prepare
from gpusim_rl.robots.bodies import FREE, Array, RobotError, find_base, raise_origin
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import Joints

SENSOR = prepare.SENSOR
FOLLOWS = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
FOOT_SENSORS = {"position": SENSOR.mjSENS_FRAMEPOS, "velocity": SENSOR.mjSENS_FRAMELINVEL}


class Walker(ABC):
    """A shape of `robots.load` but for the topology, the stance and the gains.

    All angles (n,) are in radians, in the order of `joints`.

    Attributes:
        robot: the description with base, joints and feet.
        original: the model of the file.
        servos: name of the servo → its joint, in the order of ctrl.
        labels: leg → a geom of the model.
        stance_words: for `description.reasons`, of a stance from a keyframe: what follows its name;
            of one that is guessed: how, and why a keyframe was not taken.
    """

    feet_sites: Sequence[str]  # without our prefix
    sensors: Mapping[str, mujoco.mjtSensor] = FOOT_SENSORS  # of each foot: quantity → kind
    camera: tuple[list[float], list[float]]  # place [m], x and y
    uncouple = False  # tendons and equalities go, even if no joint does
    size: float  # m, the mean length of a leg
    joints: Joints
    servos: dict[str, str]
    labels: dict[str, str]
    stance_words: tuple[str, str, str]

    def __init__(self, robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel):
        self.robot, self.base = robot, find_base(spec, robot.base).name
        moved = raise_origin(spec, original, self.base)
        self.original = spec.compile() if moved else original

    @abstractmethod
    def add_feet(self, spec: mujoco.MjSpec) -> list[str]:
        """Add geoms and sites of the feet to a spec, in place. Returns the names of the geoms."""

    @abstractmethod
    def lift_direction(self, angles: Array) -> tuple[float, ...]:
        """(n,) the direction of the joints that lifts each foot straight up."""

    @abstractmethod
    def height(self) -> float:
        """Height of the base above the lowest point of its feet [m], with the angles set."""

    def prepare(self, spec: mujoco.MjSpec) -> mujoco.MjSpec:
        """Prepare a spec for the task, in place. Returns a copy that has boxes for meshes.

        Keyframes, sensors, actuators and options of the file are replaced. Other joints than those
        of the legs are removed: what they moved is fixed where they are at 0.
        """
        collide, joints = self.robot.collide, self.joints.names
        meshless = prepare.copy_without_meshes(spec, self.original, collide)
        for each in (spec, meshless):
            prepare.clear(each, self.original)
            base = each.body(self.base)
            if not any(joint.type == FREE for joint in base.joints):
                base.add_freejoint(name=prepare.added_name("base"))
            others = [x for x in each.joints if x.type != FREE and x.name not in joints]
            couplings = (*each.tendons, *each.equalities) if others or self.uncouple else ()
            for element in (*couplings, *others):
                each.delete(element)
            feet = self.add_feet(each)
            prepare.add_ground(each, self.original)
            prepare.set_collisions(each, feet, collide)
            base.add_site(name=prepare.added_name("imu"), group=prepare.HIDDEN)
            prepare.add_camera(each, base, np.array(self.camera[0]), self.camera[1], mode=FOLLOWS)
            prepare.add_walking_sensors(each, self.feet_sites, self.sensors)
            prepare.add_torque_sensors(each, self.servos)
        self.measure(meshless.compile())
        return meshless

    def measure(self, m: mujoco.MjModel) -> None:
        """Keep the kinematics of the prepared model; RobotError if anything else moves."""
        self.m, self.d = m, mujoco.MjData(m)
        self.count = len(self.joints.names)
        self.ids = np.array([m.joint(name).id for name in self.joints.names])
        self.qposadr, self.dofadr = m.jnt_qposadr[self.ids], m.jnt_dofadr[self.ids]
        if m.nq != 7 + self.count or m.jnt_type[0] != FREE:
            hinges = [j for j in range(m.njnt) if j not in self.ids and m.jnt_type[j] != FREE]
            others = ", ".join(m.joint(j).name for j in hinges) or "other free bodies"
            raise RobotError(f"besides the base and its legs, {others} can move")
        limited = m.jnt_limited[self.ids].astype(bool)
        ranges = np.where(limited[:, None], m.jnt_range[self.ids], np.pi * np.array([-1, 1]))
        self.low, self.high = np.clip(ranges, -np.pi, np.pi).T

    def set_angles(self, angles: Array) -> float:
        """Set the joints, with the base upright at the origin. Returns `height`."""
        self.d.qpos[:] = 0
        self.d.qpos[3], self.d.qpos[self.qposadr] = 1, angles
        mujoco.mj_kinematics(self.m, self.d)
        mujoco.mj_comPos(self.m, self.d)
        return self.height()

    def qpos(self, angles: Array) -> Array:
        """(7 + n,) positions in the model's order, with the feet on the ground."""
        height = self.set_angles(angles)
        qpos = self.d.qpos.copy()
        qpos[2] = height
        return qpos

    def weight(self) -> float:
        """Weight of the robot [N]."""
        return self.m.body(self.base).subtreemass[0] * float(np.linalg.norm(self.m.opt.gravity))

    def arguments(self, robot: Robot) -> dict[str, Any]:
        """The task's arguments that follow from the robot, beside its model."""
        lifts = self.lift_direction(np.array(robot.stance))
        return dict(lift_direction=lifts, base_height=robot.height, scale=tuple(robot.scale or ()))
