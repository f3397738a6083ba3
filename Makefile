# The two commands most people need: `make demo` and `make test`. Each sets up what it needs, once, in .venv.
# Plain make 3.81 (macOS) is enough.

VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo-is-installed
DEV := $(VENV)/.dev-is-installed

# How many processes run the tests; 0 runs them one after the other.
JOBS ?= 0
# More arguments, for pytest (make test ARGS="-k kalman") or the demo (make demo ARGS="--seconds 30").
ARGS ?=
TRACE ?=

.DEFAULT_GOAL := help
.PHONY: help demo test soak check conformance lint types imports schemas generate bench mutants coverage format lock upgrade clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO) ## a deployment that follows its load, on this machine; TRACE=file replays a request trace
	@$(BIN)/headrace demo $(if $(TRACE),"$(TRACE)") $(ARGS)

test: $(DEV) ## all tests; JOBS=2 runs them in two processes, ARGS="-k kalman" picks some
	@$(BIN)/pytest -n $(JOBS) $(ARGS)

soak: $(DEV) ## the long forms of the fault tests, some forty minutes; their counts are in docs/reliability.md
	@HEADRACE_SOAK=1 $(BIN)/pytest -n 0 -s tests/fault $(ARGS)
	@PYTHONPATH=tests/support $(BIN)/python tests/bench/bench_failover.py

check: lint types imports schemas ## what a change must pass besides its tests: style, types, import rules, generated files

lint: $(DEV)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "style: ok"

types: $(DEV)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary --explicit-package-bases tools tests/support tests/conftest.py tests/unit/house
	@echo "types: ok"

imports: $(DEV)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/check_pure.py
	@echo "imports: ok"

schemas: $(DEV)
	@$(BIN)/python -m headrace.schemas.generate --check
	@$(BIN)/python -m headrace.streams.cli.reference --check
	@echo "generated files: ok"

generate: $(DEV) ## write what is generated: asyncapi.yaml, JSON Schemas, tables and docs/cli.md
	@$(BIN)/python -m headrace.schemas.generate
	@$(BIN)/python -m headrace.streams.cli.reference

conformance: $(DEV) ## how many recorded cases of the reference planner are matched, file by file
	@PYTHONPATH=tests/support $(BIN)/python tests/conformance/report.py

bench: $(DEV) ## the benchmarks, with their ratios
	@for bench in $(sort $(wildcard tests/bench/bench_*.py)); do echo "== $$bench"; PYTHONPATH=tests/support $(BIN)/python "$$bench" || exit 1; done

mutants: $(DEV) ## which changed numbers of models/scaling and models/perf no test notices; an hour or two
	@tools/mutants.sh

coverage: $(DEV) ## which lines the tests run
	@$(BIN)/coverage run -m pytest $(ARGS)
	@$(BIN)/coverage report --skip-covered

format: $(DEV) ## put the code into the house style
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

lock: $(DEV) ## requirements/*.lock from pyproject.toml
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/lock.sh

upgrade: $(DEV) ## the same, with the newest versions that pyproject.toml allows
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/lock.sh --upgrade

clean: ## remove everything that make made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): requirements/build.lock requirements/demo.lock pyproject.toml tools/venv.sh
	@tools/venv.sh demo
	@touch $@

$(DEV): requirements/dev.lock pyproject.toml tools/venv.sh
	@tools/venv.sh dev
	@touch $@ $(DEMO)
