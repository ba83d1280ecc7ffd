"""What the log of a robot shows: its events in lines, a picture, and a film beside its twin."""

import contextlib
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mujoco import MjData, MjModel

from gpusim_rl.core.files import write_whole
from gpusim_rl.core.waiting import counted
from gpusim_rl.deploy.onboard.log import Recording
from gpusim_rl.identify.twin import TWINS, UPRIGHT, WINDOW, TwinResult, missing_readings
from gpusim_rl.viewer.caption import Caption
from gpusim_rl.viewer.film import FPS, HEIGHT, WIDTH, open_video, sampled
from gpusim_rl.viewer.offscreen import Camera

MAX_LINES = 30  # events that are printed; out= holds all
OLD, LATE = 2.0, 1.5  # [control steps] age of readings, and time between two steps, that are told
VERTICAL = "z axis of world"  # what the reading of a robot's tilt means
PHASES = {"rise": "stands up", "run": "the policy runs", "stop": "stops", "off": "off"}
COLUMNS = 3  # of a picture's panels
Array = np.ndarray


class Event(NamedTuple):
    """What happened, and when since the log's first step [s]."""

    time: float
    text: str


def events(log: Recording) -> list[Event]:
    """Phases, faults, restarts, falls, late readings and late steps of a log, in order of time."""
    timeline, time = [], log.time - log.time[:1]

    def tell(mask: Array, text: Callable[[slice], str]) -> None:
        """An event for steps in a row of mask (T,) bool, whose text is of their first and last."""
        edges = np.flatnonzero(np.diff(np.r_[False, mask, False]))
        for first, end in edges.reshape(-1, 2):
            steps = f" ({end - first} steps)" if end - first > 1 else ""
            timeline.append(Event(float(time[first]), text(slice(first, end)) + steps))

    changes = np.r_[True, log.phase[1:] != log.phase[:-1]][: len(time)]
    begins = [(float(time[i]), str(log.phase[i])) for i in np.flatnonzero(changes)]
    timeline += [Event(t, PHASES.get(phase, phase)) for t, phase in begins]
    tell(np.array([*map(bool, log.faults)], bool), lambda i: f"fault: {log.faults[i.start][0]}")
    old = log.age > OLD * log.dt
    tell(old, lambda i: f"readings are up to {log.age[i].max():.3g} s old")
    gaps = np.r_[0.0, np.diff(log.time)][: len(time)]
    tell(gaps > LATE * log.dt, lambda i: f"no step for {gaps[i].max():.3g} s")
    for name, upright in verticals(log).items():
        tilted = log.readings[name] @ upright < UPRIGHT
        tell(tilted, lambda i, name=name: f"{name}: tilted by more than 60°")
    if not log.whole:
        end = float(time[-1]) if len(time) else 0.0
        timeline.append(Event(end, "the log has no end: its program was killed, or it was cut"))
    return sorted(timeline, key=lambda event: event.time)


def verticals(log: Recording) -> dict[str, Array]:
    """Readings (T, 3) of the vertical in a robot's axes, and what they are as it stands."""
    standing = log.description.get("standing") or {}
    names = [x["name"] for x in log.description["inputs"] if x.get("meaning") == VERTICAL]
    return {name: np.array(x) for name, x in standing.get("readings", {}).items() if name in names}


def command_of(log: Recording) -> dict[str, Any] | None:
    """The description of a log's command; None if its policy follows none."""
    return next((x for x in log.description["inputs"] if x["kind"] == "command"), None)


def why_no_twin(log: Recording) -> str:
    """Why a log was not compared with twins."""
    if names := missing_readings(log):
        return f"the log lacks {', '.join(names)}, without which there is no twin"
    return f"the policy ran for less than {2 * WINDOW:g} s in a row, too short for a twin"


def as_text(title: str, log: Recording, timeline: list[Event], result: TwinResult | None) -> str:
    """The events of a log, and its distance from the twins, in lines."""
    steps = f"{len(log.time)} steps of {log.dt:g} s"
    lines = [f"{title}: {log.description['task']} on {log.description['robot']}, {steps}"]
    lines += [f"{time:8.2f} s  {text}" for time, text in timeline[:MAX_LINES]]
    if (more := len(timeline) - MAX_LINES) > 0:
        lines.append(f"            and {more} more")
    if result:
        rows = ", ".join(f"{name} {x:.2f}" for name, x in result.by_name.items())
        lines.append(f"distance from the twins: {rows}")
        count = f"{TWINS} twins, {len(result.time)} means of {WINDOW:g} s"
        fell = f", {result.fell} twins fell" if result.fell else ""
        lines.append(f"1 is as far as twins are from one another: {count}{fell}")
    return "\n".join(lines)


