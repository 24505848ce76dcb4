# `make demo` and `make test` do all the set-up from a fresh clone; the virtual environment is made once and remembered.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TEXT ?= Hello there, this is megatalker speaking.
OUT ?= hello.wav

# The build of torch: auto (by what the machine has), cpu or cuda; constraints/choose.py says which and what it takes.
TORCH ?= auto
CPU_WHEELS ?= https://download.pytorch.org/whl/cpu/torch/

# Runs of the conformance suite, each in one process, the longest first; all that `compiled` is judged by is compiled once.
SUITES := suite-others suite-interpreted suite-intelligibility suite-compiled

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL := $(PIP_INSTALL) --constraint $(VENV)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint types checks unit conformance $(SUITES) soak ray-test ray-tests resolve package docs coverage rehearsal pictures bench clean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

$(VENV)/pip.stamp: constraints/base.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "megatalker needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --constraint constraints/base.txt --upgrade pip
	@touch $@

# Run each time, written once: a TORCH that contradicts the environment must not pass unseen.
$(VENV)/constraints.txt: FORCE | $(VENV)/pip.stamp
	@$(BIN)/python constraints/choose.py --torch '$(TORCH)' --cpu-wheels '$(CPU_WHEELS)' $@

$(VENV)/run.stamp: pyproject.toml $(wildcard constraints/*.txt) $(VENV)/constraints.txt
	$(INSTALL) --editable '.[official]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(INSTALL) --editable '.[dev]'
	@touch $@

demo: $(VENV)/run.stamp ## speak TEXT with the built-in checkpoint into OUT
	$(BIN)/megatalker say --out $(OUT) -- "$(TEXT)"

test: checks unit ## everything CI checks

test-fast: $(VENV)/dev.stamp ## unit tests that take no time, for the inner loop
	$(BIN)/$(UNIT_TESTS) -m "not slow"

lint: $(VENV)/dev.stamp ## ruff, formatting included; plain words; lines within their budget
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python release/wording.py
	$(BIN)/python release/budget.py

types: $(VENV)/dev.stamp ## mypy, strict
	$(BIN)/mypy

# One process a core, each on one thread: small models on several threads mostly wait for each other.
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
SIDE_BY_SIDE := $(MAKE) --no-print-directory --jobs $(JOBS) $(if $(filter output-sync,$(.FEATURES)),--output-sync)

checks:
	$(SIDE_BY_SIDE) lint types $(SUITES) resolve

# Hundreds of processes start in the tests: none compiles sources that another has compiled, whatever the machine sets.
unexport PYTHONDONTWRITEBYTECODE
# Some unit tests wait, for a deadline or for a process: one more takes their place meanwhile. A file goes to one
# process, in the order of tests/conftest.py: what a file sets up is set up once, and the longest files begin first.
# A test that hangs ends its process; xdist would give it to the next one, which would hang for as long.
UNIT_TESTS := pytest --numprocesses $$(($(JOBS) + 1)) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
test-fast unit $(SUITES) soak ray-test coverage: export OMP_NUM_THREADS := 1
# What Inductor compiles is kept beside the kernels that NVRTC and g++ compiled.
test-fast unit $(SUITES) coverage: export TORCHINDUCTOR_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/megatalker/inductor

# What a busy machine made fail is run once more, and named as RERUN at the end: it is to be mended all the same.
unit: $(VENV)/dev.stamp ## unit and integration tests
	$(BIN)/$(UNIT_TESTS) --reruns 1 -rfER

# Fewer positions than a GPU's 4096: the specification takes time by their square.
INTERPRETED := MEGATALKER_BACKENDS__MEGAKERNEL__INTERPRET=true MEGATALKER_BACKENDS__MEGAKERNEL__MAX_POSITIONS=1100

conformance: ## the suite every backend must pass, over all installed backends
	$(SIDE_BY_SIDE) $(SUITES)

$(SUITES): $(VENV)/dev.stamp
SUITE := $(BIN)/pytest conformance_tests --backend

suite-others:
	$(SUITE) all --codec all -k "not compiled"

suite-interpreted:
	$(INTERPRETED) $(SUITE) megakernel --dtype bfloat16

suite-intelligibility:
	$(SUITE) compiled --codec streaming --checkpoint demo -k intelligibility

suite-compiled:
	$(SUITE) compiled

# Ray is 300 MB, and its cluster takes half a minute to start: an environment of its own, and no part of `make test`.
RAY_VENV ?= $(VENV)-ray

$(VENV)/ray.stamp: $(VENV)/run.stamp
	$(INSTALL) --editable '.[dev,ray]'
	@touch $@

ray-test: ## replicas on Ray Serve, one of which is killed; makes an environment of its own
	$(MAKE) --no-print-directory VENV=$(RAY_VENV) ray-tests

ray-tests: $(VENV)/ray.stamp
	$(BIN)/pytest tests/serving/test_ray.py

resolve: $(VENV)/dev.stamp ## both sets of constraints, on the public index alone, on every Python: a dry run
	$(BIN)/python constraints/resolve.py

# What is published must work without this repository; an environment of its own, made anew each time.
PACKAGE_VENV ?= $(VENV)-package

package: $(VENV)/dev.stamp ## the distributions of the rehearsal: check them, install into an empty environment and speak there
	rm -rf $(PACKAGE_VENV)
	$(BIN)/python release/rehearse.py --keep dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(PACKAGE_VENV)
	$(PACKAGE_VENV)/bin/python -m pip install --quiet --constraint $(VENV)/constraints.txt "$$(echo dist/*.whl)[client,server]"
	cd $(PACKAGE_VENV) && bin/python $(CURDIR)/tests/helpers/installed.py

soak: $(VENV)/dev.stamp ## 50 streams at a time and 20 rude callers of a server, for minutes: nothing stays occupied
	$(BIN)/megatalker bench soak
	$(BIN)/megatalker bench callers

docs: $(VENV)/dev.stamp ## the site, in .site; links and settings are checked
	$(BIN)/python website/settings_page.py
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --quiet --config-file website/mkdocs.yml

# One test fills a disk by a limit of the process, which coverage's own file would not survive.
coverage: $(VENV)/dev.stamp ## lines and branches that unit tests reach; half an hour of processor time
	$(BIN)/coverage erase
	$(BIN)/coverage run -m $(UNIT_TESTS) \
		--deselect tests/cli/test_destination.py::test_a_disk_that_fills_keeps_what_fitted
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

rehearsal: $(VENV)/dev.stamp ## build and check what a release would publish; TAG=v0.2.0 checks version and changelog
	$(BIN)/python release/rehearse.py --tag '$(TAG)'

pictures: $(VENV)/dev.stamp ## of the server's page, for docs/server.md
	PYTHONPATH=tests/helpers $(BIN)/python tests/helpers/page_pictures.py docs

bench: $(VENV)/dev.stamp ## measure this machine
	$(BIN)/megatalker bench --compare reference,compiled --out bench

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(RAY_VENV) $(PACKAGE_VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .site .coverage*
