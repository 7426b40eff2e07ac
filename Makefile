# Everything a newcomer types. `make` alone lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo pure test test-long long-fleet long-servers long-engines check docs bench mutants lock audit clean

# The first Python that is new enough. A shim that answers for no installed version is passed over.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3.11 python3.12 python3 python; do $$name $(NEW_ENOUGH) 2>/dev/null && { echo $$name; break; }; done)
PY := .venv/bin/python
PURE := $(addprefix tests/,policy sim jobs docs test_repository.py test_setup.py)
SPREAD := $(PY) -m pytest -q -n 2 --dist worksteal
# In CI a test that failed runs a second time, alone.
STEADY := $(PY) -m tools.steady
# Two files at a time, in the order given: the longest first. Starting servers and engines is most of it, and leaves a core idle.
FILES := $(STEADY) -n 2 --dist loadfile --no-loadscope-reorder
# Files of tests/doors with a real engine or server; LOCAL runs the others.
DOORS = $(shell grep -lE 'mark\.(engine|serve)' tests/doors/test_*.py)
LOCAL := $(addprefix tests/,ledger sql connectors cli jobs_api api doors storage)

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with the engine for this machine (HARVESTER_DEVICE=cpu|cuda overrides)
	@if [ -z "$(PYTHON)" ]; then echo "setup: no Python 3.11 or newer found; install one or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 2; fi
	@$(PYTHON) tools/setup.py

demo: setup ## harvest a table beside chat traffic, on the embedded model
	@$(PY) examples/demo.py

pure: setup ## the tests that take seconds: no files, no processes, no engine
	$(SPREAD) $(PURE)

test: setup ## run every test, the fast ones first
	$(SPREAD) $(PURE) --cov --cov-report=
	$(STEADY) -n 2 --dist worksteal -m 'not engine and not serve and not long' $(LOCAL) --cov --cov-append --cov-report=
	$(SPREAD) tests/lakehouse
	$(PY) -m coverage report --include='harvester/policy/*' --fail-under=98
	$(PY) -m coverage report --include='jobs/*' --fail-under=98
	$(SPREAD) -m 'not long' tests/wheel tests/bench tests/embedded_model tests/test_steady.py
	@$(PY) tools/browser.py
	$(FILES) -m 'not long' tests/acceptance tests/serve $(DOORS) tests/engine

test-long: long-fleet long-servers long-engines ## the long forms of the checks of make test: its three parts, one after the other

long-fleet: setup ## a fleet of machines, of which some die
	$(STEADY) -m long tests/fleet

long-servers: setup ## every kill of a real server, every way to scale
	$(FILES) -m long tests/acceptance tests/serve tests/doors

long-engines: setup ## every mode of the engine, more kinds of model, the whole GPU bench on a CPU
	$(FILES) -m long tests/engine tests/bench tests/embedded_model

check: setup ## lint, format, types, the walls between layers, the links of the site
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) -m tools.site

docs: setup ## the documentation as a site, with the reference of every command, key, route and column: build/site/index.html
	$(PY) -m tools.site

bench: setup ## the short form of the job benchmark; others: .venv/bin/python -m bench --help
	@$(PY) -m bench jobs --quick

mutants: setup ## change policy and jobs line by line and see which changes no test notices (MUTANTS='jobs.states*': only those)
	nice -n 15 .venv/bin/mutmut run --max-children 2 $(if $(MUTANTS),'$(MUTANTS)')
	.venv/bin/mutmut results

lock: ## resolve requirements/*.in anew into the lock files (torch's CPU wheel comes from PIP_FIND_LINKS)
	@tools/lock.sh "$(PYTHON)"

audit: ## bills of materials of the lock files, and known vulnerabilities of what they pin
	@tools/audit.sh "$(PYTHON)"

clean: ## remove .venv, caches and build output
	rm -rf .venv .cache mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .schemathesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
