# Two commands for users: `make demo` and `make test`. Both set up .venv when it is missing or old.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint bench bench-gpu soak clean

demo: $(READY)
	$(BIN)/suite run demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=2 --dist=loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/pytest -m benchmark -s

bench-gpu: $(READY)
	$(BIN)/pytest -m gpu -s

soak: $(READY)
	$(BIN)/pytest -m slow --override-ini timeout=3600

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf .venv build dist
