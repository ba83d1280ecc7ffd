"""The description of a loaded robot as a file for `conf/robot/`: what was guessed, and why."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from gpusim_rl.robots.arm.description import arm_reasons
from gpusim_rl.robots.arm.loading import LoadedArm
from gpusim_rl.robots.arm.prepare import TOOL
from gpusim_rl.robots.bodies import FREE, keyframe_of
from gpusim_rl.robots.humanoid.description import humanoid_reasons
from gpusim_rl.robots.humanoid.loading import LoadedHumanoid
from gpusim_rl.robots.quadruped.loading import GUESSES, LoadedRobot
from gpusim_rl.robots.quadruped.topology import LEGS
from gpusim_rl.robots.servos import joint_parameters

FROM_FILE = {  # where the file says it
    "kp": "the gains of the file's servos, with which it stands",
    "kd": "the damping of the file's servos, with which it stands",
    "torque": "the limits in the file",
    "armature": "as in the file",
}
GUESS = {
    "kp": "weight times height",
    "armature": "a fifth of the inertia of a leg about its hip",
    "kd": "√(kp · (armature + inertia of a leg about its hip))",
    "torque": "weight times height",
}


def reasons(given: dict[str, Any], loaded: LoadedRobot) -> dict[str, str]:
    """Where each value of a description comes from that was not given.

    Args:
        given: the description before loading.
        loaded: the robot.
    """
    robot, m = loaded.robot, loaded.original
    free = (m.jnt_type == FREE).any()
    spheres = all(was_there(loaded, geom) for geom in loaded.foot_geoms)
    named = given.get("feet") is not None
    why = {
        "base": "the body with the free joint" if free else "the root of the joints",
        "joints": f"{'the hinges above each foot' if named else 'four chains of three hinges'}, "
        "front and left by their positions",
        "feet": f"{'the' if spheres else 'new'} spheres at the ends of the legs",
        "stance": stance_reason(loaded),
        **{key: gain_reason(loaded, key) for key in FROM_FILE},
        "height": "measured while it stands",
        "mirror": "from the axes of the joints" if robot.mirror else "the robot is not symmetric",
    }
    return {key: text for key, text in why.items() if given.get(key) is None}


def labels_of(loaded: LoadedRobot | LoadedHumanoid | LoadedArm) -> dict[str, str]:
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


def stance_reason(loaded: LoadedRobot) -> str:
    """Where the stance comes from."""
    m = loaded.original
    if keyframe := keyframe_of(m, joint_names(loaded), loaded.robot.stance):
        return f"the keyframe {keyframe}, in which it stands"
    tried = ", as it did not stand in a keyframe" if m.nkey else ""
    return f"bent legs with the feet below the hips{tried}"


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
        return f"twice {GUESS[key]}", ["less"]
    if key == "armature" and guess.armature != first.armature:
        return "the inertia of a leg about its hip", ["a fifth of it"]
    return GUESS[key], []


def as_yaml(
    loaded: LoadedRobot | LoadedHumanoid | LoadedArm,
    given: dict[str, Any],
    name: str,
    actuator: dict[str, Any],
) -> str:
    """The text of a file in conf/robot/ that describes a robot, with these actuators.

    A comment above each value that was not given says where it comes from.
    """
    if isinstance(loaded, LoadedArm):
        why, legs = arm_reasons(given, loaded), [loaded.robot.joints]
    else:
        humanoid = isinstance(loaded, LoadedHumanoid)
        why = humanoid_reasons(given, loaded) if humanoid else reasons(given, loaded)
        legs = loaded.robot.joints
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
