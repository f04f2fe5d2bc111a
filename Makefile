# Every target makes .venv where it is missing and installs what it needs: any of them may be the first command
# after a clone. Another interpreter: make PYTHON=python3.12 test

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
comma := ,
# What is installed is out of date when one of these changes.
PINS := pyproject.toml constraints.txt

.PHONY: help install demo test lint type bench

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

install: .venv/installed-dev ## flodl and the tools to work on it, into .venv
	@echo "Ready: $(BIN)/flodl --help"

demo: .venv/installed ## train a small model on two unlike CPU workers and see it live; Ctrl-C stops all of it
	@$(BIN)/flodl demo $(ARGS)

test: .venv/installed-dev ## all tests; some of them only: make test ARGS='tests/flodl_core -x'
	@$(BIN)/pytest $(ARGS)

lint: .venv/installed-dev ## style, formatting, direction of the imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports

type: .venv/installed-dev ## mypy, strict, on sources and tests
	@$(BIN)/mypy

bench: .venv/installed-bench ## measurements, rivals installed: make bench ARGS='peers --rounds 5'; without ARGS a list
	@$(BIN)/flodl bench $(ARGS)

# Of what pip says, the downloads that take a while and the step that follows them; errors go to standard error.
PIP_INSTALL = $(BIN)/pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e $(1) | sed -unE \
	-e 's/^ *(Downloading .*\.whl \([0-9.]+ [MG]B\))$$/  \1/p' -e 's/^Installing collected packages:.*/  Unpacking/p'

.venv/installed: .venv/bin/pip $(PINS)
	@echo "Installing flodl and PyTorch into .venv; the first time this takes some minutes"
	@$(call PIP_INSTALL,.)
	@touch $@

.venv/installed-dev: .venv/bin/pip $(PINS)
	@echo "Installing flodl, PyTorch and the tools for tests into .venv; the first time this takes some minutes"
	@$(call PIP_INSTALL,'.[dev]')
	@touch .venv/installed $@

.venv/installed-bench: .venv/installed-dev
	@echo "Installing what flodl is compared with into .venv"
	@$(call PIP_INSTALL,'.[dev$(comma)bench]')
	@touch .venv/installed .venv/installed-dev $@

.venv/bin/pip:
	@command -v $(PYTHON) > /dev/null || { echo "flodl needs Python 3.11 or newer, and there is no $(PYTHON)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "flodl needs Python 3.11 or newer," \
		"and $(PYTHON) is $$($(PYTHON) -V). Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { echo "$(PYTHON) cannot make virtual environments;" \
		"on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv .venv
