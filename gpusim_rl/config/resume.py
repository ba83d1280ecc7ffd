"""The configuration of a run that exists: what it says is checked, and what of it may change."""

import copy
import json
from pathlib import Path

from hydra.core.override_parser.types import Override

from gpusim_rl.config.check_words import check_task_code, merge
from gpusim_rl.config.compose import (
    ALGO,
    build,
    build_base,
    choices,
    group_words,
    is_group,
    named,
    parse,
)
from gpusim_rl.config.device_overrides import read_device_overrides
from gpusim_rl.config.nested_dict import flatten, is_below, leaves, set_key
from gpusim_rl.config.robot_size import fit_to_robot
from gpusim_rl.config.run_files import describe_files, find_files, is_kept_file
from gpusim_rl.config.sections import Config, file_keys, own_file_keys
from gpusim_rl.config.user_files import GROUPS
from gpusim_rl.config.validate import (
    TASK_CODE,
    check_extras,
    check_name,
    find_codes,
    probe,
    saved_code,
)
from gpusim_rl.core.files import Plain
from gpusim_rl.core.paths import CODE, user_code
from gpusim_rl.envs import curriculum
from gpusim_rl.envs.randomization import entries, fields
from gpusim_rl.runs.run import Run

# What says nothing of how a run trains
SILENT = ("save_every", "log_every", "film_every", "log", "export", "report", "gate", "resume")
SILENT += ("run_dir", "auto_resume", "plan", "task_code", "algo_code", "search")
# What resume= may change without a word
CHANGEABLE = (*SILENT, "iterations", "stop_at", "stop_when", "eval_every", "episodes")
CHANGEABLE += ("rollbacks", "cluster")
HARMLESS = ("graph", "sim.threads")  # what changes no bit of a training
CAPACITIES = ("sim.naconmax", "sim.njmax")  # which the program itself writes anew
NAMED = ("recipe", "ranges")  # groups whose numbers stand in the run itself
# Why: docs/decisions/checkpoints.md
# What it cannot change, nor the files that a run has; other keys it changes with a warning
FIXED = (
    *("task", "terrain", "robot", "recipe", "ranges", "seed", "num_envs", "gpu", "sim.name"),
    *(
        "algo.hidden",
        "algo.model_hidden",
        "algo.members",
        "algo.encoders",
        "algo.activation",
        "algo.std",
        "algo.min_std",
        "algo.symmetry",
    ),
    *("algo.memory", "algo.memory_size", "algo.memory_frames", "algo.name"),
    *("algo.replay", "algo.draw", "algo.alpha", "reward.name", "reward.hidden", "reward.features"),
    *("reward.members", "reward.seconds", "reward.judge", "reward.labels"),
    # what was done before the first rollout
    *("cloning.episodes", "cloning.epochs", "cloning.learning_rate", "cloning.std"),
    *("cloning.count", "files"),
)


def check_training(cfg: Plain, overrides: list[str], robot: bool = True) -> Config:
    """The configuration of a training, checked; with resume=, that of the run and `overrides`.

    ValueError or OSError in one line if something is wrong.

    cfg: of `compose_plain`; robot: whether to fit a new training's numbers to its robot.
    """
    parsed = parse(overrides)
    keys = [override.key_or_group for override in parsed]
    by_name = named(overrides)
    check_task_code(cfg["task_code"])
    if cfg["start"] is not None and cfg["resume"] is not None:
        raise ValueError("start= begins a new training: leave it out, or resume=")
    cfg = find_earlier_run(cfg, by_name)
    new = cfg["resume"] is None
    cfg = cfg | find_codes(cfg, by_name) if new else continue_config(cfg, parsed)
    config = read_device_overrides(Config.of(cfg), keys)
    if config.graph == "whole" and config.sim.conditional:
        raise ValueError("sim.conditional=true does not work with graph=whole: use graph=parts")
    if config.search.name == "none" and (idle := [x for x in keys if x.startswith("search.")]):
        raise ValueError(f"{idle[0]} needs search=grid, random, asha, pbt or optuna")
    curriculum.check_overrides(cfg, [*keys, *flatten(config.gpu)])
    check_extras(*(f"{group}={cfg[group]['name']}" for group in ("log", "sim", "cluster")))
    correction = cfg["algo"].get("correction", "none")
    if correction not in ("auto", "none") and not config.cluster.lag_limit:
        raise ValueError(
            f"algo.correction={correction} changes nothing here: it is for cluster=ray with "
            "cluster.sync=false and cluster.max_lag above 0"
        )
    if not new:
        return config
    check_new(config)
    fitted = fit_to_robot(config.plain, keys) if robot else config.plain
    return config if fitted is config.plain else Config.of(fitted)


