"""Show, evaluate or export a trained policy: `python play.py`. See `python play.py --help`."""

import sys

from gpusim_rl.commands.play import main

if __name__ == "__main__":
    main(sys.argv[1:])
