"""A user's models: whether they fit the task, their copies in a run, and their looks."""

# MuJoCo has no types:
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import mujoco

from gpusim_rl.config import compose, robot_size, validate
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.sections import Config, TaskSection, file_keys
from gpusim_rl.core.file_keys import FileKey, Given
from gpusim_rl.core.files import MAX_MODEL, read_whole, write_whole
from gpusim_rl.core.paths import ASSETS, find_data
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.envs.terrain.slots import add_boxes
from gpusim_rl.robots.model_files import copy_model
from gpusim_rl.robots.models import find_mjcf, find_own_mjcf, find_robot_file
from gpusim_rl.robots.visuals import is_urdf, picture_model


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


def keep_files(
    cfg: Config, folder: Path, given: Given, own: Sequence[FileKey] = ()
) -> dict[str, str]:
    """Write the files that a configuration names into a run. Returns key → its copy.

    Models of ours are not copied.

    Args:
        given: what was read of the files.
        own: the keys of a learner of the user's own.
    """
    values, copies = flatten(cfg.plain), dict[str, str]()
    for file in (*file_keys(cfg.plain), *own):
        name = values.get(file.key)
        if name is None or file.how == "hash":
            continue
        if file.key == "task.mjcf":
            source = find_mjcf(find_own_mjcf(name, cfg.task_code))
        elif file.key.startswith("task."):
            source = find_data(file.key, name)
        else:
            source = find_robot_file(name) if file.is_model else Path(name)
        if file.is_model and source.parent == ASSETS:
            continue
        copies[file.key] = str(copy := folder / file.place(name))
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_model:
            copy_model(source, copy.parent)
        elif file.how == "keep":
            given[file.key].write(copy)
        else:
            write_whole(copy, read_whole(source, MAX_MODEL))
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
