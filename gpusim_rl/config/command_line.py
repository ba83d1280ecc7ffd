"""The command line, checked before torch sees it, with every line of a multirun."""

import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import yaml
from hydra.core.override_parser.types import Override, ValueType

from gpusim_rl.config.compose import compose_plain, named, opened, parse
from gpusim_rl.core.errors import exit_with_error, one_line_errors
from gpusim_rl.core.files import Plain
from gpusim_rl.core.paths import CONF, install, program, quoted

if TYPE_CHECKING:
    from gpusim_rl.config.sections import Config

LONGEST_NAME = 150  # characters of a directory's name
MAX_RUNS = 200  # of a multirun: all are checked before the first run
PROGRAMS = {"config": "train", "play": "play"}  # file in conf/ → command
HELP = ("--help", "-h", "--hydra-help", "--version")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job", "hydra", "all")
MULTIRUN = ("-m", "--multirun")
OPTIONS = {"--info": INFO, "-i": INFO, "--cfg": CFG, "-c": CFG}
OPTIONS |= dict.fromkeys((*MULTIRUN, *HELP), ())
NUMBERS = ("numbers",)  # a page of help
OPTIONS |= dict.fromkeys(("--help", "-h"), NUMBERS)
LAUNCHERS = {  # → its package, and the extra that has it
    "submitit_slurm": ("submitit", "slurm"),
    "submitit_local": ("submitit", "slurm"),
    "ray": ("ray", "ray"),
}
LAUNCHER = ("hydra/launcher", "hydra.launcher.")  # beginnings of keys


@dataclass(frozen=True)
class Sweep:
    """A multirun, as its command line says."""

    words: list[str]  # all of the command line
    lists: dict[str, list[str]]  # key → its values, of all that have several
    lines: list[list[str]]  # the words of each training
    cfg: "Config"  # of one of them; `jobs`, `report` and `device` are for all
    launcher: str  # what starts them: one of LAUNCHERS; empty for processes of this machine
    resources: Plain  # what each training asks of a cluster, such as timeout_min


@one_line_errors()
def check(name: str, argv: list[str]) -> Any:
    """The configuration that a command line makes of conf/<name>.yaml.

    That of train.py is a `Config`, that of play.py plain data. `--help`, `--cfg` and `--info` are
    answered, and end the program. A mistake ends it in one line.
    """
    overrides, options = split(argv)
    if options and options[0].partition("=")[0] in HELP:
        if options[-1].endswith(NUMBERS):
            from gpusim_rl.config import numbers, validate

            cfg, code = compose_plain(name, overrides), None
            if name == "config":  # a task of the working directory is imported only if it is named
                code = validate.find_code("task", cfg, named(overrides).get("task"))
            print("\n".join(numbers.lines(name, cfg, code)))
            raise SystemExit
        start = program(PROGRAMS[name])
        # conf/<name>.yaml says python <name>.py; to parse another name takes 50 ms
        other = [] if start == f"python {PROGRAMS[name]}.py" else [start]
        answer(name, [*options, *(quoted("hydra.help.app_name", x) for x in other)])
    # not for --help: it loads 120 modules
    from gpusim_rl.config.resume import check_training
    from gpusim_rl.config.robot_size import fit_to_robot

    if is_multirun(options):
        exit_with_error("-m runs trainings: one at a time is played")
    cfg = plain = compose_plain(name, overrides)
    if name == "config":
        if cfg["jobs"] != 1:
            raise ValueError(f"jobs={cfg['jobs']}: add -m and a list of values for several runs")
        cfg = check_training(cfg, overrides, robot=not options)  # --cfg and --info need no file
    if options and options[0].partition("=")[0] in ("--cfg", "-c") and options[-1].endswith("job"):
        if name == "config" and plain["resume"] is None:
            with suppress(OSError, ValueError):  # of no robot, the numbers of the task
                plain = fit_to_robot(plain, [x.key_or_group for x in parse(overrides)])
        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip())
        raise SystemExit
    if options:
        answer(name, overrides + options)
    return cfg


def answer(name: str, argv: list[str]) -> None:
    """Let Hydra print what `--help`, `--cfg` or `--info` asks for, and end the program."""
    sys.argv[1:] = map(opened, argv)
    hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(lambda cfg: None)()
    raise SystemExit


def is_multirun(argv: list[str]) -> bool:
    return not {*MULTIRUN}.isdisjoint(argv)


def is_search(words: list[str]) -> bool:
    """Whether a command line asks for a search, or continues one."""
    from gpusim_rl.runs.run import SEARCH

    values = dict(word.split("=", 1) for word in words if "=" in word)
    folder = Path(values.get("resume", "").strip("'\""))
    asked = values.get("search", "none") != "none" or (folder / SEARCH).is_file()
    return asked and not any(word.startswith("-") for word in words)


