"""Checks of single words of a command line: does the key exist, is the value of the right kind."""

import difflib
from typing import Any

from hydra.core.override_parser.types import Override

from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.core.files import Plain
from gpusim_rl.core.ranges import LARGEST_FLOAT32
from gpusim_rl.envs.randomization.entries import SMALLEST_FLOAT32

# Lists with a number for each joint of the robot: the task knows how many these are.
OF_JOINTS = ("task.largest_speed", "task.largest_acceleration")
# Sections that name what differs: another reading is always delivered, of another term the actor
# sees one step, and another label may be anything.
OPEN = ("task.dropout", "task.history", "task.drive_limits", "cluster.labels", "algo.encoders")
EXACT = "exact"  # of task.training: the model's own physics
# MuJoCo's integrators that compute the dynamics once in a timestep; None: the model's own.
INTEGRATORS = (None, "euler", "implicit", "implicitfast")
# Key → what other libraries call it, with or without `algo.`, where its spelling finds nothing.
ALIASES = {
    "iterations": "total_timesteps num_timesteps max_epochs",
    "num_steps": "horizon_length unroll_length",
    "resume": "load_run checkpoint",
    "algo.learning_rate": "lr",
    "algo.update_epochs": "n_epochs num_learning_epochs",
    "algo.num_minibatches": "batch_size",
    "algo.clip_coef": "clip_range clip_param e_clip clipping_epsilon",
    "algo.gamma": "discount discounting",
    "algo.gae_lambda": "lam tau",
    "algo.target_kl": "desired_kl kl_threshold",
    "algo.std": "init_std init_noise_std",
    "algo.hidden": "net_arch policy_hidden_layer_sizes",
    "algo.replay": "buffer_size",
    "algo.warmup": "learning_starts",
}
KINDS = {
    int: "a whole number",
    float: "a number",
    str: "a word",
    list: "a list",
    bool: "true or false",
}


def check_known(override: Override, base: Plain) -> None:
    """ValueError if a configuration has no such key."""
    key, flat = override.key_or_group, flatten(base)
    if isinstance(noise := flat.get("task.noise"), dict):  # it names all readings
        flat |= {f"task.dropout.{reading}": 0.0 for reading in noise}
    section = key.rpartition(".")[0]
    open_sections = OPEN[1:]
    if key in flat or (section in open_sections and "task.dt" in flat):
        return  # the task itself knows its terms and measures, and Ray its labels
    if key.startswith("reward.") and flat.get("reward.name") == "none":
        raise ValueError(f"unknown key {key!r}: reward=none has no numbers, choose another reward=")
    choices = [k for k in flat if k not in ("algo.name", "reward.name")]  # algo= chooses that
    theirs = key.removeprefix("algo.")
    near = [x for x in choices if theirs in ALIASES.get(x, "").split()]
    near = near or difflib.get_close_matches(key, choices, n=3, cutoff=0.5)
    section = [k for k in flat if k.rpartition(".")[0] == key.rpartition(".")[0]] or base
    says = "did you mean " + " or ".join(near) if near else "choose one of " + ", ".join(section)
    raise ValueError(f"unknown key {key!r}: {says}?")


def same_kind(key: str, old: Any, new: Any) -> None:
    """ValueError if a value is of another kind than the one it replaces; null may become anything.

    `curriculum` is not looked at here: `curriculum.check` checks all of it. `task.training` may
    also be one word: see `check_physics`. A file of a task may be several, by name.
    """
    if key == "curriculum" or (key == "task.training" and (new == EXACT or old == EXACT)):
        return
    if not isinstance(old, bool):
        check_range(key, old, new)
    if old is None or (isinstance(old, float) and type(new) is int):
        return
    if key.startswith("task.") and key.endswith("_file") and isinstance(new, dict):
        check_files(key, old, new)
        return
    if type(old) is not type(new):
        if isinstance(old, dict):
            raise ValueError(f"{key}={new!r}: expected keys with values")
        raise ValueError(f"{key}={new!r}: expected {KINDS[type(old)]}, such as {old!r}")
    if isinstance(old, list) and isinstance(new, list) and old:
        numbers = not isinstance(old[0], str) and not key.endswith(".only") and key not in OF_JOINTS
        if key.startswith(("task.", "terrain.")) and numbers and len(new) != len(old):
            raise ValueError(f"{key}={new}: expected {len(old)} numbers, such as {old}")
        for entry in new:
            same_kind(key, old[0], entry)


def check_files(key: str, old: Any, files: dict[Any, Any]) -> None:
    """ValueError unless each of several files of a task has a name, and is of the kind of `old`."""
    for name, file in files.items():
        if not str(name).isidentifier():
            raise ValueError(f"{key}: {name!r} is no name: expected letters, digits and _")
        same_kind(f"{key}.{name}", old, file)


def check_range(key: str, old: object, new: object) -> None:
    """ValueError if a number is not finite, or too large or too small for float32 and int64."""
    if isinstance(new, float) and not abs(new) <= LARGEST_FLOAT32:
        example = "" if old is None else f", such as {old}"
        raise ValueError(f"{key}={new}: expected a finite number{example}")
    if isinstance(new, float) and 0 < abs(new) < SMALLEST_FLOAT32:
        raise ValueError(f"{key}={new}: expected 0 or a number of at least {SMALLEST_FLOAT32}")
    if isinstance(new, int) and not abs(new) < 2**63:
        raise ValueError(f"{key}={new}: expected a number below 2**63")


def check_task_code(value: object) -> None:
    """ValueError unless task_code is null or `here`."""
    if value not in (None, "here"):
        raise ValueError(f"task_code={value!r}: expected here, or null for our code")


def check_physics(task: Plain) -> None:
    """ValueError unless `task.training` says how the physics differs while learning."""
    training = task["training"]
    if training == EXACT:
        return
    keys = {"timestep", "integrator", "joint_friction"}
    if not isinstance(training, dict) or {*training} != keys:
        expected = "expected exact, or the keys timestep, integrator and joint_friction"
        raise ValueError(f"task.training={training!r}: {expected}")
    friction = training["joint_friction"]
    if type(friction) is not bool:
        raise ValueError(f"task.training.joint_friction={friction!r}: expected true or false")
    if (integrator := training["integrator"]) not in INTEGRATORS:
        choices = ", ".join(map(str, INTEGRATORS[1:]))
        expected = f"expected one of {choices}, or null"
        raise ValueError(f"task.training.integrator={integrator!r}: {expected}")


def merge(base: Plain, values: Plain, prefix: str = "") -> Plain:
    """base with other values; ValueError at a key that base lacks, or a value of another kind.

    Reward terms, noise, a curriculum and the sections of OPEN replace those of base: they belong to
    the task's code, not to its file of today.
    """
    for key, value in values.items():
        if key not in base:
            raise ValueError(f"unknown key {prefix}{key}")
        same_kind(f"{prefix}{key}", base[key], value)
    whole = {"weights", "noise", "curriculum"} | {key.rpartition(".")[2] for key in OPEN}
    deep = {
        key: merge(base[key], value, f"{prefix}{key}.")
        for key, value in values.items()
        if isinstance(base[key], dict) and isinstance(value, dict) and key not in whole
    }
    return base | values | deep
