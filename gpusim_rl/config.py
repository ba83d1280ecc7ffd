"""From the command line to plain data. A mistake of key or value is answered in one line, before torch is loaded."""

import copy
import difflib
import re
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpusim_rl import curriculum, variety
from gpusim_rl.actuator import Actuator
from gpusim_rl.bundle import confined, kept
from gpusim_rl.disk import read_text

MODEL = 1 << 26  # bytes of a stranger's MJCF
CONF = Path(__file__).resolve().parent.parent / "conf"
# What resume= may change without a word, and what it cannot change: the rest it changes with a warning.
CHANGEABLE = (
    *("iterations", "stop_at", "eval_every", "save_every", "log_every", "episodes", "log", "rollbacks"),
    *("resume", "run_dir", "auto_resume", "plan", "hydra"),
)
FIXED = (
    *("task", "robot", "seed", "num_envs", "sim.name"),
    *("algo.hidden", "algo.activation", "algo.std", "algo.floor", "algo.symmetry"),
)
SEEDS = 0x5EED_0000  # training seeds are below; from here on they are evaluation's
KINDS = ("none", "augment", "loss", "net")  # of algo.symmetry
PAST = 64  # control steps of the past that an actor may see
LARGEST, SMALLEST = 3.4e38, 1e-18  # of float32, and what of it can be squared and inverted
RUNS = 200  # of a multirun: each value is checked before the first run, in a tenth of a second
HELP = ("--help", "-h", "--hydra-help", "--version")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job", "hydra", "all")
OPTIONS = {"-m": (), "--multirun": (), "--info": INFO, "-i": INFO, "--cfg": CFG, "-c": CFG}
OPTIONS |= dict.fromkeys(HELP, ())