def warning(result: TwinResult, alarm: float) -> str:
    """The line of a log that is too far from its twins."""
    name, worst = next(iter(result.by_name.items()))
    line = f"{name} is {worst:.2f} from the twins, more than alarm={alarm:g}"
    return f"{line}: the simulation differs"


def as_dict(log: Recording, timeline: list[Event], result: TwinResult | None) -> dict[str, Any]:
    """The same for a program, with the distance of each window."""
    report = {key: log.description[key] for key in ("task", "robot")} | {"digest": log.digest}
    report |= {"steps": len(log.time), "dt": log.dt, "whole": log.whole}
    report |= {"events": [event._asdict() for event in timeline]}
    if result is None:
        return report
    windows = {"time": (result.time - log.time[0]).tolist()}
    windows |= {name: x.tolist() for name, x in result.distances.items()}
    twin = {"distance": result.distance, "by_name": result.by_name, "fell": result.fell}
    return report | {"twin": twin | {"windows": windows}}


def draw(log: Recording, result: TwinResult | None, alarm: float, path: Path) -> None:
    """Write a picture: command, age and faults, distance of the twins, and each joint."""
    from matplotlib.figure import Figure

    time, rows = log.time - log.time[:1], 1 + math.ceil(len(log.joints) / COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 2.2 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, sharex=True, squeeze=False)
    command, age, distance, *joints = panels.flat
    description = command_of(log)
    for i, name in enumerate(description["names"] if description else ()):
        command.plot(time, log.command[:, i], label=name)
    units = ", ".join(dict.fromkeys(description["units"])) if description else ""
    command.set_title(f"command [{units}]" if description else "")
    age.plot(time, 1e3 * log.age, color="gray")
    wrong = np.flatnonzero([*map(bool, log.faults)])
    age.plot(time[wrong], 1e3 * log.age[wrong], "r.", label="fault")
    age.set_title("age of readings [ms]")
    if result:
        for name, x in result.distances.items():
            distance.plot(result.time - log.time[0] + WINDOW / 2, x, ".-", label=name)
        distance.axhline(alarm, color="red", lw=1, label="alarm")
        distance.set_ylim(bottom=0)
    distance.set_title("distance from the twins" if result else "no twin")
    for i, (name, panel) in enumerate(zip(log.joints, joints, strict=False)):
        panel.plot(time, log.targets[:, i], color="silver", lw=1, label="target")
        panel.plot(time, log.readings["joint_pos"][:, i], lw=1, label="log")
        panel.set_title(name)
    for panel in joints[len(log.joints) :]:
        panel.set_axis_off()
    for panel in (command, age, distance, joints[0]):
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="xx-small", loc="best", ncols=2)
    for panel in panels[-1]:
        panel.set_xlabel("time [s]")
    figure.savefig(out := io.BytesIO(), format="png", dpi=100)
    write_whole(path, out.getvalue())


class LogCaption(Caption):
    """Says which robot is which, what the log lacks, and the command."""

    def parts(self, t: float, data: MjData | None) -> list[tuple[str, bool]]:
        """As of `Caption`."""
        words = "left: joints of the log, on the twin's base", "right: the twin"
        return [(x, False) for x in words] + super().parts(t, None)


def film(
    log: Recording,
    result: TwinResult | None,
    model: MjModel,
    path: Path,
    seconds: float,
    size: list[int] | None,
    view: str | None,
) -> None:
    """Write a video from where the policy begins: the log's joints beside the first twin.

    A log does not say where the robot is, so that it has the twin's base. Missing joints stay as
    they were. ValueError if there is no twin.
    """
    if result is None:
        raise ValueError(f"there is no film: {why_no_twin(log)}")
    width, height = size or (2 * WIDTH, HEIGHT)
    time = log.time[result.steps] - log.time[result.steps[0]]
    columns = [model.joint(name).qposadr[0] for name in log.joints]
    pairs, last = np.repeat(result.qpos[:, None], 2, 1), log.readings["joint_pos"][result.steps[0]]
    for pair, joint_pos in zip(pairs, log.readings["joint_pos"][result.steps], strict=True):
        last = np.where(np.isfinite(joint_pos), joint_pos, last)
        pair[0, columns] = last
    description = command_of(log)

    def command(t: float) -> Array:
        return log.command[result.steps[max(0, np.searchsorted(time, t + 1e-9) - 1)]]

    caption = LogCaption(model, description, command if description else None)
    count = max(1, int(min(seconds, time[-1]) * FPS))
    with (
        contextlib.closing(Camera(model, height, width // 2, view)) as camera,
        open_video(path, FPS) as video,
    ):
        images = sampled(zip(time.tolist(), pairs, strict=True), FPS)
        for _ in counted(count, f"filming {path}"):
            t, pair = next(images)
            video.append_data(caption.write(np.hstack([camera(x) for x in pair]), t, None))
