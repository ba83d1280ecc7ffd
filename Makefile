# `make train` creates the environment, installs and trains. `make test` runs the tests.
# TORCH is the torch to install, for example make train TORCH=torch==2.13.0.
# ARGS goes to the program, for example make train ARGS="seed=2".
# EXTRAS are the optional parts to install, for example EXTRAS=dev,mjx.
# CUDA_VENV is the environment of `make cuda-test`, which has torch's CUDA build.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch
EXTRAS ?= dev
ARGS   ?=
CUDA_VENV ?= .venv-cuda
BIN    := $(VENV)/bin
# Another TORCH or EXTRAS makes the environment anew. A checksum, as a path is no file name.
READY  := $(VENV)/.ready-$(shell printf %s '$(TORCH) $(EXTRAS)' | cksum | cut -d" " -f1)

.PHONY: train play test matrix-test gpu-test gpu-check cuda-test bench gallery docs wheel check clean

train: $(READY)
	$(BIN)/python train.py task=quadruped $(ARGS)

play: $(READY)
	$(BIN)/python play.py $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# every task on MuJoCo C and on MuJoCo Warp: contract, five iterations, the same bits again
matrix-test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m matrix $(ARGS)

gpu-test: $(READY)
	$(BIN)/python -m pytest -m gpu $(ARGS)

# the first check of a new GPU, at most 17 minutes; a failed step stops none after it
gpu-check: $(READY)
	$(BIN)/python -m tests.acceptance.gpu_check $(ARGS)

# training on torch's CUDA build and a simulated CUDA runtime: no GPU is needed, but g++ and 6 GB
cuda-test: $(CUDA_VENV)/simulated/libcudart_simulated.so
	CUDA_VENV=$(CUDA_VENV) $(CUDA_VENV)/bin/python -m pytest -n 2 -m simulated tests/cuda $(ARGS)

$(CUDA_VENV)/simulated/libcudart_simulated.so: pyproject.toml tests/cuda/setup.sh tests/cuda/cudart.cpp tests/cuda/driver.c
	PYTHON=$(PYTHON) bash tests/cuda/setup.sh $(CUDA_VENV)

# a short film of each run: make gallery ARGS="runs/drone/… runs/reach/…"
gallery: $(READY)
	for run in $(ARGS); do $(BIN)/python play.py run=$$run seconds=6 \
	  video=docs/gallery/$$(basename $$(dirname $$run)).gif || exit 1; done

bench: $(READY)
	$(BIN)/python -m gpusim_rl.bench task=quadruped $(ARGS)

# the pages are written to site/; nothing in them loads from the network
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

# the package for other environments; setuptools would put old files of build/ into it
wheel: $(READY)
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

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
	rm -rf $(VENV) $(CUDA_VENV) build dist site *.egg-info
