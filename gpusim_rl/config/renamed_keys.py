"""Keys of the configuration that had other names in earlier versions, or that are gone."""

from collections.abc import Container
from typing import Any

from gpusim_rl.config.trees import flatten, is_below, set_key

# Key → what took its place; a run of before is read without it.
GONE = {"compile": "fuse=on writes the step as Warp kernels"}
PENALTY = "algo.mirror_coef"  # of algo.symmetry=loss
RENAMED = {
    "algo.floor": "algo.min_std",
    "task.height": "task.base_height",
    "task.lift": "task.swing_height",
    "task.randomise.centre": "task.randomise.center",
    "task.reach": "task.action_scale",
    "task.step": "task.gait_pose",
    "task.still": "task.share_standing",
}


def current_key(key: str, keys: Container[str]) -> str:
    """Today's name of a key that `keys` lack; a key that has no other name is returned as it is."""
    for old, new in RENAMED.items():
        if is_below(key, (old,)) and old not in keys and new in keys:
            return new + key.removeprefix(old)
    return key


def convert_delay(saved: dict[str, Any]) -> None:
    """Convert a run's delay in control steps to seconds, in place; with lag it is left as it is.

    That was in timesteps of the model's, whose length the configuration does not have.
    """
    flat = flatten(saved)
    actuator, dt = flat.get("robot.actuator"), flat.get("task.dt")
    if isinstance(actuator, dict) and actuator.get("lag") == 0 and isinstance(dt, float):
        del actuator["lag"]
        actuator["delay"] = int(actuator.get("delay") or 0) * dt or None


def rename_keys(saved: dict[str, Any], base: dict[str, Any]) -> None:
    """Give the keys of a run's configuration the names that they have in `base`, in place.

    A key that is gone is left out. So is a penalty of PPO: its networks were those of
    `symmetry=augment`.
    """
    keys = flatten(base)
    algo, plan = saved.get("algo"), saved.get("curriculum")
    for key in GONE:
        saved.pop(key, None)
    convert_delay(saved)
    if isinstance(algo, dict) and PENALTY not in keys and algo.pop("mirror_coef", None) is not None:
        if algo.get("symmetry") == "loss":
            algo["symmetry"] = "augment"
    for old, value in flatten(saved).items():
        if (new := current_key(old, keys)) != old and old in RENAMED:
            section, _, name = old.rpartition(".")
            del flatten(saved)[section][name]
            set_key(saved, new, value)
    if isinstance(plan, dict):
        named = {current_key(key, keys): entry for key, entry in plan.items()}
        saved["curriculum"] = {key: x for key, x in named.items() if key in keys or key != PENALTY}
