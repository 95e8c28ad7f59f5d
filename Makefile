# make bench   set up, then check and time every op on every backend of this machine
# make test    set up, then run the tests, in as many processes as there are cores, eight at most (WORKERS=1: one after the other)
# make test-conditions   the tests with the tiles of every kind of CPU, with 1, 2 and 16 threads and beside a load (tests/conditions.py)
# make clean   remove what these made
#
# PYTHON=python3.12 picks the interpreter; PIP_ARGS="..." goes to pip, for example
# PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for the small CPU build of torch.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 8 ] && echo 8 || echo $$n)
# A worker that is done takes tests from the others.
SPREAD := -n $(WORKERS) --dist worksteal

.PHONY: bench test test-conditions clean

bench: $(VENV)/ready
	$(BIN)/triport bench $(ARGS)

test: $(VENV)/ready
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-conditions: $(VENV)/ready
	$(BIN)/python tests/conditions.py $(SPREAD) $(ARGS)

# Made once, and again when what it depends on changes.
$(VENV)/ready: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt setuptools
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt --no-build-isolation -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
