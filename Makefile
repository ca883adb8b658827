# Everything runs in .venv, made on first use from requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q --dist worksteal
# Tests start hundreds of programs: without bytecode each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Trusts and asks whom pip is set up to trust and ask.
UV := $(BIN)/python .ci/uv_as_pip.py $(BIN)/uv

comma := ,
# By module, as each worker has a cluster of its own, and each module its nodes.
ON_NODES = OUBLIETTE_TEST_NODES=3 $(BIN)/python -m pytest -q -n 2 --dist loadfile $(CLUSTER_SUITES)
CLUSTER_SUITES := $(patsubst %,tests/system/test_%.py,caller_tool_relay listening caller_presence sessions \
	children map permissions minted_keys session_limits shared_trees python_api python_endings)

WRITERS := .ci/api_signatures.py .ci/blocking_api.py .ci/tables.py

.PHONY: help setup demo test test-all test-cluster lint renew format bench soak lock clean

help:
	@echo "make demo   the main job, in under a minute      make test      the tests, in a few minutes"
	@echo "make lint   ruff, pyright, import-linter         make test-all  all that the machine can run"
	@echo "make bench  what it costs, as ratios             make soak      the long versions"
	@echo "make renew  what scripts write from the code: parts of the API, tables and pages of docs"
	@echo "make setup  install into .venv                   make test-cluster  one server's tests on three nodes"

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed (set PYTHON=)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'
	@VIRTUAL_ENV="$(abspath $(VENV))" $(UV) pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	@VIRTUAL_ENV="$(abspath $(VENV))" $(UV) pip install --quiet --no-deps --editable .
	@touch $@

demo: $(STAMP) # real agents: on PATH, else where .ci/agents puts them
	@PATH="$$PATH:$${XDG_CACHE_HOME:-$$HOME/.cache}/oubliette-tests/agents/node_modules/.bin" $(BIN)/oubliette demo $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(AGENT),--agent $(AGENT)) $(if $(KEEP),--keep) $(if $(CLUSTER),--cluster $(CLUSTER))

# Both: REQUIRE=docker,... fails where one of them is missing, WITHOUT=docker,... leaves one out.
# One worker more than cores, as tests wait for processes, engines and agents.
test: $(STAMP) # the core, which anybody can run in a few minutes (docs/testing.md)
	@OUBLIETTE_SUITE=core OUBLIETTE_REQUIRE="$(REQUIRE)" OUBLIETTE_WITHOUT="$(WITHOUT)" $(PYTEST) -n 3 -r fE $(ARGS)

test-all: $(STAMP) # the whole of it
	@OUBLIETTE_REQUIRE="$(REQUIRE)" OUBLIETTE_WITHOUT="$(WITHOUT)" $(PYTEST) -n 3 $(ARGS)
	@$(if $(or $(ARGS),$(filter postgres ray,$(subst $(comma), ,$(WITHOUT)))),:,OUBLIETTE_REQUIRE="$(REQUIRE)" $(ON_NODES))

test-cluster: $(STAMP) # suites of one server, unchanged, on three nodes; needs ray and postgres
	@OUBLIETTE_REQUIRE=postgres,ray $(ON_NODES) $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@for each in $(WRITERS); do $(BIN)/python $$each --check || exit; done

renew: $(STAMP) # what is written by a script, in this order (tests check the pages of the last two)
	@for each in $(WRITERS) .ci/python_reference.py .ci/states.py; do $(BIN)/python $$each || exit; done

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@$(BIN)/python -m tests.bench

soak: $(STAMP)
	@OUBLIETTE_SOAK=1 OUBLIETTE_REQUIRE="$(REQUIRE)" $(BIN)/python -m pytest -q --timeout 3600 -o faulthandler_timeout=0 $(ARGS)

lock:
	@printf '# Versions that the suite was run with. Renew: make lock\n' > requirements.lock.new
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --group dev --no-annotate --no-header \
		--python-version 3.11 pyproject.toml >> requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
