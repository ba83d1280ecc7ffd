"""`python -m gpusim_rl.bench [MODE] KEY=VALUE …`: the first word may say what is measured.

    python -m gpusim_rl.bench task=quadruped            speed from the bare engine to the training
    python -m gpusim_rl.bench time 'seeds=[1,2,3]'      time and samples until a policy is good
    python -m gpusim_rl.bench profile task=quadruped    what bounds a training
    python -m gpusim_rl.bench tasks                     speed and memory of every task, in a table
    python -m gpusim_rl.bench MODE --help               more about levels, time, profile or tasks

The keys are those of train.py, and those of the mode's own file in conf/.
"""

from gpusim_rl.core.errors import exit_with_error

MODES = ("levels", "time", "profile", "tasks")


def main(words: list[str]) -> None:
    """Run the mode that the first word names; without such a word, levels."""
    if words in (["-h"], ["--help"]):
        print(__doc__)
        return
    mode = "levels"
    if words and "=" not in words[0] and not words[0].startswith("-"):
        mode, *words = words
    if mode not in MODES:
        exit_with_error(f"unknown mode {mode!r}: choose one of {', '.join(MODES)}")
    # Only what is needed is imported: `time` leaves torch to the processes that train.
    if mode == "time":
        from gpusim_rl.tools.bench import time_to_success as tool
    elif mode == "profile":
        from gpusim_rl.tools.bench import shares as tool
    elif mode == "tasks":
        from gpusim_rl.tools.bench import tasks as tool
    else:
        from gpusim_rl.tools.bench import main as tool
    try:
        tool.main(words)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
