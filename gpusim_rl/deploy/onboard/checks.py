"""Faults of readings, a command or a file, in one line that names them. NumPy alone."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from .verdict import Json, difference, read_verdict

BEYOND = 0.2  # [rad, m] a joint may be measured outside of its range
FARTHEST_POSE = 100.0  # [rad, m] of a pose, for a joint without a range
IMU = ("gyro", "accelerometer")  # types of sensors; those of an axis as well
JOINTS = {"joint_pos", "joint_vel"}
DEGREES = 180 / math.pi
NO_NUMBERS = (TypeError, ValueError, OverflowError)  # what numpy raises; 10**400 overflows
Array = np.ndarray
Values = dict[str, Array]  # name of a reading → (width,)
Bounds = dict[str, tuple[Array, Array]]  # name → least and greatest value that is taken
Readings = Mapping[str, Any]


class Policy(Protocol):
    """What is used of a `Policy` of runtime.py; see there."""

    data: bytes
    description: Json
    mjcf: str
    dt: float
    needs: dict[str, int]
    views: dict[str, tuple[tuple[int, ...], str]]
    reads: dict[str, list[str]]
    command: Json | None
    outputs: Json
    joints: list[str]
    fault: Array

    def reset(self) -> None: ...
    def act(self, readings: Readings, command: Any = None) -> Array: ...
    def reading(self, name: str, readings: Readings) -> Array: ...
    def view(self, name: str, readings: Readings) -> Array: ...
    def command_rows(self, command: Any) -> Array: ...


def check_file(
    policy: Policy, task: str | None, robot: str | None, joints: Iterable[str] | None
) -> None:
    """ValueError unless a policy is of this task and robot, and drives servos of its joints.

    Its file must say how the robot stands, and how it lies or that its base is fixed. None is any
    task, robot, or joints; these are in the order of the targets.
    """
    if not hasattr(policy, "outputs"):
        kind = type(policy).__name__
        raise ValueError(f"policy is of type {kind}: expected a Policy of runtime.py")
    description, out = policy.description, policy.outputs
    for key, expected in (("task", task), ("robot", robot)):
        if expected is not None and (its := description.get(key)) != expected:
            raise ValueError(f"the file's {key} is {its!r}, not {expected!r}: another file")
    if isinstance(joints, str) or not isinstance(joints, Iterable | None):
        raise ValueError(f"joints={joints!r}: expected the names of all joints")
    if joints is not None:
        check_joints(policy, list(map(str, joints)))
    servos = isinstance(out.get("kp"), list) and all(out["kp"]) and None not in policy.joints
    if not servos or "joint_pos" not in policy.needs:
        needed = "that reads joint_pos and drives position servos of joints"
        raise ValueError(f"this is for a policy {needed}: {description.get('task')} is none")
    if (description.get("lineage") or {}).get("adopted"):
        trained = "others trained this file, and its ranges were never recorded"
        raise ValueError(f"{trained}: no reading could be checked")
    standing = description.get("standing")
    if not standing or not isinstance(standing, dict):
        raise ValueError("the file does not say how its robot stands: it cannot be checked")
    if "lying" not in standing and not standing.get("fixed"):
        says = "the file says neither how its robot lies down, nor that its base is fixed"
        raise ValueError(f"{says}: a stop would throw it over")
    try:
        check_names(policy)
        check_numbers(policy)
        check_poses(policy)
    except (LookupError, AttributeError, *NO_NUMBERS) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ValueError(f"the file's description is invalid: {reason}") from None


def judgement(policy: Policy) -> list[str]:
    """A line about a file that the release gate never judged, or judged by other limits.

    ValueError for one that failed, or that was edited since.
    """
    verdict = read_verdict(policy.data)
    if verdict is None:
        return ["the release gate never judged this file: play.py mode=gate does"]
    if verdict.get("verdict") != "pass":
        raise ValueError("the file failed the release gate: play.py mode=gate says why")
    other = difference(verdict)
    return [f"the release gate judged this file {other}"] if other else []


def check_functions(**arguments: object) -> None:
    """ValueError for the first of these arguments that is no function."""
    for name, x in arguments.items():
        if not callable(x):
            raise ValueError(f"{name} is of type {type(x).__name__}: expected a function")


def check_preflight(guard: Any, hung: object, **functions: object) -> None:
    """ValueError unless these can be arguments of `preflight`."""
    if not hasattr(guard, "stance"):
        raise ValueError(f"guard is of type {type(guard).__name__}: expected a Guard")
    if guard.sent is not None or guard.phase != "rise":
        raise ValueError("this guard moves its robot already: call guard.reset() first")
    if not isinstance(hung, bool):
        raise ValueError(f"hung={hung!r}: expected True or False")
    check_functions(**functions)


def check_joints(policy: Policy, mine: list[str]) -> None:
    """ValueError unless these are the joints of a policy, in the order of its targets."""
    lacks = [str(name) for name in policy.joints if name not in mine]
    more = [name for name in mine if name not in policy.joints]
    of = f"the file's robot is {policy.description['robot']!r}"
    if lacks or more:
        what = f"lacks {', '.join(lacks) or 'none'}, has {', '.join(more) or 'none'} too many"
        raise ValueError(f"{of}: of its joints this one {what}")
    if mine != policy.joints:
        pairs = enumerate(zip(policy.joints, mine, strict=False))
        differs = next((f"{i} is {a}, not {b}" for i, (a, b) in pairs if a != b), "is named twice")
        raise ValueError(f"{of}: its joint {differs}")


def check_names(policy: Policy) -> None:
    """ValueError or others unless joints, units and names of the command are whole lists of text.

    A joint's reading has the joints of the targets, each once.
    """
    lists = [(name, described(policy, name)["units"], n) for name, n in policy.needs.items()]
    lists.append(("joints", policy.joints, len({*policy.joints})))
    if policy.command:
        names = policy.command["names"]
        lists += ("command", names, len(names)), ("command", policy.command["units"], len(names))
    for name, values, count in lists:
        if len(values) != count or not all(isinstance(x, str) for x in values):
            raise ValueError(f"{name} {values}: expected {count} names")
    for name in JOINTS & policy.needs.keys():
        if policy.reads.get(name) != policy.joints:
            raise ValueError(f"{name} has other joints than the targets")


def check_poses(policy: Policy) -> None:
    """ValueError or others if a pose that the robot is sent to is outside of its ranges."""
    out, lying = policy.outputs, policy.description["standing"].get("lying")
    for name, pose in {"safe_pose": out["safe_pose"], "lying": lying}.items():
        for key in ("control_range", "joint_range") if pose is not None else ():
            low, high = np.transpose([x or (-FARTHEST_POSE, FARTHEST_POSE) for x in out[key]])
            away = np.maximum(low - pose, pose - high)
            if away.max() > BEYOND:
                joint = policy.joints[int(away.argmax())]
                raise ValueError(f"{name} of {joint} is outside of its {key}")


def check_numbers(policy: Policy) -> None:
    """ValueError or others unless what is read from a file is finite, and of its width."""
    positive = {"kp": 1e-9, "torque_limit": 1e-9, "kd": 0.0, "change": 0.0}  # name → least
    for name, values, shape in numbers(policy):
        x = np.array(values, float)
        if x.shape != shape or not np.isfinite(x).all():
            raise ValueError(f"{name} is not {shape} finite numbers")
        if (x < positive.get(name, -np.inf)).any():
            raise ValueError(f"{name} {x.tolist()}")
        if shape[0] == 2 and len(shape) == 2 and (x[0] > x[1]).any():
            raise ValueError(f"{name} begins above its end")


def numbers(policy: Policy) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Names, values and shapes of what the guard and preflight read from a file.

    A range is (2, width). What may be None has a stand-in.
    """
    out, standing, n = policy.outputs, policy.description["standing"], len(policy.joints)
    for key in ("kp", "kd", "safe_pose", "change"):
        yield key, out[key], (n,)
    yield "torque_limit", [1.0 if x is None else x for x in out["torque_limit"]], (n,)
    for key in ("control_range", "joint_range"):
        yield key, np.transpose([x or (0.0, 1.0) for x in out[key]]), (2, n)
    for name, width in policy.needs.items():
        seen = described(policy, name)["seen"]
        yield f"seen of {name}", [seen["least"], seen["greatest"]], (2, width)
    if policy.command:
        trained = policy.command["trained"]
        width = len(policy.command["names"])
        yield "trained of command", [trained["low"], trained["high"]], (2, width)
    for name, values in standing["readings"].items():
        yield f"standing {name}", values, (policy.needs[name],)
    for name, values in standing["changes"].items():
        yield f"changes of {name}", values, (n, policy.needs[name])
    yield "changes of joint_pos", standing["changes"]["joint_pos"], (n, n)
    yield "delay", standing["delay"], (n,)
    yield "lying", standing.get("lying", [0.0] * n), (n,)


