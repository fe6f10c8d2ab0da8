# The front door. `make help` lists the targets. Needs only Python >= 3.11 and make; all else goes into $(VENV).
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := spark,dev
COMMA := ,
IS_USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(IS_USABLE)' 2>/dev/null && { command -v $$p; break; }; done)
# Of tests that only compute, two run at a time on two cores: a third would cost the others a third of their speed.
PYTEST := $(BIN)/python -m pytest
# Hundreds of brokers start: none should compile everything anew, whatever the surroundings say.
export PYTHONDONTWRITEBYTECODE :=

# Installs raftlog with extras, $(1), as in [spark,dev]. Shows each package, because pip needs minutes for all of them.
define install
	@set -o pipefail; if command -v uv > /dev/null; then \
		echo "installing raftlog$(1) and the packages that it needs into $(VENV) with uv ($(2)) ..."; \
		uv pip install --python $(BIN)/python --editable ".$(1)"; \
	else \
		echo "installing raftlog$(1) and the packages that it needs into $(VENV) with pip ($(3); install uv to make it faster) ..."; \
		$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --editable ".$(1)" \
			| awk '/^(Collecting|Building|Installing|Successfully)/ { print substr($$0, 1, 120); fflush() }'; \
	fi
endef

.PHONY: help demo quick test console-test check audit seeds tools nightly mutation chaos bench bench-check bench-peers profile figures kafka-peers kafka-differential kafka-fuzz handshake-fuzz pipelines docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.core ## the main job, end to end: produce, kill -9, restart, read back, compare
	$(BIN)/raftlog demo $(ARGS)

quick: $(VENV)/.dev ## style, types, layers, and the unit tests of what changed since main (below a minute)
	$(BIN)/python -m tests.quick $(ARGS)

test: $(VENV)/.dev ## make check, and every test that takes minutes at most; PKG=storage: one package's tests (8 minutes)
	$(if $(PKG),$(PYTEST) -n 3 tests/$(PKG) $(ARGS),$(BIN)/python -m tests.suite $(ARGS))

console-test: $(VENV)/.dev ## the console in a real Chromium, and its vendored files against npm (about a minute)
	@{ command -v chromium || command -v chromium-browser; } > /dev/null && command -v npm > /dev/null || \
		{ echo "Install a browser and npm first (Debian: apt-get install chromium npm)" >&2; exit 1; }
	$(call install,[$(EXTRAS)$(COMMA)browser],a minute,5 minutes)
	$(BIN)/python -m tests.cli.console.npm
	$(PYTEST) -m browser tests/cli/console/test_browser.py $(ARGS)

check: $(VENV)/.dev ## ruff, mypy, import-linter, the tidy tests and the addresses of the guards
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q -n 2 tests/tidy tests/mutation/test_guards.py

audit: $(VENV)/.dev ## compare the installed distributions with published advisories; ARGS=--strict fails without a network
	$(BIN)/python -m tests.audit $(ARGS)

seeds: $(VENV)/.dev ## randomised tests with more examples, from the seed of this commit (10 minutes)
	HYPOTHESIS_PROFILE=ci $(PYTEST) -n 2 --timeout=1200 -o faulthandler_timeout=2000 -m "(hypothesis or seeds) and not nightly" $(ARGS)

tools: $(VENV)/.dev ## the tests of the test tools, which make test runs if these have changed; and record that they passed
	$(PYTEST) -n 3 --only-tools $(ARGS)
	$(BIN)/python -m tests.kinds

# All parts run, also after one that failed: each finds other things.
nightly: $(VENV)/.dev ## all that make test leaves out, an hour of chaos, and fresh random examples (3 hours)
	$(call install,[$(EXTRAS)$(COMMA)nightly],a minute,5 minutes)
	@failed=; \
	$(PYTEST) -n 3 --only-tools && $(BIN)/python -m tests.kinds || failed="$$failed tools"; \
	$(BIN)/python -m tests.audit || failed="$$failed audit"; \
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -n 2 --timeout=0 -o faulthandler_timeout=0 \
		-m "hypothesis or seeds or nightly" $(ARGS) || failed="$$failed tests"; \
	$(BIN)/raftlog chaos campaign --time 3600 --jobs 2 || [ $$? = 3 ] || failed="$$failed chaos"; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; } # 3: no anomaly, but runs without a verdict

