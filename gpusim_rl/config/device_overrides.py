"""Overrides of a training on a GPU: the section `gpu` of a task's file.

A GPU steps thousands of worlds in the time of a few, so other numbers of worlds, steps and updates
pay there. The command line wins over the section, and a run keeps what it began with.
"""

from dataclasses import replace

from gpusim_rl.config.check_words import merge
from gpusim_rl.config.nested_dict import flatten, is_below, leaves, merged
from gpusim_rl.config.sections import Config
from gpusim_rl.core.files import Plain

# Why: docs/decisions/configuration.md
# What may differ: the task itself is the same on every device.
# Of a curriculum the numbers of entries that there are: the same schedule, at other iterations.
KEYS = ("num_envs", "num_steps", "iterations", "eval_every", "save_every", "log_every", "algo")
KEYS += ("curriculum",)


def read_device_overrides(cfg: Config, override_keys: list[str]) -> Config:
    """`cfg` with what its section `gpu` still decides: nothing that a command line gives.

    ValueError if the section holds a key that it may not change, or a wrong value.
    """
    if not isinstance(cfg.gpu, dict):
        raise ValueError(f"gpu={cfg.gpu!r}: expected keys with values")
    for key in flatten(cfg.gpu):
        if not is_below(key, KEYS) or key == "algo.name":
            raise ValueError(f"gpu.{key}: expected a key of a training: {', '.join(KEYS)}")
    left = without(cfg.gpu, tuple(override_keys))
    plan = left.pop("curriculum", None) or {}
    # which entries there are depends on the learner and on the command line
    plan = {key: entry for key, entry in plan.items() if key in (cfg.curriculum or {})}
    left |= {"curriculum": plan} if plan else {}
    try:
        merge(cfg.plain, left)  # which refuses unknown keys
        if left:
            Config.of(merged(cfg.plain, left))
    except ValueError as error:
        raise ValueError(f"gpu: {error}") from None
    return replace(cfg, gpu=left, plain=cfg.plain | {"gpu": left})


def without(tree: Plain, keys: tuple[str, ...], prefix: str = "") -> Plain:
    """A tree of values without some keys, and without those below them."""
    left = {}
    for key, value in tree.items():
        if is_below(f"{prefix}{key}", keys):
            continue
        inner = isinstance(value, dict)
        value = without(value, keys, f"{prefix}{key}.") if inner else value
        left |= {} if inner and not value else {key: value}
    return left


def choose_device_overrides(cfg: Config) -> tuple[Config, Plain]:
    """The configuration of a training on its device, and what the section `gpu` gave it.

    The first is what config.yaml keeps: its section is empty, recipe and ranges are names, and
    `threads` are those of torch unless the user gave a number. The second is dotted key → value.
    """
    import torch

    from gpusim_rl.sim.factory import choose  # it loads torch, too

    _, device = choose(cfg.sim.name, cfg.device)
    values = cfg.gpu if device.startswith("cuda") else {}
    kept = {"gpu": {}, "threads": cfg.threads or torch.get_num_threads()}
    kept |= {name: {"name": cfg.plain[name]["name"]} for name in ("recipe", "ranges")}
    if plan := values.get("curriculum"):
        kept["curriculum"] = merged(cfg.plain["curriculum"], plan)
    return cfg.replace(leaves(without(values, ("curriculum",))) | kept), leaves(values)