def fail(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong in one line on stderr and exit: with 2 for a mistake of the user's."""
    line = " ".join(message.split())
    print(f"error: {line if len(line) < 1000 else f'{line[:500]} … {line[-400:]}'}", file=sys.stderr)
    raise SystemExit(code)


@contextmanager
def one_line(code: int = 2):
    """Turn what a user can get wrong (ValueError, OSError) into one line. For building, not for running."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(str(error), code)


@one_line()
def check(name: str, argv: list[str]) -> list[str]:
    """The command line as Hydra takes it, options last; exits in one line if it does not compose with conf/<name>.yaml.

    Hydra then composes the same line itself, with its multirun, `--help` and `--cfg`.
    """
    words, options = split(argv)
    if any(option in HELP for option in options):
        return options
    sweep = "-m" in options or "--multirun" in options
    if sweep and name != "config":
        fail("-m runs trainings: one at a time is played")
    if sweep:
        parsed = parse(words)
        sweeps = [o.key_or_group for o in parsed if o.is_sweep_override()]
        for o in parsed:
            if o.key_or_group in ("run_dir", "resume") and (sweeps != [o.key_or_group] or not distinct(o)):
                fail(f"{o.input_line}: each run of a multirun needs one of its own")
            if o.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
                fail(f"{o.input_line}: list the values, as in {o.key_or_group}=a,b")
            if o.key_or_group == "auto_resume" and "run_dir" not in sweeps and not set(sweeps) <= {"seed", "task"}:
                fail(f"{o.input_line}: the runs of this multirun would share a directory: sweep over seed and task alone")
    cfg = compose_plain(name, words, sweep=sweep)
    if name == "config":
        with one_line():
            for line in lines(words) if sweep else [words]:
                settled(compose_plain(name, line) if sweep else cfg, line)
    return words + options


def distinct(sweep: Override) -> bool:
    """Whether no value of a sweep comes twice."""
    values = list(islice(sweep.sweep_string_iterator(), RUNS))
    return len(values) == len(set(values))


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """(overrides, options with their values) of a command line; exits in one line at an option that is none."""
    words, options, values = [], [], ()
    for word in argv:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", "")
        if option and (option not in OPTIONS or (equals and value not in OPTIONS[option])):
            fail(f"unknown option {word}: choose one of --help, --multirun (-m), --cfg {'|'.join(CFG)}, --info")
        (options if option or word in values else words).append(word)
        values = OPTIONS[option] if option and not equals else ()
    if options and options[-1] in ("--cfg", "-c"):
        fail(f"{options[-1]}: choose one of {', '.join(CFG)}")
    if sum(word.startswith("-") for word in options) > 1:
        fail(f"one option at a time, not {' '.join(options)}")
    return words, options


def parse(words: list[str]) -> list[Override]:
    """The overrides; ValueError at what is none."""
    found = []
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ValueError(f"{word!r} is not KEY=VALUE")
        try:
            found += OverridesParser.create().parse_overrides([word])
        except (HydraException, ValueError, RecursionError) as error:
            says = str(error).splitlines()[0]
            if "NoViableAlt" in says:
                says = "such characters stand in quotes, KEY=\"'VALUE'\""
            raise ValueError(f"{word!r}: {says}") from None
    return found


def lines(words: list[str]) -> list[list[str]]:
    """Single command lines in which every value of a sweep comes up, the other keys at their first."""
    parsed = parse(words)
    firsts = [first(o) for o in parsed]
    found, runs = [firsts], 1
    for i, o in enumerate(parsed):
        if o.is_sweep_override():
            values = list(islice(o.sweep_string_iterator(), RUNS + 1))
            found += [[*firsts[:i], f"{o.get_key_element()}={value}", *firsts[i + 1 :]] for value in values[1:]]
            runs *= len(values)
            if runs > RUNS:
                raise ValueError(f"{o.input_line}: a multirun has at most {RUNS} runs")
    return found


def compose_plain(name: str, words: list[str], sweep: bool = False) -> dict[str, Any]:
    """conf/<name>.yaml with overrides, as plain data; ValueError in one line if they do not fit."""
    parsed = parse(words)
    try:
        if any(o.is_sweep_override() for o in parsed) and not sweep:
            swept = next(o.input_line for o in parsed if o.is_sweep_override())
            raise ValueError(f"{swept!r} is a list of values: add -m to run each")
        groups = [o for o in parsed if is_group(o)]
        for override in groups:
            check_choice(override)
        base = build_base(name, tuple(first(o) for o in groups))
        for override in parsed:
            check_key(override, base)
        cfg = build(name, [first(o) for o in parsed])
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except RecursionError:
        raise ValueError("these values are nested too deeply") from None
    before, after = flatten(base), flatten(cfg)
    for key in [o.key_or_group for o in parsed if not is_group(o)]:
        same_kind(key, before[key], after[key])
    return cfg


def build(name: str, overrides: list[str]) -> dict[str, Any]:
    """Compose to plain data, inside `hydra.main` too."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            cfg = compose(name, overrides=overrides)
            return OmegaConf.to_container(cfg, resolve=True)  # type: ignore[return-value]
    finally:
        GlobalHydra.instance().hydra = outer


@cache
def build_base(name: str, groups: tuple[str, ...]) -> dict[str, Any]:
    """`build`, kept: the lines of a multirun share it. Not to be changed."""
    return build(name, list(groups))


def first(override: Override) -> str:
    """The override with one value: a sweep's first."""
    if override.is_sweep_override():
        value = next(iter(override.sweep_string_iterator()))
        return f"{override.get_key_element()}={value}"
    return override.input_line or ""


def is_group(override: Override) -> bool:
    """Whether it chooses a file of a group, such as task=quadruped."""
    return override.key_or_group in [path.name for path in CONF.iterdir() if path.is_dir()]


def choices(folder: Path) -> list[str]:
    """Names of a group's files."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def check_choice(override: Override) -> None:
    """ValueError if a group has no such file."""
    group = override.key_or_group
    known = choices(CONF / group)
    for value in override.sweep_string_iterator() if override.is_sweep_override() else [str(override.value())]:
        if value not in known:
            raise ValueError(f"unknown {group} {value!r}: choose one of {', '.join(known)}")


def check_key(override: Override, base: dict[str, Any]) -> None:
    """ValueError if the key of an override does not exist."""
    key = override.key_or_group
    if override.is_add() or override.is_force_add() or override.is_delete():
        raise ValueError(f"{override.input_line!r}: only KEY=VALUE is understood")
    if is_group(override):
        return
    group, _, rest = key.partition(".")
    if rest == "name" and (CONF / group).is_dir():
        raise ValueError(f"{override.input_line}: choose with {group}=, one of {', '.join(choices(CONF / group))}")
    flat = flatten(base)
    if key not in flat:
        near = difflib.get_close_matches(key, flat, n=3, cutoff=0.5)
        section = [k for k in flat if k.rpartition(".")[0] == key.rpartition(".")[0]] or base
        says = "did you mean " + " or ".join(near) if near else "choose one of " + ", ".join(section)
        raise ValueError(f"unknown key {key!r}: {says}?")


def same_kind(key: str, old: Any, new: Any) -> None:
    """ValueError if a value is of another kind than the one it replaces (a null may become anything)."""
    wanted = {int: "a whole number", float: "a number", str: "a word", list: "a list", bool: "true or false"}
    if isinstance(new, float) and not abs(new) <= LARGEST:
        raise ValueError(f"{key}={new}: expected a finite number{'' if old is None else f', such as {old}'}")
    if isinstance(new, float) and 0 < abs(new) < SMALLEST:
        raise ValueError(f"{key}={new}: expected 0 or a number of at least {SMALLEST}")
    if isinstance(new, int) and not abs(new) < 2**63:
        raise ValueError(f"{key}={new}: expected a number below 2**63")
    if old is None or (isinstance(old, float) and type(new) is int):
        return
    if type(old) is not type(new):
        raise ValueError(f"{key}={new!r}: expected {wanted.get(type(old), 'keys with values')}, such as {old!r}")
    if isinstance(old, list) and isinstance(new, list) and old:
        if key.startswith("task.") and not key.endswith(".only") and len(new) != len(old):
            raise ValueError(f"{key}={new}: expected {len(old)} numbers, such as {old}")
        for entry in new:
            same_kind(key, old[0], entry)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a": {…}, "a.b": 1}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat[prefix + key] = value
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
    return flat


def positive(cfg: dict[str, Any], *keys: str, section: str = "") -> None:
    """ValueError unless each key holds a whole number of at least one, which 32 bits hold."""
    for key in keys:
        if type(cfg[key]) is not int or cfg[key] < 1:
            raise ValueError(f"{section}{key}={cfg[key]!r}: expected a whole number of at least 1")
        if cfg[key] >= 2**31:
            raise ValueError(f"{section}{key}={cfg[key]}: expected a whole number below {2**31}")


def writable(key: str, value: str | None, suffixes: tuple[str, ...] = ()) -> None:
    """ValueError or OSError in one line unless a file can be written there: said before the work, not after it."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{key}={value!r}: expected a file to write")
    path = Path(value)
    if suffixes and path.suffix not in suffixes:
        raise ValueError(f"{key}={value}: expected a name that ends in {', '.join(suffixes)}")
    if path.is_dir() or not path.parent.is_dir():
        raise OSError(f"{key}={value} is a directory" if path.is_dir() else f"{key}={value}: no directory {path.parent}")
    probe(key, value, path.parent)


