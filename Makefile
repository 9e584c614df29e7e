# posttrain's everyday commands. They work from a fresh clone and need python3 >= 3.11.
#   make demo    set up .venv, then warm start, GRPO and evaluation on a toy model
#   make test    set up .venv, then the fast tests         make test-all  the slow ones too
#   make docs    write docs/algorithms from docstrings, options, notes and measured curves
#   make lint    ruff, mypy and the import contracts       make clean     remove .venv and what tools left behind
#   make bench TRL_PYTHON=...        measure beside TRL and write bench/RESULTS.md (about half an hour, 1 thread)
#   make bench-smoke TRL_PYTHON=...  fail if a ratio has fallen; TRL_PYTHON is a Python that has trl (docs/performance.md)
# Choose the interpreter with PYTHON=..., pass options to pytest with PYTEST_ARGS="...".

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
TORCH := $(shell grep '^torch==' requirements.lock)
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1
TRL_PYTHON := python-with-trl
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

.PHONY: demo test test-all docs lint setup clean

demo: $(READY)
	$(BIN)/posttrain demo

test: $(READY_DEV)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: $(READY_DEV)
	$(BIN)/python -m pytest -m "" $(PYTEST_ARGS)

docs: $(READY_DEV)
	$(BIN)/posttrain explain --write docs/algorithms

lint: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

setup: $(READY_DEV)

bench: $(READY_DEV)
	$(ONE_THREAD) $(BIN)/python -m bench.vs_trl --trl-python "$(TRL_PYTHON)" --defaults grpo-1m-32-64 --write
	$(ONE_THREAD) $(BIN)/python -m bench.growth --write

bench-smoke: $(READY_DEV)
	$(ONE_THREAD) $(BIN)/python -m bench.smoke --trl-python "$(TRL_PYTHON)"

$(READY): requirements.lock pyproject.toml
	@python=""; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if command -v $$candidate >/dev/null && $$candidate -c '$(NEW_ENOUGH)' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "posttrain needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	if ! $(PIP) --version >/dev/null 2>&1; then \
	  echo "== new environment in $(VENV): $$($$python --version)"; \
	  $$python -m venv --clear $(VENV) || \
	    { echo "this Python cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@echo "== installing $(TORCH)"
	@$(PIP) install --quiet "$(TORCH)"
	@echo "== installing the $$(grep -c '^[^#]*==' requirements.lock) packages of requirements.lock, and posttrain"
	@$(PIP) install --quiet -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(READY_DEV): $(READY) requirements-dev.lock
	@echo "== installing the $$(grep -c '^[^#]*==' requirements-dev.lock) packages of requirements-dev.lock"
	@$(PIP) install --quiet -r requirements-dev.lock
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
