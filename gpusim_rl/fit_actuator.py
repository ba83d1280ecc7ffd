"""`python -m gpusim_rl.fit_actuator`."""

import sys

from gpusim_rl.identify.fit_actuator import main

if __name__ == "__main__":
    main(sys.argv[1:])
