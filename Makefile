# make bench   set up, then check and time every op on every backend of this machine
# make test    set up, then run the tests, in as many processes as there are cores, eight at most (WORKERS=1: one after the other). What comes first does
#              so whatever it takes; of the later cases of tests those that begin within 20 minutes (MINUTES=60: within 60; MINUTES= : all)
# make test-conditions   the tests with the tiles of every kind of CPU, with 1, 2 and 16 threads and beside a load (tests/conditions.py)
# make demo    set up, then two ops from end to end: checked and timed, their machine code judged, profiled, and one report of it, in ./demo
# make clean   remove what these made
#
# PYTHON=python3.12 picks the interpreter; PIP_ARGS="..." goes to pip, for example
# PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for the small CPU build of torch.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
MINUTES ?= 20
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 8 ] && echo 8 || echo $$n)
# A worker that is done takes tests from the others.
SPREAD := -n $(WORKERS) --dist worksteal

.PHONY: bench demo test test-conditions clean

bench: $(VENV)/ready
	$(BIN)/triport bench $(ARGS)

demo: $(VENV)/ready
	mkdir -p demo
	$(BIN)/triport bench --op softmax --op gelu --case 128x128 --case 512x512 --case 1823x781 --reps 5 --json demo/results.json --artefacts demo/code
	$(BIN)/triport asm softmax --case 1823x781 --require "vector>=0.9, spills=0"
	$(BIN)/triport profile softmax --case 1823x781 --against torch -o demo/profile
	$(BIN)/triport report demo/results.json -o demo/report.html
	@echo "look at demo/report.html (figures; a point leads to its machine code and profile) and demo/profile/index.html"

test: $(VENV)/ready
	TRIPORT_MINUTES=$(MINUTES) $(BIN)/python -m pytest $(SPREAD) $(ARGS)

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
	rm -rf $(VENV) build demo *.egg-info