def reading_bounds(policy: Policy, margin: float) -> tuple[Bounds, Bounds]:
    """The range of each reading as the policy runs, and before and after that.

    The first is that of training, wider by `margin` times its width on each side. The second is
    the same, but joints may be anywhere in their range.
    """
    bounds = {}
    for name in policy.needs:
        seen = described(policy, name)["seen"]
        least, greatest = np.array([seen["least"], seen["greatest"]], float)
        wide = margin * (greatest - least)
        bounds[name] = least - wide, greatest + wide
    ends = [x or (-np.inf, np.inf) for x in policy.outputs["joint_range"]]
    low, high = np.array(ends, float).T
    return bounds, bounds | {"joint_pos": (low - BEYOND, high + BEYOND)}


def moving(policy: Policy) -> list[str]:
    """The readings that change as the joints move: of joints, and of the IMU of a free base."""
    fixed = policy.description["standing"].get("fixed")
    sensors = {name: str(described(policy, name).get("sensor")) for name in policy.needs}
    imu = [name for name, x in sensors.items() if x in IMU or x.endswith("axis")]
    return [name for name in policy.needs if name in JOINTS or (name in imu and not fixed)]


def read(policy: Policy, readings: Readings | None) -> tuple[Values, list[str]]:
    """The readings in order, and what is wrong: missing, of a wrong width, or not finite."""
    values, wrong = {}, []
    if readings is None:
        return values, ["there are no readings"]
    if not isinstance(readings, Mapping):
        kind = type(readings).__name__
        return values, [f"the readings are of type {kind}: expected a mapping of names to numbers"]
    for name in (*policy.needs, *policy.views):
        try:
            if name in policy.views:
                policy.view(name, readings)
                continue
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                values[name] = policy.reading(name, readings)[0].astype(float)
        except NO_NUMBERS as error:
            says = " ".join(str(error).split())
            wrong.append(says if name in says else f"{name}: {says}")
            continue
        for i in np.flatnonzero(~np.isfinite(values[name]))[:1]:
            wrong.append(f"{label(policy, name, i)} is {values[name][i]}")
    return values, wrong


