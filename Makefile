# Everything a person or CI does with this repository. `make` alone lists the targets.

PYTHON ?= python3
SERVE  ?= 1

BIN   := .venv/bin
STAMP := .venv/.made-from-the-lock
LOCK  := requirements.lock
# The tests of running services that `make check` has: fetches to answers, with links and without, leases, forgetting.
SERVICE_TESTS := $(addprefix tests/integration/,query/test_exact.py replica/test_forgetting.py frontier/test_frontier.py client/test_readme_crawler.py)
CHECKED := tests/unit tests/properties $(wildcard tests/test_*.py) $(SERVICE_TESTS)
ifdef AREA
CHECKED := $(wildcard tests/unit/$(AREA) tests/properties/$(AREA))
$(if $(CHECKED),,$(error AREA=$(AREA): there is no folder tests/unit/$(AREA) or tests/properties/$(AREA)))
endif

# uv's cache and the repository are often on different file systems, where hard links fail.
export UV_LINK_MODE ?= copy
# A shell that stands in another virtual environment must not send our packages there.
unexport VIRTUAL_ENV
unexport PYTHONPATH
unexport PYTHONHOME
# Nor may it forbid Python to keep what it compiled: the tests start hundreds of processes, each would compile it all.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test thorough lint check chaos soak bench reproduce picture lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv/ from the lock file, with .venv/bin/opic in it

demo: setup ## rank the crawl that ships here and serve it (SERVE=0: print and stop)
	$(BIN)/python examples/demo.py $(if $(filter 0 no false,$(SERVE)),--no-serve)

test: setup ## every test this machine can run, four files at a time; a seventh of the cases of tests with many, and no long case much like another
	@# Four on two cores, since many tests wait for servers. In the order of their names: the long ones first, so that
	@# none of the four ends much later than the others.
	$(BIN)/python -m pytest tests --numprocesses 4 --dist loadfile --no-loadscope-reorder

thorough: export THOROUGH_TESTS := 1
thorough: test ## the same with all cases

lint: setup ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/support/code_style.py
	$(BIN)/mypy

check: lint ## in under two minutes: style, types, unit and property tests, and some with a running service (AREA: one folder of opic/)
	$(BIN)/python -m pytest $(CHECKED) -m "not slow" --hypothesis-profile quick --numprocesses 2 --dist worksteal

chaos: setup ## break running crawls for MINUTES (1), with SEED, in WORLD, ONLY by actions; figures to RESULT
	$(BIN)/python tests/chaos/storm.py --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED)) $(if $(WORLD),--world $(WORLD)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(RESULT),--result $(RESULT))

soak: setup ## a steady mixed load for MINUTES (120), and what grows under it; figures to RESULT
	$(BIN)/python tests/chaos/soak.py --minutes $(or $(MINUTES),120) $(if $(SEED),--seed $(SEED)) $(if $(RESULT),--result $(RESULT))

bench: setup ## every benchmark, small; results as JSON in benchmarks/results/small/
	@mkdir -p benchmarks/results/small
	@failed=; for file in benchmarks/bench_*.py; do \
	  name=$${file#*/bench_}; name=$${name%.py}; printf '\n== %s\n' "$$file"; \
	  case $$name in endpoint) small=--quick ;; windows) small="--pages 2000 --seeds 2" ;; *) small= ;; esac; \
	  $(BIN)/python "$$file" $$small --result "benchmarks/results/small/$$name.json" || failed="$$failed $$file"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

reproduce: setup ## repeat an experiment of a paper: NAME=fig2, DATA=recorded graphs (OUT: results here; RUNS: with errors; QUICK=1: small)
	$(BIN)/python -m experiments $(or $(NAME),--list) $(if $(DATA),--data $(DATA)) $(if $(OUT),--out $(OUT)) $(if $(RUNS),--runs $(RUNS)) \
	  $(if $(QUICK),--quick)

picture: setup ## draw the console's pictures in docs/ anew (wants Chromium)
	$(BIN)/python tests/browser/picture.py

lock: $(BIN)/uv ## renew the locks from pyproject.toml (UPGRADE=1: move to the newest releases)
	@# The build backend is locked too, so that installing the project itself fetches nothing; `editables` is
	@# what hatchling needs for an editable install, and uv is what makes the environment.
	$(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], "editables", "uv", sep="\n")' \
	| $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" \
	    $(if $(UPGRADE),--upgrade) --extra all --group dev --group demo --output-file $(LOCK) pyproject.toml - > /dev/null
	@# The image gets what the service and the estimator run, in the same versions.
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" \
	    --constraint $(LOCK) --extra kafka --extra graph --extra urlfrontier --extra otel --output-file deploy/$(LOCK) pyproject.toml > /dev/null
	@# What builds the image's wheel, in a stage of its own.
	$(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	| $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" \
	    --constraint $(LOCK) --output-file deploy/wheel.lock - > /dev/null

clean: ## remove all that can be made again
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist demo-out
	find opic consumers tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2> /dev/null || true

# uv installs the lock several times faster than pip does, its own download included. Where uv can't (a mirror that
# only pip is told of), pip installs the same files with the same hashes.
$(STAMP): $(LOCK) pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes $(LOCK) \
	  || $(BIN)/python -m pip install --quiet --require-hashes -r $(LOCK)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1 || true), and opic needs Python 3.11 or newer: install one," \
	       "then run: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
	  echo "$(PYTHON) has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)," \
	       "then run again: make $(or $(MAKECMDGOALS),setup)"; exit 1; } >&2
	$(PYTHON) -m venv --clear .venv
	@# uv's own lines, cut out of the lock: the same version with the same hashes as everybody else's.
	@awk '/^uv==/ { on = 1 } on { print } on && !/\\$$/ { exit }' $(LOCK) > .venv/uv.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.lock