def find_earlier_run(cfg: Plain, by_name: dict[str, str]) -> Plain:
    """With auto_resume=true, cfg with its run_dir, and with resume= if a run is there.

    task_code and algo_code say what may come from the working directory: with task_code=here both,
    with auto_resume=true also what the command line names, group → name.
    """
    allowed = cfg["task_code"]
    cfg = cfg | {"algo_code": allowed}
    if not cfg["auto_resume"] or cfg["resume"] is not None:
        return cfg
    default = f"runs/{cfg['task']['name']}/s{cfg['seed']}"
    cfg = cfg | {"run_dir": cfg["run_dir"] or default}
    if Run(Path(str(cfg["run_dir"]))).checkpoints.saved():
        codes = find_codes(cfg, by_name)
        cfg |= {"resume": cfg["run_dir"]} | {key: x or allowed for key, x in codes.items()}
    return cfg


def check_new(cfg: Config) -> None:
    """ValueError or OSError unless a new training can have its directory, and what it begins with.

    run_dir= is empty and can be written. Demonstrations are a file, or a run with a checkpoint.
    So is start=, whose networks are compared when they are built.
    """
    if cfg.run_dir:
        path = Path(cfg.run_dir)
        # with auto_resume, `Run.create` looks closer
        if path.is_dir() and any(path.iterdir()) and not cfg.auto_resume:
            raise ValueError(
                f"run_dir={path} is not empty: name another, or continue it with resume={path}"
            )
        probe("run_dir", str(path), next(p for p in (path, *path.parents) if p.exists()))
    if cfg.demos is not None and cfg.start is not None:
        raise ValueError("demos= and start= both give the first weights: leave one of them out")
    values = flatten(cfg.plain)
    for key in (*kept_as(cfg.plain, "keep"), "start"):
        value = values.get(key)
        if value is None or (key != "start" and Path(value).is_file()):
            continue
        if key != "start" and not (Path(value) / "config.yaml").is_file():
            raise FileNotFoundError(f"{key}={value}: there is no such file, and no such run")
        if not Run.open(Path(value)).checkpoints.saved():
            raise FileNotFoundError(f"{key}={value}: this run has no checkpoint")


def continue_config(cfg: Plain, overrides: list[Override]) -> Plain:
    """The configuration of the run cfg["resume"], with cfg's values of the keys of `overrides`.

    A group such as task=quadruped says which file it is, not what was in it when the run began.
    ValueError lists the keys that may not change.
    """
    allowed = {group: cfg[f"{group}_code"] for group in CODE}
    run = Run.open(Path(str(cfg["resume"])))
    before = load_config(run, allowed).plain
    check_judge(run, before, cfg["task_code"])
    after, files = copy.deepcopy(before), {file.key: file for file in file_keys(before)}
    for key in [override.key_or_group for override in overrides]:
        group, _, rest = key.partition(".")
        # the run has what these gave it
        given = group in ("gpu", "start") or key in kept_as(before, "keep")
        given |= group in NAMED and bool(rest)
        begun = given and cfg["auto_resume"]
        if begun or (key in files and is_kept_file(files[key], cfg, before)):
            continue
        if rest:
            set_key(after, key, flatten(cfg)[key])
        elif group == "curriculum" and cfg[group]:  # that of the command line joins the run's
            of_task = build_base("config", group_words(overrides))[group] or {}
            changed = {name: x for name, x in cfg[group].items() if of_task.get(name) != x}
            after[group] = (before[group] or {}) | changed
        elif group in ("log", "cluster", "search") or not is_group(group):
            after[group] = cfg[group]
        elif "name" in cfg[group]:
            after[group]["name"] = cfg[group]["name"]
    if own := own_file_keys(before):
        after["files"] = describe_files(own, after)
    lines = [line for key, line in changes(before, after).items() if is_fixed(key, before)]
    for_algo = before["algo_code"] and not cfg["auto_resume"]  # what task_code=here is there for
    other = cfg["task_code"] != before["task_code"] and not for_algo
    if other and user_code("task", before["task"]["name"]):
        lines.append(f"task_code {before['task_code']} → {cfg['task_code']}")
    if lines:
        raise ValueError(
            f"resume= continues a run as it was, which cannot change: {', '.join(lines)}"
        )
    codes = {f"{group}_code": before[f"{group}_code"] for group in CODE}
    return after | {"resume": str(cfg["resume"])} | codes


def check_judge(run: Run, before: Plain, allowed: str | None) -> None:
    """ValueError if a program answers for people in a run, and none of here is allowed."""
    if (judge := before["reward"].get("judge")) and allowed != "here":
        says = f"is answered by {judge} of judges/ here, which is imported only with {TASK_CODE}"
        raise ValueError(f"{run.path} {says}")


