"""The command `gpusim`; `python -m gpusim_rl` is the same."""

import sys
from difflib import get_close_matches
from importlib import import_module

from gpusim_rl import __version__
from gpusim_rl.core.errors import exit_with_error

PROGRAMS = {  # verb → the module with its `main`, and what it does
    "train": ("commands.train", "train a policy for a robot, evaluate it and export it"),
    "play": ("commands.play", "show, film, evaluate, judge, serve or export a policy"),
    "registry": ("commands.registry", "keep versions of policies, and promote one to a robot"),
    "identify": ("identify.main", "say what logs of a robot tell of its simulation"),
    "verify": ("training.verify", "repeat iterations of a run, and compare every tensor"),
    "warm": ("commands.warm", "compile the kernels of a training for a GPU before it begins"),
    "report": ("report.command", "write the page of one run, or of several"),
}
USAGE = """usage: gpusim VERB …, for example gpusim train task=quadruped

{}

`gpusim VERB --help` says more. Version {}."""


def main() -> None:
    """Do what the first word says with the others."""
    verb, *words = sys.argv[1:] or ["--help"]
    if verb in ("-h", "--help", "--version"):
        rows = (f"    {name:9} {does}" for name, (_, does) in PROGRAMS.items())
        print(__version__ if verb == "--version" else USAGE.format("\n".join(rows), __version__))
        raise SystemExit(0 if sys.argv[1:] else 2)
    if verb not in PROGRAMS:
        near = get_close_matches(verb, PROGRAMS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        exit_with_error(f"gpusim {verb}: {hint}choose one of {', '.join(PROGRAMS)}", 2)
    sys.argv = [f"gpusim {verb}", *words]  # messages name it
    import_module(f"gpusim_rl.{PROGRAMS[verb][0]}").main(words)


if __name__ == "__main__":
    main()
