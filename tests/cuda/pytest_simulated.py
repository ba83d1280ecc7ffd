"""The GPU tests on the simulated runtime: `pytest -p pytest_simulated -m gpu`."""

import emulate

emulate.start()