chaos: $(VENV)/.core ## an hour of faults of all kinds on real clusters, and a table of what came (best as root)
	$(BIN)/raftlog chaos campaign --time 3600 --jobs 2 $(ARGS)

mutation: $(VENV)/.dev ## take each guard out of the code in turn: the tests have to notice (about 16 minutes)
	$(BIN)/python -m tests.mutation.run $(ARGS)

bench: $(VENV)/.dev ## throughput and latency beside the floor of this machine
	$(BIN)/raftlog bench all $(ARGS)
	$(BIN)/raftlog bench imports

bench-check: $(VENV)/.dev ## the ratios to the floor beside those of the commit in tests/bench.json, or ARGS="--against REV" (2 minutes)
	$(BIN)/python -m tests.bench_check $(ARGS)

bench-peers: $(VENV)/.dev ## raftlog beside Kafka, which it installs, by turns; ARGS=--write puts the table on the page (15 minutes)
	$(BIN)/python -m tests.kafka_peers.install kafka
	$(BIN)/python -m tests.kafka_peers.benchmark $(ARGS)

profile: $(VENV)/.dev ## where the time of a producer and of its broker goes, by py-spy (a minute)
	$(call install,[$(EXTRAS)$(COMMA)profile],a minute,5 minutes)
	$(BIN)/python -m tests.profile $(ARGS)

figures: $(VENV)/.dev ## lines, files, and the modules that a record passes; ARGS="--against REV" (a minute)
	$(BIN)/python -m tests.figures $(ARGS)

kafka-peers: $(VENV)/.dev ## Kafka's clients and tools, which it installs, with raftlog's clients (25 minutes)
	$(BIN)/python -m tests.kafka_peers.install
	$(PYTEST) -m peers tests/kafka_peers $(ARGS)

kafka-differential: $(VENV)/.dev ## the same requests to Kafka itself and to raftlog: the responses agree (2 minutes)
	$(BIN)/python -m tests.kafka_peers.install kafka
	$(PYTEST) -m peers tests/kafka_peers/test_differential.py $(ARGS)

kafka-fuzz: $(VENV)/.dev ## damaged Kafka requests for the decoder and for brokers; ARGS="--seconds 600 --seed 2" (2 minutes)
	$(BIN)/python -m tests.kafka.fuzz $(ARGS)

handshake-fuzz: $(VENV)/.dev ## a million damaged handshakes; ARGS="--inputs 10000 --seed 2" (a minute)
	$(BIN)/python -m tests.security.fuzz $(ARGS)

pipelines: $(VENV)/.dev ## the examples of docs/how-to/coming-from.md, with their output compared (10 minutes)
	$(call install,[$(EXTRAS)$(COMMA)pipelines],a minute,5 minutes)
	$(BIN)/python -m tests.pipelines.run $(ARGS)

docs: $(VENV)/.dev ## regenerate the reference pages, build the manual into docs/_build/html
	$(BIN)/python docs/generate.py
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@if test -n "$(PYTHON)"; then \
		echo "creating $(VENV) with $(PYTHON) ..."; $(PYTHON) -m venv --clear $(VENV); \
	elif command -v uv > /dev/null; then \
		uv venv --seed --allow-existing --python '>=3.11' $(VENV); \
	else \
		echo "raftlog: no Python >= 3.11 with venv and ensurepip found." \
			"Install one (Debian: apt install python3-venv), or uv, or run: make PYTHON=/path/to/python3 ..." >&2; exit 1; \
	fi

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(call install,,10 s,about 90 s)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(call install,[$(EXTRAS)],a minute,5 minutes)
	@touch $@ $(VENV)/.core