def probe(key: str, value: str, folder: Path) -> None:
    """OSError in one line unless files can be made in a folder: tried, because permissions do not tell it all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{key}={value} cannot be written: {error.strerror}") from None


def task_name(name: str) -> str:
    """The name, if it is that of a task's file; a run's config.yaml may come from a stranger."""
    known = choices(CONF / "task")
    if not re.fullmatch(r"[A-Za-z_]\w*", str(name)) or name not in known:
        raise ValueError(f"unknown task {name!r}: choose one of {', '.join(known)}")
    return name


def settle(cfg: dict[str, Any]) -> None:
    """Check the values that no constructor sees; ValueError names the first wrong one."""
    positive(cfg, "num_envs", "num_steps", "iterations", "eval_every", "save_every", "log_every", "episodes")
    if type(cfg["rollbacks"]) is not int or cfg["rollbacks"] < 0:
        raise ValueError(f"rollbacks={cfg['rollbacks']!r}: expected a whole number of at least 0")
    positive(cfg["algo"], "update_epochs", "num_minibatches", section="algo.")
    if not 0 <= cfg["seed"] < SEEDS:
        raise ValueError(f"seed={cfg['seed']}: expected 0 ≤ seed < {SEEDS}")
    Actuator(**cfg["robot"]["actuator"])
    stop = cfg["stop_at"]
    if stop is not None and (isinstance(stop, bool) or not isinstance(stop, int | float) or not 0 < stop <= 1):
        raise ValueError(f"stop_at={stop!r}: expected a share of successes, such as 0.95")
    for key in ("run_dir", "resume"):
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a directory")
    for key in ("threads", "naconmax", "njmax"):
        value = cfg["sim"].get(key)
        if value is not None and (type(value) is not int or not 0 <= value < 2**31):
            raise ValueError(f"sim.{key}={value!r}: expected a whole number from 0 to {2**31 - 1}")
    for section in ("weights", "noise"):
        for term, value in cfg["task"][section].items():
            if type(value) not in (int, float) or not 0 <= value <= LARGEST:
                raise ValueError(f"task.{section}.{term}={value!r}: expected a number of at least 0, signs live in the task")
    if cfg["algo"]["symmetry"] not in KINDS:
        raise ValueError(f"algo.symmetry={cfg['algo']['symmetry']}: choose one of {', '.join(KINDS)}")
    for term, steps in cfg["task"].get("history", {}).items():
        if type(steps) is not int or not 1 <= steps <= PAST:
            raise ValueError(f"task.history.{term}={steps!r}: expected control steps, from 1 to {PAST}")
    low, high = cfg["task"].get("observation_delay", (0, 0))
    if not 0 <= low <= high <= PAST:
        raise ValueError(f"task.observation_delay={[low, high]}: expected the least and the most control steps, up to {PAST}")
    variety.check(cfg["task"]["randomise"])
    curriculum.check(cfg["curriculum"], cfg["task"])
    if cfg["log"]["name"] == "tensorboard" and not find_spec("tensorboard"):
        raise ValueError("log=tensorboard needs tensorboard: pip install 'gpusim_rl[tensorboard]'")


def settled(cfg: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """cfg of train.py, checked; with resume=, the configuration of that run and what of it `words` change."""
    if cfg["auto_resume"] and cfg["resume"] is None:
        cfg = cfg | {"run_dir": cfg["run_dir"] or f"runs/{cfg['task']['name']}/s{cfg['seed']}"}
        if any(Path(str(cfg["run_dir"])).glob("checkpoints/*.safetensors")):
            cfg["resume"] = cfg["run_dir"]
    if cfg["resume"] is not None:
        cfg = resumed(cfg, [o.key_or_group for o in parse(words)])
    settle(cfg)
    cfg = curriculum.at(cfg["curriculum"], cfg, "to")
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
    from gpusim_rl.run import Run

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


def same(one: str | None, other: str | None) -> bool:
    """Whether two files hold the same."""
    try:
        return bool(one and other) and Path(str(one)).read_bytes() == Path(str(other)).read_bytes()
    except OSError:
        return False


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the entry of a dotted key. In place."""
    *path, last = key.split(".")
    for name in path:
        tree = tree[name]
    tree[last] = value


