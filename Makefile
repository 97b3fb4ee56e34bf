# make demo   the whole head on a simulated cluster, in a virtual environment of its own
# make test   every test; as root it also installs the services that the tests need
# make model  a risk model from the simulator, into dist/model
# The rest: check, format, bench, wheel, clean.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?=
TESTS ?= tests
# Most tests wait for processes, so more of them than cores may run side by side.
JOBS ?= 3

.PHONY: demo test check format bench model wheel clean services

demo: $(VENV)/.demo
	@$(BIN)/tocsin demo $(DEMO)

test: $(VENV)/.dev services
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(TESTS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/tocsin bench

# A risk model from the simulator, by the committed recipe; takes ten minutes of one core.
model: $(VENV)/.demo
	$(BIN)/python -m models.recipe dist/model

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --outdir dist .

services:
	@tests/testbed/install-services

# Each stamp says that the virtual environment holds what that target needs.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[head]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[head,dev]'
	@touch $@ $(VENV)/.demo

$(BIN)/python:
	@tests/testbed/make-venv $(PYTHON) $(VENV)

clean:
	rm -rf $(VENV) dist build *.egg-info
