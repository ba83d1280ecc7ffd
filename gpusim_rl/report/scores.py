"""What the scores of an evaluation mean: units, intervals, and why episodes failed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpusim_rl.core.maths import wilson
from gpusim_rl.runs.summary import Summary, word

# Shares of independent episodes, which have an interval.
PROPORTIONS = ("success", "episodes_passed", "success_upside_down", "fell", "falls")
PROPORTIONS += ("off_velocity", "off_yaw", "off_distance", "off_joints", "off_base")
PROPORTIONS += ("upright", "tall", "near", "still")
# Share of episodes that failed → why they did.
FAILED = {
    "fell": "the robot fell",
    "falls": "the episode ended early",
    "off_velocity": "the error of the velocity was above the tolerance",
    "off_yaw": "the error of the yaw rate was above the tolerance",
    "off_distance": "the robot made less than 0.75 of the distance",
    "off_joints": "the joints were too far off the clip",
    "off_base": "the base ended too far off the clip's place or heading",
}
# Share of episodes that met a condition → why the others failed.
MISSED = {
    "upright": "the trunk leaned in the last second",
    "tall": "the trunk was too low in the last second",
    "near": "a joint was far from the stance in the last second",
    "still": "the robot moved in the last second",
}
PER_EPISODE = {"falls_per_episode": "falls", "crashes_per_episode": "crashes"}
# Score, or `<task>.<score>` where tasks differ → its unit and its meaning.
MEANINGS = {
    "success": ("", "share of episodes without a failure, times tracking if there is one"),
    "episodes": ("", "evaluated episodes"),
    "return": ("", "mean sum of the rewards of an episode"),
    "time_s": ("s", "time of training, without evaluations"),
    # walking
    "episodes_passed": ("", "share of episodes without a fall, with small errors"),
    "tracking": ("", "share of constant commands that were followed within the bounds"),
    "velocity_rmse": ("m/s", "error of the velocity, root mean square"),
    "yaw_rmse": ("rad/s", "error of the yaw rate, root mean square"),
    "falls_per_episode": ("", "mean number of falls"),
    "fell": ("", "share of episodes with a fall"),
    "off_velocity": ("", "share whose error of the velocity was too large"),
    "off_yaw": ("", "share whose error of the yaw rate was too large"),
    "off_distance": ("", "share that made less than 0.75 of its distance"),
    "foot_lift": ("m", "height of a step, of the foot that lifts least"),
    "drift_still": ("m/s", "speed of a robot that was told to stand"),
    "energy_per_metre": ("J/m", "energy for each meter of the way"),
    "saturated": ("", "share of actuators at the limit"),
    "beyond": ("", "share of joints beyond their soft limits"),
    "action_rate": ("", "squared change of the action in a control step"),
    # getting up
    "success_upside_down": ("", "success of those that lay upside down after 0.5 s"),
    "upright": ("", "share whose trunk was upright in the last second"),
    "tall": ("", "share whose trunk was high enough in the last second"),
    "near": ("", "share whose joints were near the stance in the last second"),
    "still": ("", "share that did not move in the last second"),
    "stands_after": ("s", "time from which successful robots stand"),
    "energy": ("J", "energy of an episode"),
    "fastest": ("rad/s", "largest speed of a joint, mean over episodes"),
    "torque": ("N m", "largest torque of a joint, mean over episodes"),
    # flying
    "points": ("", "share of points that were reached and held for a second"),
    "crashes_per_episode": ("", "mean number of crashes"),
    "distance": ("m", "distance from the point when it is scored, root mean square"),
    "spin": ("rad/s", "angular velocity when a point is scored, root mean square"),
    "power": ("", "power as a multiple of that of hovering without wind"),
    "drone.action_rate": ("", "change of the action when a point is scored, root mean square"),
    "drone.saturated": ("", "share of rotors at the limit of their action"),
    # reaching
    "error": ("m", "mean distance from the goal when it is scored"),
    "angle": ("rad", "mean angle from the goal when it is scored"),
    "acceleration": ("rad/s²", "acceleration of the joints, root mean square"),
    "joint_margin": ("rad", "least distance of a joint from the ends of its range"),
    "reach.energy": ("J", "energy spent for a goal"),
    "reach.torque": ("", "largest torque, as a share of what the joint bears"),
    "reach.speed": ("", "largest speed, as a share of what the joint bears"),
    "jerk": ("rad/s³", "jerk of the joints, root mean square"),
    # following a clip
    "off_joints": ("", "share whose joints were too far off the clip"),
    "off_base": ("", "share whose base ended too far off the clip's place or heading"),
    "joints_rmse": ("rad", "error of the joints, root mean square"),
    "place_error": ("m", "distance of the base from the clip's place, at the end"),
    "heading_error": ("rad", "error of the heading, at the end"),
    # Gymnasium's tasks
    "return_std": ("", "standard deviation of the returns"),
    "steps": ("", "mean length of an episode in control steps"),
    "falls": ("", "share of episodes that ended early"),
    "speed": ("m/s", "mean speed forward"),
    "limit": ("", "share of joints beyond their range"),
    # cart-pole
    "upright_s": ("s", "time from which the pole stays upright"),
    "cart_rms": ("m", "distance of the cart from the center, root mean square of the last 5 s"),
    "furthest": ("m", "largest distance of the cart from the center"),
    "action_rms": ("", "action, root mean square of the last 5 s"),
}
# Beginning of a score of constant commands → its meaning, of what follows.
BEGINNINGS = {
    "not_": "share of constant commands that failed by {}",
    "bias_": "mean error of commands along {} alone",
    "dead_": "largest command along {} of which less than half was done",
}


SAID = ("success", "episodes", "time_s")  # elsewhere at a training's end


class Score(NamedTuple):
    """A row of the table of scores, as text."""

    name: str
    value: str
    unit: str
    interval: str
    meaning: str


def number_text(value: Any) -> str:
    """A number with three digits, and no more decimals than those; another value as it is."""
    if not isinstance(value, float):
        return str(value)
    if not 5e-4 <= abs(value) < 1e6:  # one that is not 0 is not shown as 0
        return f"{value:.{1 if abs(value) < 1 else 3}g}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{0 if value.is_integer() else max(0, 3 - whole)}f}"


def meaning(name: str, task: str, units: dict[str, str]) -> tuple[str, str]:
    """(unit, meaning) of a score; empty for one of the user's. units: axis of a command → unit."""
    for beginning, text in BEGINNINGS.items():
        axis = name.removeprefix(beginning)
        if name != axis:
            unit = "" if beginning == "not_" else units.get(axis, "")
            return unit, text.format(axis)
    family = task.removesuffix("_pose")
    return MEANINGS.get(f"{family}.{name}") or MEANINGS.get(name) or ("", "")


