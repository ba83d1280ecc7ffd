"""The command line, checked before torch sees it, with every line of a multirun."""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.override_parser.types import Override, ValueType
from omegaconf import OmegaConf

from gpusim_rl.config.compose import compose_plain, parse
from gpusim_rl.core import ranges
from gpusim_rl.core.errors import exit_with_error, one_line_errors
from gpusim_rl.core.paths import CONF, program

if TYPE_CHECKING:
    from gpusim_rl.config.sections import Config

LONGEST = 150  # characters of a directory's name
MAX_RUNS = 200  # of a multirun: all are checked before the first run
PROGRAMS = {"config": "train", "play": "play"}  # file in conf/ → command
HELP = ("--help", "-h", "--hydra-help", "--version")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job", "hydra", "all")
MULTIRUN = ("-m", "--multirun")
OPTIONS = {"--info": INFO, "-i": INFO, "--cfg": CFG, "-c": CFG}
OPTIONS |= dict.fromkeys((*MULTIRUN, *HELP), ())
LAUNCHERS = {"submitit_slurm": "SlurmExecutor", "submitit_local": "LocalExecutor"}


@dataclass(frozen=True)
class Sweep:
    """A multirun, as its command line says.

    Args:
        words: all of the command line.
        lists: key → its values, of all that have several.
        lines: the words of each training.
        cfg: of one of them. `jobs`, `report` and `device` are for all.
        launcher: what starts them: one of LAUNCHERS; empty for processes of this machine.
        resources: what each training asks of a cluster, such as timeout_min.
    """

    words: list[str]
    lists: dict[str, list[str]]
    lines: list[list[str]]
    cfg: "Config"
    launcher: str
    resources: dict[str, Any]


@one_line_errors()
def check(name: str, argv: list[str]) -> Any:
    """The configuration that a command line makes of conf/<name>.yaml.

    That of train.py is a `Config`, that of play.py plain data. `--help`, `--cfg` and `--info` are
    answered, and end the program. A mistake ends it in one line.
    """
    words, options = split(argv)
    if any(option in HELP for option in options):
        from gpusim_rl.config.sections import table

        listing = partial(ranges.listing, table())
        OmegaConf.register_new_resolver("ranges", listing, replace=True)
        start = program(PROGRAMS[name])
        # conf/<name>.yaml says python <name>.py; to parse another name takes 50 ms
        other = [] if start == f"python {PROGRAMS[name]}.py" else [start]
        answer(name, [*options, *(f"hydra.help.app_name='{x}'" for x in other)])
    from gpusim_rl.config.resume import check_training  # not for --help: it loads 120 modules

    if is_multirun(options):
        exit_with_error("-m runs trainings: one at a time is played")
    cfg = compose_plain(name, words)
    if name == "config":
        if cfg["jobs"] != 1:
            raise ValueError(f"jobs={cfg['jobs']}: add -m and a list of values for several runs")
        cfg = check_training(cfg, words, robot=not options)  # --cfg and --info need no file
    if options:
        answer(name, words + options)
    return cfg


def answer(name: str, argv: list[str]) -> None:
    """Let Hydra print what `--help`, `--cfg` or `--info` asks for, and end the program."""
    sys.argv[1:] = argv
    hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(lambda cfg: None)()
    raise SystemExit


def is_multirun(argv: list[str]) -> bool:
    """Whether a command line has the option of a multirun."""
    return not {*MULTIRUN}.isdisjoint(argv)


