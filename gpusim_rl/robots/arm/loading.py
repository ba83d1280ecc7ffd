"""Load an arm: turn its unmodified MJCF or URDF file into a model for
`tasks/manipulation/reach.py`."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
import torch

from gpusim_rl.core.errors import warn, warn_once
from gpusim_rl.core.waiting import waiting
from gpusim_rl.robots.arm import gains, prepare, topology
from gpusim_rl.robots.arm.gains import Loads, arm_values
from gpusim_rl.robots.arm.kinematics import Kinematics
from gpusim_rl.robots.arm.posture import fault, find_home, forward_turn, mirror_signs
from gpusim_rl.robots.arm.tool import Tool, find_tool, named_tool
from gpusim_rl.robots.arm.workspace import Box, find_box
from gpusim_rl.robots.bodies import HINGE, SLIDE, Array, RobotError
from gpusim_rl.robots.inertias import implausible
from gpusim_rl.robots.prepare import add_servos, remove_files
from gpusim_rl.robots.robot_config import Robot
from gpusim_rl.robots.servos import diverges, six_digits

NOT_OF_ARMS = ("feet", "scale", "height")  # keys of a description
EXACT = 1e-6  # m
MARGIN = 0.05  # rad: how far angles of the workspace keep from the ends of their ranges
HOLD = 1.0  # s, after which the servos must hold the home pose
DROP = 0.3  # rad, by which they may not


@dataclass(kw_only=True)
class LoadedArm:
    """An arm that is ready for the task."""

    robot: Robot  # the description without None, apart from `mirror` and what an arm has not
    original: mujoco.MjModel  # the model of the file
    mjm: mujoco.MjModel
    spec: mujoco.MjSpec  # of mjm
    text: str  # the MJCF without meshes and textures, for the ONNX file
    tool: Tool
    turn: float  # rad, of the tool's frame about its z
    kinematics: Kinematics
    loads: Loads

    @property
    def arguments(self) -> dict[str, Any]:
        """What the task is told of the robot, beside its model."""
        return dict(signs=tuple(self.robot.mirror or ()))

    @cached_property
    def speeds(self) -> tuple[Array, Array]:
        """(n,) largest speed [rad/s] and acceleration [rad/s²] of the targets."""
        return gains.speeds(self.robot, self.loads)

    def task_numbers(self, lean: float | None, given: dict[str, Any]) -> dict[str, Any]:
        """Key of the task → what this arm can be asked for.

        Args:
            lean: that is asked for [rad]; None for goals without a rotation.
            given: of the values of a `Box` those that stay as they are.
        """
        speed, acceleration = self.speeds
        last = self.original.jnt_bodyid[self.original.joint(self.robot.joints[-1]).id]
        numbers: dict[str, Any] = {
            "largest_speed": three_digits(speed),
            "largest_acceleration": three_digits(acceleration),
            "randomise.payload.only": [self.original.body(last).name],
        }
        if not self.mjm.dof_damping.any():
            numbers["randomise.damping.kind"] = "off"  # there is none to scale
        wanted = Box._fields if lean is not None else Box._fields[:2]
        if {*wanted} <= {*given}:
            return numbers
        with waiting("looking for goals that the arm can reach", warn):
            box = find_box(self.kinematics, prepare.lowest(self.original), lean, given)
        of_box = {key: getattr(box, key) for key in wanted}
        return numbers | {k: [*x] if isinstance(x, tuple) else x for k, x in of_box.items()}

    @property
    def locked(self) -> list[str]:
        """The joints of the file that do not move."""
        names = [self.original.joint(j).name for j in range(self.original.njnt)]
        return [name for name in names if name not in self.robot.joints]


def build_arm(robot: Robot, spec: mujoco.MjSpec, original: mujoco.MjModel) -> LoadedArm:
    """The arm in the first home pose that is free of contact. `original` is the compiled spec."""
    robot, tool = describe_chain(robot, original)
    meshless = spec.copy()
    remove_files(meshless, original)
    if robot.collide == "all":
        prepare.boxes_for_meshes(spec, original)
    rest = rest_positions(original)
    for each in (spec, meshless):
        prepare.prepare_arm(each, original, robot.joints, tool, rest)
    arm = Kinematics(spec.compile(), prepare.TOOL, MARGIN)
    check_tool(arm, original, robot.joints, tool, rest)
    if line := implausible(original, str(robot.base), 2 * arm.reach):
        warn_once(f"warning: {robot.mjcf}: {line}")
    home, loads = choose_home(robot, original, arm), gains.measure(arm)
    robot = gains.fill_gains(replace(robot, stance=six_digits(home)), original, loads)
    turn = forward_turn(arm.chain, home)
    arm.turn_tool(prepare.turned(tool, turn))
    robot = replace(robot, mirror=choose_mirror(robot, arm))
    for each in (spec, meshless):
        each.site(prepare.TOOL).quat = prepare.turned(tool, turn)
        prepare.set_collisions(each, robot.collide, arm.neighbors)
        prepare.add_view(each, arm)
        add_servos(each, {joint: joint for joint in robot.joints}, robot, home)
    if line := diverges(mjm := spec.compile()) or drops(mjm):
        raise RobotError(line)
    return LoadedArm(
        robot=robot,
        original=original,
        mjm=mjm,
        spec=spec,
        text=meshless.to_xml(),
        tool=tool,
        turn=turn,
        kinematics=arm,
        loads=loads,
    )


def describe_chain(robot: Robot, original: mujoco.MjModel) -> tuple[Robot, Tool]:
    """The description with base, joints and tool, and the tool's frame."""
    for key in NOT_OF_ARMS:
        if getattr(robot, key) is not None:
            raise RobotError(f"robot.{key}: an arm has none")
    root = topology.find_root(original, robot.base)
    end = None if robot.tool is None else named_tool(original, robot.tool)[0]
    links = topology.find_links(original, root, robot.joints, end)
    tool = find_tool(original, links, robot.tool)
    joints = [original.joint(j).name for j in links.joints]
    return replace(robot, base=original.body(root).name, joints=joints, tool=tool.name), tool


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


