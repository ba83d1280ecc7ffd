"""`gpusim play`, which is play.py in a checkout.

Torch and MuJoCo are imported inside functions: mistakes in the command line are answered before.
"""

import re
import sys

from gpusim_rl.commands.modes import check_task
from gpusim_rl.commands.play_mode import MODES, choose_mode, demo
from gpusim_rl.config import command_line
from gpusim_rl.core import errors
from gpusim_rl.core.provenance import limit_cores
from gpusim_rl.play.player import Settings

ROBOT_FILE = re.compile(r"^robot=(.*\.(xml|urdf))$")  # what robot=FILE means


def play(cfg: Settings, show_demo: bool = False) -> None:
    """Do what a configuration asks for, with the package's own policy if `show_demo`."""
    with errors.one_line_errors():
        cfg = demo(cfg) if show_demo else cfg
        mode = choose_mode(cfg)
        limit_cores(cfg["threads"])
    MODES[mode].run(cfg)


def main(words: list[str]) -> None:
    """Check the command line, then show, evaluate or export."""
    checks, shows_demo = "mode=check" in words, "demo" in words
    words = [word for word in words if word not in ("demo", "mode=check")]  # of train.py, if checks
    words = [ROBOT_FILE.sub(r"robot.mjcf=\1", word) for word in words]
    options = any(word.startswith("-") for word in words)  # such as --help
    cfg = command_line.check("config" if checks else "play", words) if options or not checks else {}
    try:
        if checks:
            check_task(words)
        else:
            play(cfg, show_demo=shows_demo)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":  # so a multirun exports its best run
    main(sys.argv[1:])