def sound_joints(
    policy: Policy, values: Values | None, bounds: Bounds
) -> tuple[Array | None, Array | None]:
    """Positions and speeds (nu,) of the joints as measured; None unless they are within bounds."""
    joints = {name: x for name, x in bounds.items() if name in ("joint_pos", "joint_vel")}
    if values is None or outside(policy, values, joints):
        return None, None
    return values["joint_pos"], values.get("joint_vel")


def outside(policy: Policy, values: Values, bounds: Bounds) -> list[str]:
    """A line for each reading with a number outside of its bounds."""
    lines = []
    for name, (least, greatest) in bounds.items():
        x = values[name]
        away = np.maximum(least - x, x - greatest) / np.maximum(greatest - least, 1e-9)
        i = int(away.argmax())
        if away[i] > 0:
            span = f"{least[i]:.3g} to {greatest[i]:.3g}"
            says = f"{label(policy, name, i)} is {x[i]:.3g} {unit(policy, name, i)}".strip()
            lines.append(f"{says}, outside of {span}{hint(policy, name, x, bounds[name])}")
    return lines


def hint(policy: Policy, name: str, x: Array, bounds: tuple[Array, Array]) -> str:
    """A possible reason for a reading (width,) outside of its bounds."""
    description = described(policy, name)
    least, greatest = bounds

    def fits(y: Array) -> bool:
        return bool(((least <= y) & (y <= greatest)).all())

    if "sign" in description:
        return f": it is {description['sign']}"
    large = np.abs(x).max() > 5 * max(np.abs(least).max(), np.abs(greatest).max())
    if description["units"][0].startswith("rad") and large and fits(x / DEGREES):
        return ": is it in degrees?"
    return ": is its sign another?" if fits(np.where((x < least) | (x > greatest), -x, x)) else ""


def described(policy: Policy, name: str) -> Json:
    """The file's description of an input; empty if it has none."""
    return next((x for x in policy.description["inputs"] if x["name"] == name), {})


def label(policy: Policy, name: str, i: int) -> str:
    """A number of a reading: `joint_pos of FL_knee`, `up[2]`."""
    joints = policy.reads.get(name)
    return f"{name} of {joints[i]}" if joints else f"{name}[{i}]"


def unit(policy: Policy, name: str, i: int) -> str:
    """The unit of a reading; empty for a plain number."""
    of = described(policy, name)["units"][i]
    return "" if of == "1" else of


def ask(policy: Policy, command: Any) -> tuple[Array | None, list[str], list[str]]:
    """A command (n,) cut to the range of training; what was cut; what is wrong with it."""
    if not policy.command:
        return None, [], []
    try:
        wish = policy.command_rows(command)[0].astype(float)
    except NO_NUMBERS as error:
        return None, [], [" ".join(str(error).split())]
    if not np.isfinite(wish).all():
        return None, [], [f"the command {wish.tolist()} is not finite"]
    low, high = (np.array(policy.command["trained"][end], float) for end in ("low", "high"))
    cut = np.clip(wish, low, high)
    said = [
        f"command {name} is {wish[i]:.3g} {policy.command['units'][i]}, cut to {cut[i]:.3g}"
        for i, name in enumerate(policy.command["names"])
        if wish[i] != cut[i]
    ]
    return cut, said, []
