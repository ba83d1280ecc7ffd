# `make train` creates the environment, installs and trains; `make test` runs the tests. Both are all there is on a fresh machine.
# TORCH chooses the torch to install, e.g. make train TORCH=torch==2.13.0; ARGS goes to the program, e.g. make train ARGS="seed=2".
# EXTRAS are the optional parts to install, e.g. EXTRAS=dev,mjx.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch
EXTRAS ?= dev
ARGS   ?=
BIN    := $(VENV)/bin
# the environment is made anew for another TORCH or EXTRAS; a path or a range of versions is no name of a file
READY  := $(VENV)/.ready-$(shell printf %s '$(TORCH) $(EXTRAS)' | cksum | cut -d" " -f1)

.PHONY: train play test gpu-test bench check clean

train: $(READY)
	$(BIN)/python train.py task=quadruped $(ARGS)

play: $(READY)
	$(BIN)/python play.py $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

gpu-test: $(READY)
	$(BIN)/python -m pytest -m gpu $(ARGS)

bench: $(READY)
	$(BIN)/python -m gpusim_rl.bench task=quadruped $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	touch $(READY)

clean:
	rm -rf $(VENV) build *.egg-info
