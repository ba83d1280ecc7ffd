"""The description of a loaded robot as a file for `conf/robot/`: what was guessed, and why."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from gpusim_rl.robots.arm.loading import LoadedArm
from gpusim_rl.robots.arm.prepare import TOOL
from gpusim_rl.robots.bodies import FREE, keyframe_of
from gpusim_rl.robots.humanoid.loading import LoadedHumanoid
from gpusim_rl.robots.inertias import shown
from gpusim_rl.robots.quadruped.loading import GUESSES, LoadedRobot
from gpusim_rl.robots.quadruped.topology import LEGS
from gpusim_rl.robots.servos import gain_reasons, joint_parameters

Loaded = LoadedRobot | LoadedHumanoid | LoadedArm

FROM_FILE = {  # where the file of a quadruped says it
    "kp": "the gains of the file's servos, with which it stands",
    "kd": "the damping of the file's servos, with which it stands",
    "torque": "the limits in the file",
    "armature": "as in the file",
}
# How each shape of robots is guessed.
QUADRUPED = {
    "kp": "weight times height",
    "armature": "a fifth of the inertia of a leg about its hip",
    "kd": "√(kp · (armature + inertia of a leg about its hip))",
    "torque": "weight times height",
}
HUMANOID = {
    "torque": "half of weight times the length of a leg, of an ankle a quarter",
    "armature": "1.5e-4 s² times the torque, as of the motors of Unitree G1's legs",
    "kp": "armature · (2π · 10 Hz)²",
    "kd": "4 · √(kp · armature): a damping ratio of 2",
}
ARM = {
    "torque": "twice that of the weights it lifts, and 10 rad/s² of acceleration; a seventh of the "
    "largest at least",
    "armature": HUMANOID["armature"],
    "kp": "(armature + inertia of what it moves) · (2π · 3 Hz)², or 10 times the weights' torque",
    "kd": "2 · √(kp · (armature + inertia of what it moves)): a damping ratio of 1",
}


def reasons(given: dict[str, Any], loaded: Loaded) -> dict[str, str]:
    """Key → where its value comes from, for each that was not given.

    Args:
        given: the description before loading.
        loaded: the robot.
    """
    if isinstance(loaded, LoadedArm):
        why = arm_reasons(loaded)
    elif isinstance(loaded, LoadedHumanoid):
        why = humanoid_reasons(loaded, bool(given.get("feet")))
    else:
        why = quadruped_reasons(loaded, given.get("feet") is not None)
    return {key: text for key, text in why.items() if given.get(key) is None}


def quadruped_reasons(loaded: LoadedRobot, named: bool) -> dict[str, str]:
    """Key → where its value comes from; `named` tells that the feet were given."""
    spheres = all(was_there(loaded, geom) for geom in loaded.foot_geoms)
    return {
        "base": base_reason(loaded),
        "joints": f"{'the hinges above each foot' if named else 'four chains of three hinges'}, "
        "front and left by their positions",
        "feet": f"{'the' if spheres else 'new'} spheres at the ends of the legs",
        "stance": stance_reason(
            loaded,
            joint_names(loaded),
            addition=", in which it stands",
            guess="bent legs with the feet below the hips",
            failed="it did not stand",
        ),
        **{key: gain_reason(loaded, key) for key in FROM_FILE},
        "height": "measured while it stands",
        "mirror": "from the axes of the joints"
        if loaded.robot.mirror
        else "the robot is not symmetric",
    }


def humanoid_reasons(loaded: LoadedHumanoid, named: bool) -> dict[str, str]:
    """Key → where its value comes from; `named` tells that the feet were given."""
    fixed = f"; fixed at 0: {shown(loaded.locked)}" if loaded.locked else ""
    legs = "the hinges above each foot" if named else "the lowest pair of chains, left and right"
    mm = [round(2e3 * x) for x in np.ptp(loaded.posture.soles[0].corners, 0) / 2]
    return {
        "base": base_reason(loaded),
        "joints": f"{legs}{fixed}",
        "feet": f"the ends of the legs; spheres at the corners of their soles, {max(mm)} by "
        f"{sorted(mm)[1]} mm apart",
        "stance": stance_reason(
            loaded,
            loaded.posture.names,
            addition=", with the center of mass above the soles",
            guess="bent knees, level soles, the center of mass above them",
            failed="it cannot stand",
        ),
        **gain_reasons(loaded.original, loaded.posture.names, loaded.robot, HUMANOID),
        "height": "of the base in the stance",
    }


def arm_reasons(loaded: LoadedArm) -> dict[str, str]:
    """Key → where its value comes from."""
    m, names = loaded.original, loaded.robot.joints
    turn = round(float(np.degrees(loaded.turn)))
    angle = f"{turn}° about its z from that site's or body's"
    turned = f"; its frame is turned by {angle}, so that x points forward" if turn else ""
    fixed = f"; fixed: {shown(loaded.locked)}" if loaded.locked else ""
    endless = [name for name in names if not m.jnt_limited[m.joint(name).id]]
    limits = f"; without limits in the file, ±180° here: {shown(endless)}" if endless else ""
    return {
        "base": "the body that carries all joints",
        "joints": f"the longest chain of hinges from the base{fixed}{limits}",
        "tool": f"{loaded.tool.why}{turned}",
        "stance": stance_reason(
            loaded,
            names,
            addition="",
            guess="the tool in front of the shoulder and pointing down, nothing touches",
            failed="something touches or is beyond limits",
        ),
        **gain_reasons(m, names, loaded.robot, ARM),
        "mirror": "from the axes of the joints; mirrored poses were compared"
        if loaded.robot.mirror
        else "the arm is not its own mirror image",
    }


def base_reason(loaded: LoadedRobot | LoadedHumanoid) -> str:
    """Where the base comes from."""
    free = (loaded.original.jnt_type == FREE).any()
    return "the body with the free joint" if free else "the root of the joints"


def stance_reason(
    loaded: Loaded, names: list[str], *, addition: str, guess: str, failed: str
) -> str:
    """Where the stance of these joints comes from: a keyframe, or a guess since those failed."""
    m = loaded.original
    if keyframe := keyframe_of(m, names, loaded.robot.stance):
        return f"the keyframe {keyframe}{addition}"
    return guess + (f", as {failed} in a keyframe" if m.nkey else "")


def labels_of(loaded: Loaded) -> dict[str, str]:
    """Leg → a geom of its foot in the model; of an arm, tool → its site."""
    if isinstance(loaded, LoadedArm):
        return {"tool": TOOL}
    if isinstance(loaded, LoadedHumanoid):
        return loaded.feet
    return dict(zip(LEGS, loaded.foot_geoms, strict=True))


def was_there(loaded: LoadedRobot, geom: str) -> bool:
    """Whether a foot's geom is in the file: its body then has no geom more than there."""
    m, original = loaded.mjm, loaded.original
    body = m.geom(geom).bodyid[0]
    return bool(m.body_geomnum[body] == original.body(m.body(body).name).geomnum[0])


