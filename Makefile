# make demo: see a small mixture of experts learn, on a machine that has only Python, make and a package index.
# make test: ruff, mypy, pytest. Both set up .venv themselves, and again only when the dependencies changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.trnt-ready
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

.PHONY: demo test lint install clean

install: $(READY)

$(READY): pyproject.toml requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("trnt needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(READY)
	@bash examples/demo.sh $(BIN)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

clean:
	rm -rf $(VENV) build *.egg-info
