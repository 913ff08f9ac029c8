# Each target is one command that can be typed by hand. PYTHON names another interpreter (3.11 or newer).

PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3.14 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
QUICKSTART := .ingestor/quickstart
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart test slow check docs gpu qdrant bench clean

quickstart: $(BIN)/.quickstart
	@echo "--- Shards from Python's own language reference"
	$(BIN)/python configs/quickstart_shards.py $(QUICKSTART)/shards
	@echo "--- Ingest: read, cut, embed, write to the embedded engine"
	$(BIN)/python -m ingestor --config configs/quickstart.yaml
	@echo "--- Search: how do I give up control inside a coroutine?"
	$(BIN)/python -m ingestor search --config configs/quickstart.yaml -k 3 "how do I give up control inside a coroutine?"
	@echo "--- Next: ask your own question with the command above, or ingest your own text (README.md)"

test: $(BIN)/.dev
	$(BIN)/pytest -q -n auto --maxprocesses 4 --dist worksteal -m "not gpu and not qdrant and not slow"

slow: $(BIN)/.dev
	$(BIN)/pytest -q -n auto --maxprocesses 4 --dist worksteal -m "slow and not gpu and not qdrant"

check: $(BIN)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest -q -n auto --maxprocesses 4 --dist worksteal -m "not gpu and not qdrant and not slow and not whole"

docs: $(BIN)/.dev
	$(BIN)/python docs/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gpu: $(BIN)/.dev
	$(BIN)/pytest -q -m gpu

qdrant: $(BIN)/.dev
	$(BIN)/pytest -q -m qdrant

bench: $(BIN)/.dev
	@for script in benchmarks/*.py; do echo "--- $$script" >&2; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv $(QUICKSTART) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The environment is made once, and again when what it is made from changes.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

$(BIN)/.quickstart: $(BIN)/python pyproject.toml constraints.txt
	@echo "--- Packages into .venv: about 2 GB when installed, some minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[quickstart]"
	@touch $@

$(BIN)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "--- Packages into .venv: 2 to 3 GB when installed, some minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@ $(BIN)/.quickstart
