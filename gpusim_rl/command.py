"""The command line, checked before Hydra and torch see it: its options, and every line of a multirun."""

from itertools import islice

from hydra.core.override_parser.types import Override, ValueType

from gpusim_rl.config import compose_plain, fail, first, one_line, parse
from gpusim_rl.resume import settled

RUNS = 200  # of a multirun: each value is checked before the first run, in a tenth of a second
HELP = ("--help", "-h", "--hydra-help", "--version")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = ("job", "hydra", "all")
OPTIONS = {"-m": (), "--multirun": (), "--info": INFO, "-i": INFO, "--cfg": CFG, "-c": CFG}
OPTIONS |= dict.fromkeys(HELP, ())


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


def distinct(sweep: Override) -> bool:
    """Whether no value of a sweep comes twice."""
    values = list(islice(sweep.sweep_string_iterator(), RUNS))
    return len(values) == len(set(values))