def within(key: str, keys: tuple[str, ...]) -> bool:
    """Whether a dotted key is one of keys, or lies below one."""
    return any(key == other or key.startswith(f"{other}.") for other in keys)


def soft(key: str) -> bool:
    """Whether it is a weight, a noise or a range of the task, which may change while it is learned."""
    ends = tuple(f".{number}" for number in variety.NUMBERS)
    return key.startswith(("task.weights.", "task.noise.")) or (key.startswith("task.randomise.") and key.endswith(ends))


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Key → "key old → new" for every value that differs, but for those that any continuation may change."""
    old, new = flatten(before), flatten(after)
    keys = [key for key in new if not isinstance(new[key], dict) and not within(key, CHANGEABLE)]
    return {key: f"{key} {old.get(key)} → {new[key]}" for key in keys if old.get(key) != new[key]}


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


def merge(base: dict[str, Any], found: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """base with the values of found; ValueError at a key that base lacks or a value of another kind.

    Reward and noise terms are taken as they are: they must agree with the task, not with its file of today.
    """
    for key, value in found.items():
        if key not in base:
            raise ValueError(f"unknown key {prefix}{key}")
        same_kind(f"{prefix}{key}", base[key], value)
    deep = {key: value for key, value in found.items() if isinstance(base[key], dict) and key not in ("weights", "noise")}
    return base | found | {key: merge(base[key], value, f"{prefix}{key}.") for key, value in deep.items()}
