# `make train` creates the environment, installs and trains. `make demo` shows a trained policy.
# `make web` shows policies in a browser. `make test` also installs what the tests need.
# ARGS goes to the program, for example make train ARGS="task=drone seed=2".
# CPU=1 installs torch without CUDA, which is a third of the size.
# TORCH is the torch to install, for example make train TORCH=torch==2.13.0.
# EXTRAS are optional parts to install, for example EXTRAS=mjx,robots.
# WITH is the commit that `make same` compares with, SINCE the one of `make test-changed`.
# CUDA_VENV is the environment of `make cuda-test`, which has torch's CUDA build.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch
CPU    ?=
EXTRAS ?=
ARGS   ?=
CUDA_VENV ?= .venv-cuda
WITH   ?=
SINCE  ?= HEAD
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# the tests that need no more than this machine
HERE   := not gpu and not simulated and not matrix
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# the name of a comma in arguments of functions
, := ,
checksum = $(shell printf %s '$(1)' | cksum | cut -d" " -f1)
# A torch that is there will do, unless TORCH or CPU asks for another one.
CHOSEN := $(strip $(filter-out torch,$(TORCH)) $(CPU:%=cpu))
TORCH_READY := $(VENV)/.torch$(if $(CHOSEN),-$(call checksum,$(CHOSEN)))
CPU_INDEX := --index-url https://download.pytorch.org/whl/cpu
# One file for each set of parts that this checkout has installed. Another checkout with the same
# VENV has files of other names, and removes these: so each installs itself again.
INSTALLED := $(VENV)/.installed-$(call checksum,$(CURDIR))
parts = $(INSTALLED).$(1)$(EXTRAS:%=,%)
READY  := $(call parts,base)
# the last other checkout that has installed itself here, if there is one
OTHER   = $(lastword $(shell cat $(filter-out $(INSTALLED).%,$(wildcard $(VENV)/.installed-*)) \
          /dev/null))
TASK   := $(if $(filter task=%,$(ARGS)),,task=quadruped)

.PHONY: train demo web play test test-fast test-changed test-all test-slow same matrix-test gpu-test gpu-check cuda-test bench gallery docs dist check clean

train: $(READY)
	$(BIN)/python train.py $(TASK) $(ARGS)

# a policy that comes with the package, in a window or, without a display, as demo.mp4
demo: $(READY)
	$(BIN)/python play.py demo $(ARGS)

# the newest run in a browser; the trained policy of the package: make web ARGS=demo
web: $(call parts,web)
	$(BIN)/python play.py mode=web $(ARGS)

play: $(READY)
	$(BIN)/python play.py $(ARGS)

# all tests but the slow ones
test: $(call parts,dev)
	$(PYTEST) $(ARGS)

# the fast tests of every room
test-fast: $(call parts,dev)
	$(PYTEST) -p tests.fast --fast $(ARGS)

# the tests that reach what is not committed, nearest first; SINCE=main takes a branch's commits
test-changed: $(call parts,dev)
	$(PYTEST) -p tests.changed --since=$(SINCE) -m '$(HERE)' $(ARGS)

test-all: $(call parts,dev)
	$(PYTEST) -m '$(HERE)' $(ARGS)

# what `make test` leaves out of them
test-slow: $(call parts,dev)
	$(PYTEST) -m 'slow and $(HERE)' $(ARGS)

# are the numbers of short trainings those of another commit, bit for bit? make same WITH=HEAD~1
same: $(call parts,dev)
	$(BIN)/python -m benchmarks.same '$(WITH)' $(ARGS)

# every task on MuJoCo C and on MuJoCo Warp: contract, five iterations, the same bits again
matrix-test: $(call parts,dev)
	$(PYTEST) -m matrix $(ARGS)

gpu-test: $(call parts,dev)
	$(BIN)/python -m pytest -m gpu $(ARGS)

# the first check of a new GPU, some 12 minutes; a failed step stops none after it
gpu-check: $(call parts,dev)
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

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
	$(BIN)/python -m benchmarks.levels task=quadruped $(ARGS)

# the pages are written to site/; nothing in them loads from the network
docs: $(call parts,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

# the package for other environments: its source, and the wheel that is built from that
dist: $(VENV)/.build
	$(BIN)/python -m build --outdir dist $(ARGS)

# nothing of the package itself: it is built in an environment of its own
$(VENV)/.build: | $(BIN)/pip
	$(PIP) install 'build>=1.2,<2'
	@touch $@

check: $(call parts,dev)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# pip comes last: an environment without it is made again
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)

$(TORCH_READY): | $(BIN)/pip
	@if [ -n "$(CPU)" ] && [ -d $(VENV)/lib/python3.*/site-packages/nvidia ]; then \
	  echo "error: $(VENV) has torch for CUDA: remove it with make clean, or say VENV=…" >&2; exit 2; fi
	$(PIP) install $(if $(CPU),$(CPU_INDEX)) '$(TORCH)'
	@rm -f $(VENV)/.torch* && touch $(VENV)/.torch $@

$(INSTALLED).%: pyproject.toml $(TORCH_READY)
	@$(if $(OTHER),echo "$(VENV) had the checkout $(OTHER); it gets $(CURDIR)")
	$(PIP) install -e '.$(if $(filter-out base,$*),[$(patsubst base$(,)%,%,$*)])'
	@rm -f $(filter-out $(INSTALLED).%,$(wildcard $(VENV)/.installed-*))
	@for file in $@ $(READY); do echo '$(CURDIR)' > $$file; done

clean:
	rm -rf $(VENV) $(CUDA_VENV) build dist site *.egg-info
