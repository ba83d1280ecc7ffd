"""The description of a loaded robot as a file for `conf/robot/`: what was guessed, and why."""

import json
from dataclasses import asdict
from typing import Any

from gpusim_rl.robots.bodies import FREE, keyframe_of
from gpusim_rl.robots.load import Loaded


def reasons(described: dict[str, Any], loaded: Loaded) -> dict[str, str]:
    """Key → where its value comes from, for each that the description lacks.

    Args:
        described: the description before loading.
        loaded: the robot.
    """
    m, robot, shape = loaded.original, loaded.robot, loaded.shape
    free = (m.jnt_type == FREE).any()
    why = {"base": "the body with the free joint" if free else "the root of the joints"}
    why |= shape.reasons(robot, bool(described.get("feet")))
    addition, guess, failed = shape.stance_words
    why["stance"] = guess + (f", as {failed} in a keyframe" if m.nkey else "")
    if keyframe := keyframe_of(m, shape.joints.names, robot.stance):
        why["stance"] = f"the keyframe {keyframe}{addition}"
    return {key: text for key, text in why.items() if described.get(key) is None}


def as_yaml(loaded: Loaded, described: dict[str, Any], name: str, actuator: dict[str, Any]) -> str:
    """The text of a file in conf/robot/ that describes a robot, with these actuators.

    A comment above each value that `described` lacks says where it comes from.
    """
    why, legs = reasons(described, loaded), loaded.robot.joints
    legs = [legs] if isinstance(legs[0], str) else legs
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