def joint_names(loaded: LoadedRobot) -> list[str]:
    """(12,) names of the joints."""
    return [name for leg in loaded.robot.joints for name in leg]


def gain_reason(loaded: LoadedRobot, key: str) -> str:
    """Where the values of kp, kd, torque or armature come from."""
    file = joint_parameters(loaded.original, joint_names(loaded), key)
    said, used = ~np.isnan(file), np.isclose(file, getattr(loaded.robot, key), rtol=1e-4)
    if used.all():
        return FROM_FILE[key]
    guess, tried = guess_of(loaded, key)
    if used.any():
        guess = f"{FROM_FILE[key]}, where it has any; else {guess}"
    elif said.any():
        tried = ["the file's own", *tried]
    return guess + (f", as it did not stand with {' or '.join(tried)}" if tried else "")


def guess_of(loaded: LoadedRobot, key: str) -> tuple[str, list[str]]:
    """How kp, kd, torque or armature were guessed, and which guesses did not stand."""
    guess, first = loaded.guess, GUESSES[0]
    if key == "kp" and guess.kp != first.kp:
        return f"twice {QUADRUPED[key]}", ["less"]
    if key == "armature" and guess.armature != first.armature:
        return "the inertia of a leg about its hip", ["a fifth of it"]
    return QUADRUPED[key], []


def as_yaml(
    loaded: Loaded,
    given: dict[str, Any],
    name: str,
    actuator: dict[str, Any],
) -> str:
    """The text of a file in conf/robot/ that describes a robot, with these actuators.

    A comment above each value that was not given says where it comes from.
    """
    why, legs = reasons(given, loaded), loaded.robot.joints
    legs = [legs] if isinstance(loaded, LoadedArm) else legs
    lines = [f"# conf/robot/{name}.yaml", f"name: {name}"]
    for key, value in asdict(loaded.robot).items():
        if key != "joints" and isinstance(value, list) and len(value) == sum(map(len, legs)):
            leg = value[: len(legs[0])]
            repeated = value == leg * len(legs)
            value = leg[0] if value == leg[:1] * len(value) else leg if repeated else value
        lines += [f"# {why[key]}"] if key in why else []
        lines.append(f"{key}: {json.dumps(value)}")  # JSON is YAML
    lines.append(f"actuator: {json.dumps(actuator)}")
    return "\n".join(lines)
