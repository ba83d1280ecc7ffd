"""`python -m gpusim_rl.verify`."""

import sys

from gpusim_rl.training.verify import main

if __name__ == "__main__":
    main(sys.argv[1:])