def load_config(run: Run, allowed: str | dict[str, str | None] | None = None) -> Config:
    """The configuration of a run, perhaps a stranger's, checked against this version's keys.

    A key that is newer than the run has its default. ValueError in one line if it is wrong, or if
    its code is not allowed.

    allowed: task_code of the command line, or a code for each group of `CODE`; "here" allows code
    of the working directory.
    """
    saved, file = run.config, run.path / "config.yaml"
    flat, codes, files = flatten(saved), {}, saved.pop("files", {})
    if not isinstance(files, dict):
        raise ValueError(f"{file}: files={files!r}: expected keys with values")
    allowed = allowed if isinstance(allowed, dict) else dict.fromkeys(CODE, allowed)
    for group in CODE:
        name = str(flat.get(f"{group}.name", ALGO if group == "algo" else None))
        code = f"{group}_code"
        codes[code] = saved_code(group, name, saved.pop(code, None), allowed[group])
        check_name(group, name)
    builtin = codes["task_code"] is None
    but = ("algo",) if codes["algo_code"] else ()  # the user's file of numbers
    base = build("config", groups_of(saved, builtin, but), builtin, but)
    try:
        names = {x: {"name": str(flat.get(f"{x}.name", base[x]["name"]))} for x in NAMED}
        saved = {key: x for key, x in saved.items() if key not in NAMED}
        cfg: Plain = merge(base, saved) | codes | {"gpu": {}} | names
        cfg |= {"files": files} if files else {}
        find_files(run.path, cfg, builtin)
        return Config.of(cfg)
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from None


def groups_of(saved: Plain, builtin: bool, but: tuple[str, ...] = ()) -> list[str]:
    """The words that choose the files of a run; those that are gone are left out.

    builtin, but: as of `compose.build`.
    """
    flat = flatten(saved)
    chosen = {group: flat.get(f"{group}.name") for group in GROUPS if group not in NAMED}
    return [
        f"{group}={name}"
        for group, name in chosen.items()
        if name in choices(group, builtin and group not in but)
    ]


def changes(before: Plain, after: Plain) -> dict[str, str]:
    """Key → "key old → new", of keys that differ and that resuming may not change."""
    plans = [f"{cfg['curriculum'] or 'none'}".replace("'", "") for cfg in (before, after)]
    old, new = leaves(before), leaves(after)
    plan = [entry for cfg in (before, after) for entry in (cfg["curriculum"] or {}).values()]
    free = {*CHANGEABLE, "curriculum", *kept_as(after, "hash")}
    if any(entry.get("by") == "success" for entry in plan):
        free.discard("eval_every")  # the curriculum goes by evaluations
    lines = {
        key: f"{key} {old.get(key)} → {new.get(key)}"
        for key in {**new, **old}
        if not is_below(key, tuple(free)) and old.get(key) != new.get(key)
    }
    if plans[0] != plans[1]:
        lines["curriculum"] = f"curriculum {plans[0]} → {plans[1]}"
    return lines


def edits(metadata: dict[str, str], config: Plain, file: Path) -> dict[str, str]:
    """Key → "key old → new" for what config.yaml says otherwise than a checkpoint was trained with.

    ValueError if the metadata of the checkpoint, `file`, are damaged. What config.yaml lacks has
    its default in `config`.
    """
    trained = flatten(read_trained(metadata, file))
    now, lines = flatten(config), {}
    free_keys = (*CHANGEABLE, *HARMLESS, *CAPACITIES, *kept_as(config, "hash"))
    moved = kept_as(config, "copy", "keep")  # perhaps with the run
    for key, value in trained.items():
        new = now.get(key)
        if key in moved:
            value, new = (x and Path(str(x)).name for x in (value, new))
        section = isinstance(value, dict) and key != "curriculum"  # its entries have own keys
        free = section or is_below(key, free_keys)
        if value != new and not free:
            lines[key] = f"{key} {value} → {new}"
    return lines


def read_trained(metadata: dict[str, str], file: Path) -> Plain:
    """The configuration that a checkpoint was trained with; ValueError if that is damaged."""
    try:
        trained = json.loads(metadata.get("config", "{}"))
        flatten(trained)
        return trained
    except (ValueError, RecursionError, AttributeError):
        raise ValueError(f"{file} is damaged: its configuration cannot be read") from None


def check_edits(metadata: dict[str, str], config: Plain, run: Run, file: Path) -> dict[str, str]:
    """`edits` of a run; ValueError if one is of what resume= cannot change."""
    lines = edits(metadata, config, file)
    fixed = [line for key, line in lines.items() if is_fixed(key, config)]
    if fixed:
        said = ", ".join(sorted(fixed))
        raise ValueError(f"{run.path}/config.yaml does not belong to the last checkpoint: {said}")
    return lines


def is_fixed(key: str, cfg: Plain) -> bool:
    """Whether resume= cannot change a key of a configuration."""
    return is_below(key, (*FIXED, *kept_as(cfg, "copy", "keep"))) and not may_change(key)


def kept_as(cfg: Plain, *hows: str) -> tuple[str, ...]:
    """The keys of files that a run keeps in one of these ways. Of `hash`, the path may change."""
    return tuple(file.key for file in file_keys(cfg) if file.how in hows)


def may_change(key: str) -> bool:
    """Whether a number of the task may change while it is learned.

    These are weights, noise, and ranges of what is drawn more than once.
    """
    name, _, number = key.removeprefix("task.randomise.").rpartition(".")
    if name == key or not key.startswith("task.randomise."):
        return key.startswith(("task.weights.", "task.noise."))
    return number in entries.NUMBERS and fields.field(name).when != "world"
