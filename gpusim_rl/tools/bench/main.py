"""`python -m gpusim_rl.bench [MODE] KEY=VALUE …`: the first word may say what is measured.

    python -m gpusim_rl.bench task=quadruped            speed from the engine alone to the training
    python -m gpusim_rl.bench time 'seeds=[1,2,3]'      time and samples until a policy is good
    python -m gpusim_rl.bench profile task=quadruped    what bounds a training
    python -m gpusim_rl.bench MODE --help               more about levels, time or profile

The keys are those of train.py, and those of the mode's own file in conf/.
"""

from importlib import import_module

from gpusim_rl.core.errors import exit_with_error

MODES = {"levels": "levels", "time": "time_to_success", "profile": "profile"}  # to their modules


def main(words: list[str]) -> None:
    """Run the mode that the first word names; without such a word, levels."""
    if words in (["-h"], ["--help"]):
        print(__doc__)
        return
    mode = "levels"
    if words and "=" not in words[0] and not words[0].startswith("-"):
        mode, *words = words
    if mode == "tasks":
        exit_with_error("the mode tasks is gone: in a checkout, say python -m tests.bench.tasks")
    if mode not in MODES:
        exit_with_error(f"unknown mode {mode!r}: choose one of {', '.join(MODES)}")
    # Only this mode is imported: `time` leaves torch to the processes that train.
    module = import_module(f"gpusim_rl.tools.bench.{MODES[mode]}")
    if {"-h", "--help"} & set(words):
        print(module.__doc__)
        return
    try:
        module.main(words)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
