"""The shape of arms on a fixed base, for `tasks/manipulation/reach.py`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import torch

from gpusim_rl.core.errors import warn, warn_once
from gpusim_rl.core.waiting import waiting
from gpusim_rl.robots.arm import prepare, topology
from gpusim_rl.robots.arm.gains import REASONS, fill_gains, largest_speeds, measure
from gpusim_rl.robots.arm.kinematics import Kinematics
from gpusim_rl.robots.arm.posture import fault, find_home, forward_turn, mirror_signs
from gpusim_rl.robots.arm.tool import find_tool, unmoved_by
from gpusim_rl.robots.arm.workspace import Box, find_box
from gpusim_rl.robots.bodies import HINGE, SLIDE, Array, RobotError, Signs, kinematics, qpos_columns
from gpusim_rl.robots.inertias import join_names
from gpusim_rl.robots.prepare import boxes_for_meshes, remove_files
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import Joints, diverges, gain_reasons, joint_parameters

NOT_OF_ARMS = ("feet", "scale", "height")  # keys of a description
EXACT = 1e-6  # m
MARGIN = 0.05  # rad: how far angles of the workspace keep from the ends of their ranges
HOLD = 1.0  # s, after which the servos must hold the home pose
DROP = 0.3  # rad, by which they may not


class Arm:
    """A chain of hinges from a fixed base to a tool; its attributes are those of a `Walker`."""

    stance_words = (
        "",
        "the tool in front of the shoulder and pointing down, nothing touches",
        "something touches or is beyond limits",
    )

    def __init__(self, robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel):
        for key in NOT_OF_ARMS:
            if getattr(robot, key) is not None:
                raise RobotError(f"robot.{key}: an arm has none")
        self.original = original
        root = topology.find_root(original, robot.base)
        links = topology.find_links(original, root, robot.joints, robot.tool)
        self.tool, self.turn = find_tool(original, links, robot.tool), 0.0  # rad, about its z
        if still := unmoved_by(original, links, self.tool):
            warn_once(
                f"warning: {robot.mjcf}: the tool lies on the joint {join_names(still)}, which "
                "turns it and does not move it: name a site or body elsewhere, robot.tool=NAME"
            )
        names = [original.joint(j).name for j in links.joints]
        base = original.body(root).name
        self.robot = replace(robot, base=base, joints=names, tool=self.tool.name)
        self.joints = Joints(names, (1, len(names)), f"a number, or {len(names)}")
        self.servos = {name: name for name in names}
        self.labels = {"tool": prepare.TOOL}

    def prepare(self, spec: mujoco.MjSpec) -> mujoco.MjSpec:
        """Prepare a spec, in place. Returns a copy that has boxes for meshes."""
        meshless, names = spec.copy(), self.joints.names
        remove_files(meshless, self.original)
        if self.robot.collide == "all":
            boxes_for_meshes(spec, self.original)
        rest = rest_positions(self.original)
        for each in (spec, meshless):
            prepare.prepare_arm(each, self.original, names, self.tool, rest)
        # Meshes touch as in the file: boxes around them would touch where they do not.
        self.kinematics = Kinematics(spec.compile(), prepare.TOOL, MARGIN)
        self.check_tool(rest)
        self.size, self.specs = self.kinematics.reach, (spec, meshless)
        return meshless

    def check_tool(self, rest: Array) -> None:
        """RobotError unless the tool is where it is in the file, in the pose `rest`."""
        arm, qpos = self.kinematics, rest.copy()
        columns = qpos_columns(self.original, self.joints.names)
        qpos[columns] = np.clip(rest[columns], arm.low.numpy(), arm.high.numpy())
        d = kinematics(self.original, qpos)
        body = self.tool.body
        place = d.xpos[body] + d.xmat[body].reshape(3, 3) @ self.tool.pos
        chain, _ = arm.chain.pose(torch.from_numpy(d.qpos[columns])[None])
        if np.abs(chain[0].numpy() - place).max() > EXACT:
            raise RobotError(
                "the joints that are no part of the arm cannot be locked where they are in the "
                "first keyframe: remove it from the file, or put them at 0"
            )

    def stances(self) -> list[Array]:
        """The home pose. Turns the tool, and sets what collides in this pose, in place."""
        arm, home = self.kinematics, self.home()
        self.loads = measure(arm)
        self.turn = forward_turn(arm.chain, home)
        turned = prepare.turned(self.tool, self.turn)
        arm.turn_tool(turned)
        for each in self.specs:
            each.site(prepare.TOOL).quat = turned
            prepare.set_collisions(each, self.robot.collide, arm.neighbors)
            prepare.add_view(each, arm)
        return [home]

    def home(self) -> Array:
        """(n,) the description's stance, that of the first keyframe that will do, or a guess."""
        arm, poses = self.kinematics, self.joints.stances(self.robot, self.original)
        home = next((pose for pose in poses if not fault(arm, pose)), None)
        if (stance := self.robot.stance) is not None:
            if home is None:
                raise RobotError(f"robot.stance={stance}: {fault(arm, poses[0])}")
            return home
        home = find_home(arm) if home is None else home
        if home is None:
            raise RobotError(
                "robot.stance: in each pose that was tried something touches: name one"
            )
        return np.round(home, 4) + 0.0  # no -0

    def gains(self, filled: Callable[..., Array]) -> None:
        """Fill in gains and limits by the weights and inertias that each joint bears."""
        m, names, rotor = self.original, self.joints.names, self.robot.armature
        servo = ~np.isnan(joint_parameters(m, names, "kp"))  # others have no kd to keep
        if rotor is None:
            rotor = np.nan_to_num(joint_parameters(m, names, "armature"))
        fill_gains(filled, self.loads, self.joints.values("armature", rotor), servo)

    def qpos(self, angles: Array) -> Array:
        """(n,) positions in the model's order, which is that of the chain."""
        return angles

    def check(self, m: mujoco.MjModel) -> tuple[None, str]:
        """(None, why the servos do not hold the home pose or "")."""
        return None, diverges(m) or drops(m)

    def mirror(self, robot: Robot, mjm: mujoco.MjModel, signs: Signs) -> list[float] | None:
        """(n,) the signs of a mirrored pose. None if the arm is not its own mirror image."""
        chain = self.kinematics.chain
        mirrored = mirror_signs(self.kinematics.m, chain, np.array(robot.stance), signs)
        if signs and mirrored is None:
            raise RobotError(f"robot.mirror={robot.mirror}: the arm is not its own mirror image so")
        return None if mirrored is None else list(mirrored)

    def arguments(self, robot: Robot) -> dict[str, Any]:
        """The task's arguments that follow from the robot, beside its model."""
        return dict(signs=tuple(robot.mirror or ()))

    def task_numbers(
        self, robot: Robot, lean: float | None, fixed: dict[str, Any]
    ) -> dict[str, Any]:
        """Key of the task → a number that this arm can do.

        lean: the largest one that goals may have [rad]; None for goals without a rotation. fixed:
        values of a `Box` that stay as they are.
        """
        speed, acceleration = largest_speeds(robot, self.loads)
        last = self.original.jnt_bodyid[self.original.joint(self.joints.names[-1]).id]
        numbers: dict[str, Any] = {
            "largest_speed": three_digits(speed),
            "largest_acceleration": three_digits(acceleration),
            "randomise.payload.only": [self.original.body(last).name],
        }
        if not self.kinematics.m.dof_damping.any():
            numbers["randomise.damping.kind"] = "off"  # there is none to scale
        keys = Box._fields if lean is not None else Box._fields[:2]
        if {*keys} <= {*fixed}:
            return numbers
        with waiting("looking for goals that the arm can reach", warn):
            box = find_box(self.kinematics, prepare.lowest(self.original), lean, fixed)
        of_box = {key: getattr(box, key) for key in keys}
        return numbers | {k: [*x] if isinstance(x, tuple) else x for k, x in of_box.items()}

    def reasons(self, robot: Robot, named: bool) -> dict[str, str]:
        """Key → where its value comes from."""
        m, names, angle = self.original, self.joints.names, round(float(np.degrees(self.turn)))
        turn = f"turned by {angle}° about its z from that site's or body's"
        turned = f"; its frame is {turn}, so that x points forward" if angle else ""
        others = self.joints.others(m)
        fixed = f"; fixed: {join_names(others)}" if others else ""
        endless = [name for name in names if not m.jnt_limited[m.joint(name).id]]
        limits = f"; without limits in the file, ±180° here: {join_names(endless)}"
        limits = limits if endless else ""
        return {
            **gain_reasons(m, names, robot, REASONS),
            "base": "the body that carries all joints",
            "joints": f"the longest chain of hinges from the base{fixed}{limits}",
            "tool": f"{self.tool.why}{turned}",
            "mirror": "from the axes of the joints; mirrored poses were compared"
            if robot.mirror
            else "the arm is not its own mirror image",
        }


def rest_positions(original: mujoco.MjModel) -> Array:
    """(nq,) where joints that do not move are: as in the first keyframe, else as near to 0 as their
    ranges are."""
    if original.nkey:
        return original.key_qpos[0].copy()
    rest = original.qpos0.copy()
    for j in np.flatnonzero(original.jnt_limited):
        if int(original.jnt_type[j]) in (HINGE, SLIDE):
            at = original.jnt_qposadr[j]
            rest[at] = np.clip(rest[at], *original.jnt_range[j])
    return rest


def drops(m: mujoco.MjModel) -> str:
    """A line if the servos do not hold the arm in its home pose, else ""."""
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_step(m, d, round(HOLD / m.opt.timestep))
    gone = np.abs(d.qpos - m.key_qpos[0])
    if gone.max() <= DROP:
        return ""
    name = m.joint(int(gone.argmax())).name
    return (
        f"the servos do not hold the arm: {name!r} moves by {gone.max():.2f} rad in {HOLD:g} s: "
        "robot.kp or robot.torque is too small"
    )


def three_digits(values: Array) -> list[float]:
    """The values with three significant digits."""
    return [float(f"{x:.3g}") for x in values]
