"""`python -m gpusim_rl.bench`."""

import sys

from gpusim_rl.tools.bench.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