def check_tool(
    arm: Kinematics, original: mujoco.MjModel, joints: list[str], tool: Tool, rest: Array
) -> None:
    """RobotError unless the tool is where it is in the file, in the pose `rest`."""
    d = mujoco.MjData(original)
    d.qpos[:] = rest
    columns = [original.jnt_qposadr[original.joint(name).id] for name in joints]
    d.qpos[columns] = np.clip(rest[columns], arm.low.numpy(), arm.high.numpy())
    mujoco.mj_kinematics(original, d)
    want = d.xpos[tool.body] + d.xmat[tool.body].reshape(3, 3) @ tool.pos
    got, _ = arm.chain.pose(torch.from_numpy(d.qpos[columns])[None])
    if np.abs(got[0].numpy() - want).max() > EXACT:
        raise RobotError(
            "the joints that are no part of the arm cannot be locked where they are in the first "
            "keyframe: remove it from the file, or put them at 0"
        )


def choose_home(robot: Robot, original: mujoco.MjModel, arm: Kinematics) -> Array:
    """(n,) the given stance, that of the first keyframe that will do, or one that is found."""
    if robot.stance is not None:
        home = arm_values("stance", robot.stance, arm.m.nu or arm.m.nq)
        if line := fault(arm, home):
            raise RobotError(f"robot.stance={robot.stance}: {line}")
        return home
    columns = [original.jnt_qposadr[original.joint(name).id] for name in robot.joints]
    for qpos in original.key_qpos:
        if not fault(arm, qpos[columns]):
            return np.round(qpos[columns], 4) + 0.0
    home = find_home(arm)
    if home is None:
        raise RobotError("robot.stance: in each pose that was tried something touches: name one")
    return np.round(home, 4) + 0.0  # no -0


def choose_mirror(robot: Robot, arm: Kinematics) -> list[float] | None:
    """(n,) the signs of a mirrored pose: those of robot.mirror after a check, else found ones."""
    given = () if robot.mirror is None else arm_values("mirror", robot.mirror, arm.m.nq)
    if not {*given} <= {-1.0, 1.0}:
        raise RobotError(f"robot.mirror={robot.mirror}: expected signs, 1 or -1")
    signs = mirror_signs(arm.m, arm.chain, np.array(robot.stance), tuple(map(float, given)))
    if len(given) and signs is None:
        raise RobotError(f"robot.mirror={robot.mirror}: the arm is not its own mirror image so")
    return None if signs is None else list(signs)


def drops(m: mujoco.MjModel) -> str:
    """A line if the servos do not hold the arm in its home pose, else ""."""
    d = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    for _ in range(round(HOLD / m.opt.timestep)):
        mujoco.mj_step(m, d)
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
