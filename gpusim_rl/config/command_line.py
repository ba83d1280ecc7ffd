"""The command line, checked before torch sees it, with every line of a multirun."""

import re
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice, product
from math import prod
from typing import Any

import hydra
from hydra.core.override_parser.types import Override, ValueType
from omegaconf import OmegaConf

from gpusim_rl.config.compose import compose_plain, parse
from gpusim_rl.core import ranges
from gpusim_rl.core.errors import exit_with_error, one_line_errors
from gpusim_rl.core.paths import CONF, program

LONGEST = 150  # characters of a directory's name
MAX_RUNS = 200  # of a multirun: all are checked before the first run
PROGRAMS = {"config": "train", "play": "play"}  # file in conf/ → command
HELP = ("--help", "-h", "--hydra-help", "--version")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job", "hydra", "all")
MULTIRUN = ("-m", "--multirun")
OPTIONS = {"--info": INFO, "-i": INFO, "--cfg": CFG, "-c": CFG}
OPTIONS |= dict.fromkeys((*MULTIRUN, *HELP), ())
LAUNCHERS = ("submitit_slurm", "submitit_local")
LAUNCHER = ("hydra/launcher=", "hydra.launcher.")  # beginnings of words that choose one


@dataclass(frozen=True)
class Sweep:
    """A multirun, as its command line says.

    Args:
        words: all of the command line.
        lists: key → its values, of all that have several.
        lines: the words of each training.
        jobs: how many run at once.
        report: whether a page compares them at the end.
        launcher: what starts them: one of LAUNCHERS; empty for processes of this machine.
        resources: what each training asks of a cluster, such as timeout_min.
    """

    words: list[str]
    lists: dict[str, list[str]]
    lines: list[list[str]]
    jobs: int
    report: bool
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
    return any(option in argv for option in MULTIRUN)


@one_line_errors()
def check_multirun(argv: list[str]) -> Sweep:
    """The multirun of a command line of train.py, whose every value is checked.

    Exits in one line at a mistake, also if two runs would share a directory.
    """
    from gpusim_rl.config.resume import check_training

    words, _ = split(argv)
    launcher = {o.key_or_group: o.value() for o in parse([x for x in words if is_launcher(x)])}
    others = [word for word in words if not is_launcher(word)]
    check_lists(parse(others))
    cfg = compose_plain("config", others, sweep=True)
    for line in single_lines(others):
        check_training(compose_plain("config", line), line)
    chosen = launcher.pop("hydra/launcher", "")
    if (chosen or launcher) and chosen not in LAUNCHERS:
        raise ValueError(f"hydra/launcher={chosen}: choose one of {', '.join(LAUNCHERS)}")
    if chosen and not find_spec("submitit"):
        raise ValueError(f"hydra/launcher={chosen} needs submitit: pip install 'gpusim_rl[slurm]'")
    each = [word for word in others if not word.startswith("jobs=")]  # a training is one job
    return Sweep(
        words=words,
        lists=lists_of(others),
        lines=[list(line) for line in product(*map(values_of, parse(each)))],
        jobs=cfg["jobs"],
        report=cfg["report"],
        launcher=str(chosen),
        resources={key.removeprefix(LAUNCHER[1]): x for key, x in launcher.items()},
    )


def is_launcher(word: str) -> bool:
    """Whether a word chooses a launcher, or is one of its resources."""
    return word.startswith(LAUNCHER)


def check_lists(overrides: list[Override]) -> None:
    """Exit in one line if two runs would share a directory, or if values are no list."""
    sweeps = [o.key_or_group for o in overrides if o.is_sweep_override()]
    for o in overrides:
        if o.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
            exit_with_error(f"{o.input_line}: list the values, as in {o.key_or_group}=a,b")
        values = values_of(o)
        if o.key_or_group in ("run_dir", "resume") and (
            sweeps != [o.key_or_group] or len(values) != len(set(values))
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


def single_lines(words: list[str]) -> list[list[str]]:
    """Command lines of single runs, in which every value of a multirun comes up.

    The other keys have their first value. ValueError if the multirun has too many runs.
    """
    values = [values_of(o) for o in parse(words)]
    if prod(map(len, values)) > MAX_RUNS:
        lists = " ".join(word for word, x in zip(words, values, strict=True) if len(x) > 1)
        raise ValueError(f"{lists}: a multirun has at most {MAX_RUNS} runs")
    first = [x[0] for x in values]
    others = [(i, word) for i, x in enumerate(values) for word in x[1:]]
    return [first, *([*first[:i], word, *first[i + 1 :]] for i, word in others)]


def values_of(override: Override) -> list[str]:
    """KEY=VALUE for each value of a word, up to one more than a multirun may have."""
    if not override.is_sweep_override():
        return [override.input_line or ""]
    values = islice(override.sweep_string_iterator(), MAX_RUNS + 1)
    return [f"{override.get_key_element()}={value}" for value in values]


def lists_of(words: list[str]) -> dict[str, list[str]]:
    """Key → its values, of all words that list several."""
    lists = [o for o in parse(words) if o.is_sweep_override()]
    return {o.key_or_group: [x.partition("=")[2] for x in values_of(o)] for o in lists}


# Why: docs/decisions/0073-a-directory-for-a-multirun.md
def run_name(words: list[str], lists: dict[str, list[str]]) -> str:
    """A directory's name for one run of a multirun, such as `algo.gamma_0.9-seed_1`.

    It is `run` if there are no lists, and has no character that would need quotes in `run=`.

    Args:
        words: of this run, KEY=VALUE.
        lists: from `lists_of`.
    """
    values = dict(word.split("=", 1) for word in words)
    short = {key: re.sub(r"[^A-Za-z0-9_.]+", "_", values[key]).strip("_") for key in lists}
    return "-".join(f"{key}_{value}" for key, value in short.items())[:LONGEST] or "run"
