"""A user's models: whether they fit the task, their copies in a run, and their looks."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mujoco
from safetensors.torch import save as to_bytes

from gpusim_rl.assembly.learners import ACTOR
from gpusim_rl.config import compose, robot_size, validate
from gpusim_rl.config.sections import Config, TaskSection
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.envs.terrain.slots import add_boxes
from gpusim_rl.robots.model_files import copy_model
from gpusim_rl.robots.models import find_mjcf, find_own_mjcf, find_robot_file
from gpusim_rl.robots.visuals import is_urdf, picture_model
from gpusim_rl.sim.actuator_models import LARGEST_NETWORK_BYTES


@contextmanager
def model_must_fit(task: TaskSection, code: str | None):
    """Turn the errors of a user's model that lacks what the task needs into a ValueError."""
    try:
        yield
    except (KeyError, IndexError, RuntimeError) as error:
        name, mjcf = task.name, task.numbers["mjcf"]
        usual = compose.build("config", [f"task={name}"], builtin=code is None)["task"]["mjcf"]
        if mjcf == usual:
            raise
        missing = sorted(model_names(usual, code) - model_names(mjcf, code))
        reason = f"it lacks {', '.join(missing)}" if missing else next(iter(error.args), error)
        raise ValueError(f"task.mjcf={mjcf} does not fit task={name}: {reason}") from None


def model_names(mjcf: str, task_code: str | None) -> set[str]:
    """The names of sensors, actuators, joints and bodies; and "a keyframe", if there is one."""
    spec = mujoco.MjSpec.from_file(str(find_mjcf(find_own_mjcf(mjcf, task_code))))
    parts = (*spec.sensors, *spec.actuators, *spec.joints, *spec.bodies)
    names = {f"{part.name!r}" for part in parts if part.name}
    return names | ({"a keyframe"} if spec.keys else set())


def keep_models(cfg: Config, folder: Path, teacher: Any = None) -> dict[str, str]:
    """Copy the user's models into folder/model. Returns key → its copy.

    teacher: the actor of teacher=, which is copied as a checkpoint of its own.
    """
    task = cfg.task.numbers["mjcf"]
    task = find_own_mjcf(task, cfg.task_code) if task else None
    copies: dict[str, str] = {}
    for section, mjcf, find_file in (
        ("task", task, find_mjcf),
        ("robot", cfg.robot.values["mjcf"], find_robot_file),
    ):
        file = find_file(mjcf) if mjcf else None
        if file and file.parent != ASSETS:
            copies[f"{section}.mjcf"] = str(copy_model(file, folder / "model" / section))
    learned = cfg.robot.actuator.file
    if learned:
        copy = folder / "model" / "actuator.safetensors"
        copy.parent.mkdir(exist_ok=True)
        write_whole(copy, read_whole(Path(learned), LARGEST_NETWORK_BYTES))
        copies["robot.actuator.file"] = str(copy)
    if teacher:
        copies["teacher"] = str(copy := folder / "model" / "teacher.safetensors")
        copy.parent.mkdir(exist_ok=True)
        state = {ACTOR + name: x.contiguous() for name, x in teacher.state_dict().items()}
        write_whole(copy, to_bytes(state, teacher.metadata))
    return copies


def make_picture_model(cfg: Config) -> mujoco.MjModel | None:
    """The model of a task's robot with the visual geometry of its URDF file, for pictures alone.

    None of other robots, whose model has all that can be shown. `visuals.picture_model` says which
    elements it shares with the task's model.
    """
    values = cfg.robot.values
    if values["mjcf"] is None or not is_urdf(file := find_robot_file(values["mjcf"])):
        return None
    kind = load_task(validate.check_name("task", cfg.task.name), cfg.task_code)
    spec = robot_size.load(cfg.robot.name, values, kind.takes_robot).spec
    return picture_model(add_boxes(spec) if kind.takes_terrain else spec, file)
