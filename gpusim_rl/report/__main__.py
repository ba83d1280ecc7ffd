"""`python -m gpusim_rl.report`."""

import sys

from gpusim_rl.report.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
