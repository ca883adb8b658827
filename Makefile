# Targets of DESIGN 13.1. Everything runs in .venv, made on first use from requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test lint format bench soak lock clean

help:
	@echo "make demo   the main job, in under a minute      make test   the test suite"
	@echo "make lint   ruff, pyright, import-linter         make bench  what it costs, as ratios"
	@echo "make soak   the long versions                    make setup  install into .venv"

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed (set PYTHON=)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

demo: $(STAMP) # real agents: on PATH, else where .ci/agents puts them
	@PATH="$$PATH:$${XDG_CACHE_HOME:-$$HOME/.cache}/oubliette-tests/agents/node_modules/.bin" $(BIN)/oubliette demo $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(AGENT),--agent $(AGENT))

test: $(STAMP)
	@OUBLIETTE_REQUIRE="$(REQUIRE)" OUBLIETTE_WITHOUT="$(WITHOUT)" $(BIN)/python -m pytest -q -n 2 --dist worksteal $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@$(BIN)/python -m tests.bench

soak: $(STAMP)
	@OUBLIETTE_SOAK=1 OUBLIETTE_REQUIRE="$(REQUIRE)" $(BIN)/python -m pytest -q --timeout 3600 $(ARGS)

lock:
	@printf '# Versions that the suite was run with. Renew: make lock\n' > requirements.lock.new
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --group dev --no-annotate --no-header \
		--python-version 3.11 pyproject.toml >> requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