@one_line_errors()
def check_multirun(argv: list[str]) -> Sweep:
    """The multirun of a command line of train.py, whose every value is checked.

    Exits in one line at a mistake, also if two runs would share a directory.
    """
    from gpusim_rl.config.resume import check_training

    words, _ = split(argv)
    overrides = parse(words)
    launcher = {o.key_or_group: o.value() for o in overrides if is_launcher(o)}
    overrides = [o for o in overrides if not is_launcher(o)]
    values = [values_of(o) for o in overrides]
    check_lists(overrides, values)
    longest = max(map(len, values), default=1)
    # as many lines as the longest list has values, so that each value is in one
    lines = [[x[min(i, len(x) - 1)] for x in values] for i in range(longest)]
    configs = [check_training(compose_plain("config", line), line) for line in lines]
    chosen = str(launcher.pop("hydra/launcher", ""))
    if (chosen or launcher) and chosen not in LAUNCHERS:
        raise ValueError(f"hydra/launcher={chosen}: choose one of {', '.join(LAUNCHERS)}")
    if chosen and not find_spec("submitit"):
        raise ValueError(f"hydra/launcher={chosen} needs submitit: pip install 'gpusim_rl[slurm]'")
    pairs = [*zip(overrides, values, strict=True)]
    lists = {o.key_or_group: x for o, x in pairs if o.is_sweep_override()}
    each = [x for o, x in pairs if o.key_or_group != "jobs"]  # a training is one job
    return Sweep(
        words=words,
        lists={key: [word.partition("=")[2] for word in x] for key, x in lists.items()},
        lines=[list(line) for line in product(*each)],
        cfg=configs[0],
        launcher=chosen,
        resources={key.removeprefix("hydra.launcher."): x for key, x in launcher.items()},
    )


def is_launcher(override: Override) -> bool:
    """Whether a word chooses a launcher, or is one of its resources."""
    return override.key_or_group.startswith(("hydra/launcher", "hydra.launcher."))


def check_lists(overrides: list[Override], values: list[list[str]]) -> None:
    """Exit in one line if two runs would share a directory, or if there are too many.

    Args:
        overrides: of the command line.
        values: from `values_of`, of each.
    """
    sweeps = [o.key_or_group for o in overrides if o.is_sweep_override()]
    for o, x in zip(overrides, values, strict=True):
        if o.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
            exit_with_error(f"{o.input_line}: list the values, as in {o.key_or_group}=a,b")
        if o.key_or_group in ("run_dir", "resume") and (
            sweeps != [o.key_or_group] or len({*x}) < len(x)
        ):
            exit_with_error(f"{o.input_line}: each run of a multirun needs one of its own")
        if o.key_or_group == "jobs" and o.is_sweep_override():
            exit_with_error(f"{o.input_line}: expected one number")
        shared = "run_dir" not in sweeps and not set(sweeps) <= {"seed", "task"}
        if o.key_or_group == "auto_resume" and shared:
            exit_with_error(
                f"{o.input_line}: the runs of this multirun would share a directory: "
                "sweep over seed and task alone"
            )
    if prod(map(len, values)) > MAX_RUNS:
        lists = " ".join(str(o.input_line) for o in overrides if o.is_sweep_override())
        exit_with_error(f"{lists}: a multirun has at most {MAX_RUNS} runs")


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """(overrides, options with their values) of a command line.

    Exits in one line at an unknown option.
    """
    words, options, values = [], [], ()
    for word in argv:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", "")
        if option and (option not in OPTIONS or (equals and value not in OPTIONS[option])):
            exit_with_error(
                f"unknown option {word}: choose one of --help, --multirun (-m), "
                f"--cfg {'|'.join(CFG)}, --info"
            )
        (options if option or word in values else words).append(word)
        values = OPTIONS[option] if option and not equals else ()
    if options and options[-1] in ("--cfg", "-c"):
        exit_with_error(f"{options[-1]}: choose one of {', '.join(CFG)}")
    if sum(word.startswith("-") for word in options) > 1:
        exit_with_error(f"one option at a time, not {' '.join(options)}")
    return words, options


def values_of(override: Override) -> list[str]:
    """KEY=VALUE for each value of a word, up to one more than a multirun may have."""
    if not override.is_sweep_override():
        return [override.input_line or ""]
    values = islice(override.sweep_string_iterator(), MAX_RUNS + 1)
    return [f"{override.get_key_element()}={value}" for value in values]


# Why: docs/decisions/0073-a-directory-for-a-multirun.md
def run_name(words: list[str], keys: Iterable[str]) -> str:
    """A directory's name for one run of a multirun, such as `algo.gamma_0.9-seed_1`.

    It is `run` if there are no lists, and has no character that would need quotes in `run=`.

    Args:
        words: of this run, KEY=VALUE.
        keys: of all lists.
    """
    values = dict(word.split("=", 1) for word in words)
    short = {key: re.sub(r"[^A-Za-z0-9_.]+", "_", values[key]).strip("_") for key in keys}
    return "-".join(f"{key}_{value}" for key, value in short.items())[:LONGEST] or "run"
