"""The command line, checked before Hydra and torch see it, with every line of a multirun."""

import re
from functools import partial
from itertools import islice
from typing import Any

from hydra.core.override_parser.types import Override, ValueType
from omegaconf import OmegaConf

from gpusim_rl.config.compose import compose_plain, first, parse
from gpusim_rl.core import ranges
from gpusim_rl.core.errors import exit_with_error, one_line_errors
from gpusim_rl.core.paths import program

LONGEST = 150  # characters of a directory's name
MAX_RUNS = 200  # of a multirun: all are checked before the first run
PROGRAMS = {"config": "train", "play": "play"}  # file in conf/ → command
HELP = ("--help", "-h", "--hydra-help", "--version")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job", "hydra", "all")
OPTIONS = {"-m": (), "--multirun": (), "--info": INFO, "-i": INFO, "--cfg": CFG, "-c": CFG}
OPTIONS |= dict.fromkeys(HELP, ())


@one_line_errors()
def check(name: str, argv: list[str]) -> tuple[list[str], Any]:
    """The command line as Hydra takes it, options last, and its configuration.

    That of train.py is a `Config`, that of play.py plain data.

    With options the configuration is None: `--help`, `--cfg`, `--info` and multirun are Hydra's,
    which composes the line itself.
    Exits in one line if the line does not compose with conf/<name>.yaml.
    """
    overrides, options = split(argv)
    if any(option in HELP for option in options):
        from gpusim_rl.config.sections import table

        listing = partial(ranges.listing, table())
        OmegaConf.register_new_resolver("ranges", listing, replace=True)
        start = program(PROGRAMS[name])
        if start == f"python {PROGRAMS[name]}.py":  # what conf/<name>.yaml says
            return options, None
        return [*options, f"hydra.help.app_name='{start}'"], None  # to parse it takes 50 ms
    from gpusim_rl.config.resume import check_training  # not for --help: it loads 120 modules

    sweep = "-m" in options or "--multirun" in options
    if sweep and name != "config":
        exit_with_error("-m runs trainings: one at a time is played")
    if sweep:
        check_sweep(parse(overrides))
    cfg = compose_plain(name, overrides, sweep=sweep)
    if name == "config" and not sweep:
        cfg = check_training(cfg, overrides, robot=not options)  # --cfg and --info need no file
    elif name == "config":
        for line in single_lines(overrides):
            check_training(compose_plain(name, line), line)
    return overrides + options, None if options else cfg


def check_sweep(overrides: list[Override]) -> None:
    """Exit in one line if two runs would share a directory, or if values are no list."""
    sweeps = [o.key_or_group for o in overrides if o.is_sweep_override()]
    for o in overrides:
        if o.key_or_group in ("run_dir", "resume") and (
            sweeps != [o.key_or_group] or not distinct(o)
        ):
            exit_with_error(f"{o.input_line}: each run of a multirun needs one of its own")
        if o.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
            exit_with_error(f"{o.input_line}: list the values, as in {o.key_or_group}=a,b")
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


def single_lines(overrides: list[str]) -> list[list[str]]:
    """Command lines of single runs, in which every value of a multirun comes up.

    The other keys have their first value. ValueError if the multirun has too many runs.
    """
    parsed = parse(overrides)
    firsts = [first(o) for o in parsed]
    lines, runs = [firsts], 1
    for i, o in enumerate(parsed):
        if not o.is_sweep_override():
            continue
        values = list(islice(o.sweep_string_iterator(), MAX_RUNS + 1))
        for value in values[1:]:
            lines.append([*firsts[:i], f"{o.get_key_element()}={value}", *firsts[i + 1 :]])
        runs *= len(values)
        if runs > MAX_RUNS:
            raise ValueError(f"{o.input_line}: a multirun has at most {MAX_RUNS} runs")
    return lines


def distinct(sweep: Override) -> bool:
    """Whether no value of a sweep comes twice."""
    values = list(islice(sweep.sweep_string_iterator(), MAX_RUNS))
    return len(values) == len(set(values))


def swept(overrides: list[str]) -> dict[str, list[str]]:
    """Key → its values, of all that a multirun sweeps over."""
    sweeps = [o for o in parse(overrides) if o.is_sweep_override()]
    return {o.key_or_group: list(islice(o.sweep_string_iterator(), MAX_RUNS)) for o in sweeps}


# Why: docs/decisions/0073-a-directory-for-a-multirun.md
def run_name(overrides: list[str], sweep: dict[str, list[str]]) -> str:
    """A directory's name for one run of a multirun, such as `algo.gamma_0.9-seed_1`.

    It is `run` if nothing is swept, and has no character that would need quotes in `run=`.

    Args:
        overrides: of this run, KEY=VALUE.
        sweep: from `swept`.
    """
    values = dict(word.split("=", 1) for word in overrides)
    short = {key: re.sub(r"[^A-Za-z0-9_.]+", "_", values[key]).strip("_") for key in sweep}
    return "-".join(f"{key}_{value}" for key, value in short.items())[:LONGEST] or "run"
