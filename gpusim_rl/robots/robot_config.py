"""The configuration of a robot, as `conf/robot/` has it."""

from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class Robot:
    """The description of a robot in `conf/robot/<name>.yaml`.

    `robots.load` guesses the values that are None, for a quadruped from the sources named below. A
    value for the joints is one number, three (abduction, thigh, knee) or twelve. The legs are in
    the order FL, FR, RL, RR.

    A humanoid has two legs, left and right, and a value for its joints is one number, those of a
    leg from the hip down, or those of both.

    An arm has a fixed base, a list of joints from there to the tool, and a number or as many for
    these. The guesses of all are those of `robots/description.py`.
    """

    mjcf: str  # a path, package:path within an installed package, or menagerie:robot
    base: str | None = None  # body; guess: the one with the free joint, else the root
    # four geoms, sites or bodies; guess: the spheres at the ends of the legs
    feet: list[str] | None = None
    joints: Any = None  # four lists of abduction, thigh, knee; guess: the hinges above each foot
    # [rad]; guess: the first keyframe in which the robot stands, else legs bent with the feet below
    # the hips
    stance: Any = None
    # [N m/rad]; guess: the gains of the file's servos if the robot stands with them, else weight
    # times height, or twice that if it stands only then
    kp: Any = None
    # [N m s/rad]; guess: as kp, else √(kp · inertia of the leg about its hip)
    kd: Any = None
    torque: Any = None  # [N m]; guess: the limits in the file, else weight times height
    # [kg m²]; guess: the value in the file, else a fifth of the inertia of the leg about its hip,
    # or all of it if the robot stands still only then
    armature: Any = None
    scale: Any = None  # [rad] of joint target per unit of action; None: the task's `action_scale`
    height: float | None = None  # [m] of the base; guess: measured in simulation
    # ±1: the sign of each joint in a mirrored pose; guess: from the joints' axes, None if the robot
    # is not symmetric
    mirror: list[float] | None = None
    # An arm's site or body; guess: a site with such a name, the fingertips' middle, the last
    # body's end
    tool: str | None = None
    collide: str  # what touches the ground: feet | all (as in the file, with boxes for meshes)
