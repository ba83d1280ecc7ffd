"""The configuration of a run that exists: read with suspicion, continued, and what of it may change."""

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpusim_rl import curriculum, variety
from gpusim_rl.bundle import confined, kept
from gpusim_rl.config import CONF, build, choices, flatten, merge, parse, put, within
from gpusim_rl.disk import read_text
from gpusim_rl.run import Run
from gpusim_rl.values import probe, settle, task_name

MODEL = 1 << 26  # bytes of a stranger's MJCF
# What resume= may change without a word, and what it cannot change: the rest it changes with a warning.
CHANGEABLE = (
    *("iterations", "stop_at", "eval_every", "save_every", "log_every", "episodes", "log", "rollbacks"),
    *("resume", "run_dir", "auto_resume", "plan", "hydra"),
)
ALIKE = ("graph", "sim.threads")  # what changes no bit of a training
FIXED = (
    *("task", "robot", "seed", "num_envs", "sim.name"),
    *("algo.hidden", "algo.activation", "algo.std", "algo.floor", "algo.symmetry"),
)


def settled(cfg: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """cfg of train.py, checked; with resume=, the configuration of that run and what of it `words` change."""
    if cfg["auto_resume"] and cfg["resume"] is None:
        cfg = cfg | {"run_dir": cfg["run_dir"] or f"runs/{cfg['task']['name']}/s{cfg['seed']}"}
        if any(Path(str(cfg["run_dir"])).glob("checkpoints/*.safetensors")):
            cfg["resume"] = cfg["run_dir"]
    if cfg["resume"] is not None:
        cfg = resumed(cfg, [o.key_or_group for o in parse(words)])
    settle(cfg)
    curriculum.clash(cfg, [o.key_or_group for o in parse(words)])
    cfg = curriculum.at(cfg["curriculum"], cfg)
    if cfg["sim"]["name"] == "mjx" and not find_spec("jax"):
        raise ValueError("sim=mjx needs JAX: pip install 'gpusim_rl[mjx]'")
    if cfg["run_dir"] and cfg["resume"] is None:
        path = Path(cfg["run_dir"])
        if path.is_dir() and any(path.iterdir()) and not cfg["auto_resume"]:  # else `Run.create` looks closer
            raise ValueError(f"run_dir={path} is not empty: name another, or continue it with resume={path}")
        probe("run_dir", str(path), next(p for p in (path, *path.parents) if p.exists()))
    return cfg


def resumed(cfg: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """The configuration of the run cfg["resume"], with cfg's values of `keys`; ValueError lists those that may not change.

    A group, such as task=quadruped, says which file it is, not what was in it when the run began.
    """
    before = trained(Run.open(Path(str(cfg["resume"]))))
    after = copy.deepcopy(before)
    for key in keys:
        group, _, rest = key.partition(".")
        if rest == "mjcf" and cfg[group][rest] and before[group][rest]:
            file, own = Path(cfg[group][rest]), Path(before[group][rest])
            if file.is_file() and own.is_file() and kept(file, own):
                continue  # the run has kept it
        if rest == "actuator.file" and same(cfg[group]["actuator"]["file"], before[group]["actuator"]["file"]):
            continue
        if rest:
            put(after, key, flatten(cfg)[key])
        elif group == "log" or not (CONF / group).is_dir():
            after[group] = cfg[group]
        elif "name" in cfg[group]:
            after[group]["name"] = cfg[group]["name"]
    fixed = [line for key, line in changes(before, after).items() if within(key, FIXED) and not soft(key)]
    if fixed:
        raise ValueError(f"resume= continues a run as it was, which cannot change: {', '.join(fixed)}")
    return after | {"resume": str(cfg["resume"])}


def trained(run: Any) -> dict[str, Any]:
    """The configuration of a run, checked against this version's keys; a key that is newer than the run has its default."""
    found, where = run.config, run.path / "config.yaml"
    task_name(found["task"].get("name"))
    chosen = {
        group: found[group].get("name") for group in ("task", "sim", "log", "robot") if isinstance(found.get(group), dict)
    }
    base = build("config", [f"{group}={name}" for group, name in chosen.items() if name in choices(CONF / group)])
    try:
        cfg = merge(base, found)
        settle(cfg)
        for section in ("task", "robot"):
            cfg[section] = own(run.path, section, cfg[section])
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from None
    return cfg


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Key → "key old → new" for every value that differs, but for those that any continuation may change."""
    plans = [f"{cfg['curriculum'] or 'none'}".replace("'", "") for cfg in (before, after)]
    old, new = ({key: x for key, x in flatten(cfg).items() if not isinstance(x, dict)} for cfg in (before, after))
    entries = [entry for cfg in (before, after) for entry in (cfg["curriculum"] or {}).values()]
    free = {*CHANGEABLE, "curriculum"} - ({"eval_every"} if any(entry.get("by") == "success" for entry in entries) else set())
    keys = [key for key in {**new, **old} if not within(key, tuple(free))]
    found = {key: f"{key} {old.get(key)} → {new.get(key)}" for key in keys if old.get(key) != new.get(key)}
    return found | ({"curriculum": f"curriculum {plans[0]} → {plans[1]}"} if plans[0] != plans[1] else {})


def soft(key: str) -> bool:
    """Whether it is a weight, a noise or a range of the task, which may change while it is learned; not what is drawn once."""
    name, _, number = key.removeprefix("task.randomise.").rpartition(".")
    if name == key or not key.startswith("task.randomise."):
        return key.startswith(("task.weights.", "task.noise."))
    return number in variety.NUMBERS and variety.field(name).when != "world"


def same(one: str | None, other: str | None) -> bool:
    """Whether two files hold the same."""
    try:
        return bool(one and other) and Path(str(one)).read_bytes() == Path(str(other)).read_bytes()
    except OSError:
        return False


def own(folder: Path, section: str, values: dict[str, Any]) -> dict[str, Any]:
    """The section of a run, task or robot, with its files found there; ValueError for one that lies elsewhere."""
    values = values | {"mjcf": inside(folder, f"{section}.mjcf", values["mjcf"])}
    learned = values.get("actuator", {}).get("file")
    if learned is None:
        return values
    if not (folder / learned).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{section}.actuator.file={learned!r} lies outside of the run")
    return values | {"actuator": values["actuator"] | {"file": str(folder / learned)}}


def inside(folder: Path, key: str, name: str | None) -> str | None:
    """A model of a run: the name of one of ours, or a file in the run; ValueError for a path out of it."""
    if name is None or (Path(name).name == name and ":" not in name and not (folder / name).exists()):
        return name
    if not (folder / name).resolve().is_relative_to(folder.resolve()) or ":" in name:
        raise ValueError(f"{key}={name!r} lies outside of the run")
    model = folder / name
    confined(read_text(model, MODEL), model.parent, str(model))
    return str(model)
