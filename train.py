"""Train a policy: `python train.py task=quadruped`. See `python train.py --help`."""

import sys

from gpusim_rl.commands.train import main

if __name__ == "__main__":
    main(sys.argv[1:])
