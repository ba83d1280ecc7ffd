"""`python -m gpusim_rl.identify`."""

import sys

from gpusim_rl.identify.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