def episodes_of(scores: Mapping[str, Any]) -> int:
    """How many episodes were evaluated; 0 if the file does not say."""
    return int(max(0.0, min(scores.get("episodes", 0.0), 1e9)))


def interval(scores: Mapping[str, Any], name: str = "success") -> tuple[float, float] | None:
    """The 95 % interval (Wilson) of a score that is a share of the episodes; else None.

    `success` of a robot that walks is the share of its episodes times `tracking`. The commands of
    the latter are no sample, so the interval is that of the episodes, times it.
    """
    count, value, factor = episodes_of(scores), scores.get(name), 1.0
    if name == "success" and "episodes_passed" in scores:
        value, factor = scores["episodes_passed"], scores.get("tracking", 1.0)
    if name not in PROPORTIONS or value is None or not count:
        return None
    if not (0 <= value <= 1 and 0 <= factor <= 1):
        return None
    low, high = wilson(round(value * count), count)
    return low * factor, high * factor


def sentences(scores: Mapping[str, Any], task: str, commands: int) -> list[str]:
    """The scores of a training's end in two lines: the success, and what has a unit.

    Args:
        commands: constant ones that the robot was driven at; 0 of a task that is not driven.
    """
    ends = interval_text(scores)
    success = "unknown" if scores["success"] is None else f"{scores['success']:.3f}"
    count = scores["episodes"]
    first = f"success {success}{f' ({ends})' if ends else ''}"
    if commands:  # a product of two shares, which are no share of the episodes
        passed, followed = scores["episodes_passed"] * count, scores["tracking"] * commands
        first += f": {round(passed)} of {count} episodes passed"
        first += f" × {round(followed)} of {commands} commands followed"
    else:
        first += f" of {count} episodes"
    if scores.get("fell"):
        first += f", falls in {round(scores['fell'] * count)}"
    own = {name: x for name, x in scores.items() if x is not None and name not in SAID}
    units = {name: meaning(name, task, {})[0] for name in own}
    if any(units.values()):  # what counts episodes or commands is in eval.json
        kept = () if commands else ("return",)
        own = {name: x for name, x in own.items() if name in kept or (x and units[name])}
    parts = [f"{name.replace('_', ' ')} {number_text(x)} {units[name]}" for name, x in own.items()]
    return [first, *filter(None, [", ".join(map(str.rstrip, parts))])]


def interval_text(scores: Mapping[str, Any], name: str = "success") -> str:
    ends = interval(scores, name)
    return f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else ""


def evaluation(run: Summary, units: dict[str, str]) -> list[Score]:
    """A row for each score of the final evaluation."""
    task = word(run.config["task"].get("name"))
    return [
        Score(name, number_text(value), unit, interval_text(run.scores, name), text)
        for name, value in run.scores.items()
        for unit, text in [meaning(name, task, units)]
    ]


def failures(run: Summary) -> list[tuple[str, str]]:
    """(cause, how often) of what failed in the evaluation."""
    episodes, rows = episodes_of(run.scores), []
    passed = "episodes_passed" if "episodes_passed" in run.scores else "success"
    causes = {passed: "no success"} | MISSED
    shares = {why: 1 - run.scores[name] for name, why in causes.items() if name in run.scores}
    shares |= {why: run.scores[name] for name, why in FAILED.items() if name in run.scores}
    limit = shares.get("no success", 1.0) + 1e-6  # what happens more often is no cause
    for cause, share in shares.items():
        if 0 <= share <= min(limit, 1) and (count := round(share * episodes)):
            rows.append((f"evaluation: {cause}", f"{count} of {episodes} episodes"))
    for name, what in PER_EPISODE.items():
        if run.scores.get(name):
            rows.append((f"evaluation: {what}", f"{number_text(run.scores[name])} per episode"))
    return rows
