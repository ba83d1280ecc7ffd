"""The description of a loaded robot as a file for `conf/robot/`: what was guessed, and why."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict

from gpusim_rl.robots.bodies import FREE, keyframe_of
from gpusim_rl.robots.load import SHAPES, TASKS, Loaded


def reasons(described: Mapping[str, object], loaded: Loaded) -> dict[str, str]:
    """Key → where its value comes from, for each that the description before loading lacks."""
    m, robot, shape = loaded.original, loaded.robot, loaded.shape
    free = (m.jnt_type == FREE).any()
    why = {"base": "the body with the free joint" if free else "the root of the joints"}
    why |= shape.reasons(robot, bool(described.get("feet")))
    addition, guess, failed = shape.stance_words
    why["stance"] = guess + (f", as {failed} in a keyframe" if m.nkey else "")
    if keyframe := keyframe_of(m, shape.joints.names, robot.stance):
        why["stance"] = f"the keyframe {keyframe}{addition}"
    return {key: text for key, text in why.items() if described.get(key) is None}


def shape_of(loaded: Loaded) -> str:
    """The name of a robot's shape, one of `SHAPES`."""
    return next(name for name, kind in SHAPES.items() if type(loaded.shape) is kind)


def sentence(loaded: Loaded) -> str:
    """A robot in a few words, such as: quadruped, 12 joints, stands at 0.29 m."""
    robot, joints = loaded.robot, len(loaded.shape.joints.names)
    place = f"reaches {loaded.shape.size:.2f} m"
    if robot.height is not None:
        place = f"stands at {robot.height:.2f} m"
    return f"{shape_of(loaded)}, {joints} joints, {place}"


def task_words(loaded: Loaded, described: Mapping[str, object], name: str) -> str:
    """The words of train.py that train a robot.

    described: the description before loading. name: of its file in conf/robot/; "own" if there is
    none.
    """
    words = [f"task={TASKS[shape_of(loaded)]}"]
    if name != "own":
        return " ".join([*words, f"robot={name}"])
    usual = {"mjcf": None, "collide": "feet"}
    given = {key: x for key, x in described.items() if x is not None and x != usual.get(key)}
    for key, x in given.items():
        text = x if isinstance(x, str) else json.dumps(x, separators=(",", ":"))
        words.append(shlex.quote(f"robot.{key}={text}"))
    return " ".join(words)


def as_yaml(
    loaded: Loaded,
    described: Mapping[str, object],
    name: str,
    actuator: dict[str, object],
    whole: bool = True,
) -> str:
    """The text of a file in conf/robot/ that describes a robot, with these actuators.

    A comment above each value that `described` lacks says where it comes from. Such a file needs
    all keys; `whole=False` leaves out those that do not apply: what is null, or of feet that the
    robot lacks.
    """
    if not whole:
        actuator = {key: x for key, x in actuator.items() if x is not None}
    why, legs = reasons(described, loaded), loaded.robot.joints
    legs = [legs] if isinstance(legs[0], str) else legs
    lines = [f"# conf/robot/{name}.yaml", f"name: {name}"]
    for key, value in asdict(loaded.robot).items():
        footless = value == "feet" and loaded.robot.feet is None
        if not whole and (value is None or footless):
            continue
        if key != "joints" and isinstance(value, list) and len(value) == sum(map(len, legs)):
            leg = value[: len(legs[0])]
            repeated = value == leg * len(legs)
            value = leg[0] if value == leg[:1] * len(value) else leg if repeated else value
        lines += [f"# {why[key]}"] if key in why else []
        lines.append(f"{key}: {json.dumps(value)}")  # JSON is YAML
    lines.append(f"actuator: {json.dumps(actuator)}")
    return "\n".join(lines)