@one_line_errors()
def check_multirun(argv: list[str]) -> Sweep:
    """The multirun of a command line of train.py, whose every value is checked.

    Exits in one line at a mistake, also if two runs would share a directory.
    """
    from gpusim_rl.config.resume import check_training

    overrides, _ = split(argv)
    launcher, resources, others = take_launcher(parse(overrides))
    values = {o.get_key_element(): values_of(o) for o in others}
    lists = {key: x for key, x in values.items() if len(x) > 1}
    check_lists(values, [*lists])
    # as many lines as the longest list has values, so that each value is in one
    longest = max(map(len, values.values()), default=1)
    lines = [[x[min(i, len(x) - 1)] for x in values.values()] for i in range(longest)]
    configs = [check_training(compose_plain("config", line), line) for line in lines]
    if (name := configs[0].search.name) != "none":
        raise ValueError(f"search={name}: leave out -m, its lists stand in search.space")
    values.pop("jobs", None)  # a training is one job
    return Sweep(
        words=overrides,
        lists={key: [word.partition("=")[2] for word in x] for key, x in lists.items()},
        lines=[list(line) for line in product(*values.values())],
        cfg=configs[0],
        launcher=launcher,
        resources=resources,
    )


def take_launcher(parsed: list[Override]) -> tuple[str, Plain, list[Override]]:
    """The launcher, what it asks of a cluster, and the other words; ValueError if it is none."""
    of = {o.key_or_group: o.value() for o in parsed if o.key_or_group.startswith(LAUNCHER)}
    others = [o for o in parsed if o.key_or_group not in of]
    chosen = str(of.pop("hydra/launcher", ""))
    if (chosen or of) and chosen not in LAUNCHERS:
        raise ValueError(f"hydra/launcher={chosen}: choose one of {', '.join(LAUNCHERS)}")
    package, extra = LAUNCHERS.get(chosen, ("", ""))
    if package and not find_spec(package):
        raise ValueError(f"hydra/launcher={chosen} needs {package}: {install(extra)}")
    return chosen, {key.removeprefix(LAUNCHER[1]): x for key, x in of.items()}, others


def check_lists(values: dict[str, list[str]], keys: list[str]) -> None:
    """ValueError if two runs would share a directory, or if there are too many.

    `values` is key → its words, of a whole command line, and `keys` are those that have several.
    """
    for key in {"run_dir", "resume"} & values.keys():
        if keys != [key] or len({*values[key]}) < len(values[key]):
            raise ValueError(f"{values[key][0]}: each run of a multirun needs one of its own")
    if "auto_resume" in values and "run_dir" not in keys and not {*keys} <= {"seed", "task"}:
        shared = "the runs of this multirun would share a directory"
        raise ValueError(f"auto_resume: {shared}: sweep over seed and task alone")
    if "jobs" in keys:
        raise ValueError("jobs: expected one number")
    if prod(map(len, values.values())) > MAX_RUNS:
        raise ValueError(f"{' '.join(keys)}: a multirun has at most {MAX_RUNS} runs")


def values_of(override: Override) -> list[str]:
    """KEY=VALUE for each value of a word, up to one more than a multirun may have."""
    key, word = override.key_or_group, str(override.input_line)
    if override.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
        raise ValueError(f"{word}: list the values, as in {key}=a,b")
    if not override.is_sweep_override():
        return [word]
    values = islice(override.sweep_string_iterator(), MAX_RUNS + 1)
    return [f"{override.get_key_element()}={value}" for value in values]


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """(overrides, options with their values) of a command line.

    Exits in one line at an unknown option.
    """
    overrides, options, values = [], [], ()
    for word in argv:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", "")
        if option and (option not in OPTIONS or (equals and value not in OPTIONS[option])):
            exit_with_error(
                f"unknown option {word}: choose one of --help, --multirun (-m), "
                f"--cfg {'|'.join(CFG)}, --info"
            )
        (options if option or word in values else overrides).append(word)
        values = OPTIONS[option] if option and not equals else ()
    if options and options[-1] in ("--cfg", "-c"):
        exit_with_error(f"{options[-1]}: choose one of {', '.join(CFG)}")
    if sum(word.startswith("-") for word in options) > 1:
        exit_with_error(f"one option at a time, not {' '.join(options)}")
    return overrides, options


# Why: docs/decisions/configuration.md
def run_name(overrides: list[str], keys: Iterable[str]) -> str:
    """A directory's name for one run of a multirun, such as `algo.gamma_0.9-seed_1`.

    It is `run` if there are no lists, and has no character that would need quotes in `run=`.

    overrides: of this run, KEY=VALUE; keys: of all lists.
    """
    values = dict(word.split("=", 1) for word in overrides)
    short = {key: re.sub(r"[^A-Za-z0-9_.]+", "_", values[key]).strip("_") for key in keys}
    return "-".join(f"{key}_{value}" for key, value in short.items())[:LONGEST_NAME] or "run"
