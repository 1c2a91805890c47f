# Everything starts here: `make demo` shows the product, `make test` checks it. Each sets up what it needs.
PYTHON ?= python3.11
BIN := .venv/bin
# What the demo of a source needs besides the plain one: `make demo SOURCE=mysql`.
DEMO_NEEDS_mysql := --mariadb
DEMO_NEEDS_kafka := --mariadb --jars kafka --jars connect
DEMO_NEEDS_files := --mariadb
# The Kinesis server is one of the packages for development.
DEMO_NEEDS_kinesis := --mariadb --lock requirements-dev.txt
SET_UP := $(PYTHON) -m cdc_pipeline.launcher.set_up $(if $(JARS),--jars $(JARS))
# Tests make and delete files by the hundred thousand: in memory, where there are 8 GB for it.
IN_MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 8000000 2>/dev/null && echo TMPDIR=/dev/shm)
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11

.PHONY: setup setup-dev setup-bench packages demo down docs test test-fast nightly kafka chaos explore fuzz fuzz-lines fuzz-shapes bank bench bench-quick lint lock audit clean python compose
.DEFAULT_GOAL := setup

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
		{ echo "set-up: there is no working $(PYTHON) on PATH; run \`apt-get install python3.11-venv\`, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }

setup: python
	@$(SET_UP)

setup-dev: python
	@$(SET_UP) --lock requirements-dev.txt --jars postgres --jars mysql --jars s3

demo: python
	@$(SET_UP) $(DEMO_NEEDS_$(SOURCE))
	@$(BIN)/cdc demo $(if $(SOURCE),--source $(SOURCE))

down:
	@for config in $(wildcard .cdc/demo*/pipeline.yml); do env -u CDC_HOME $(BIN)/cdc down --config $$config || exit; done

packages: python
	@$(SET_UP) --lock requirements-dev.txt --no-jars

lint: packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Unit and property tests that need no server, in at most 90 seconds on two idle cores.
test-fast: packages
	$(IN_MEMORY) $(BIN)/pytest -q -n 2 -m "not slow and not postgres and not spark and not s3 and not kafka" tests/unit tests/property

# Writes the pages that are made from the code, and builds docs/ as a site in .cdc/site.
docs: packages
	$(BIN)/python -m tests.support.reference_pages
	$(BIN)/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml

# The check of the code needs no jars: it runs while they are fetched.
test:
	@$(MAKE) --no-print-directory --jobs 2 setup-dev lint
	$(IN_MEMORY) $(BIN)/pytest -n 4 --dist loadgroup -m "not bank and not bench and not kafka and not stack and (chaos_cut or not chaos) and (by_merge or not nightly)" $(TESTS)
	$(IN_MEMORY) $(BIN)/pytest -n 2 --dist loadgroup -m "stack and not nightly" $(or $(TESTS),tests/acceptance)

# What a cheaper test of `make test` promises too, in more depth: the suite of lakes over MERGE, for one.
nightly: setup-dev
	$(IN_MEMORY) $(BIN)/pytest -n 2 --dist loadgroup -m "nightly and not by_merge" $(TESTS)

# The source of the kind kafka, on a broker that is fetched for it.
kafka: python
	@$(SET_UP) --lock requirements-dev.txt --jars postgres --jars s3 --jars kafka --jars connect
	$(IN_MEMORY) $(BIN)/pytest -m kafka $(TESTS)

# Real faults on real processes, at most 60 minutes; writes docs/reports/chaos.md. CDC_CHAOS_SEED chooses the random ones.
chaos: python
	@$(SET_UP) --lock requirements-dev.txt --jars postgres --jars s3 --jars s3proxy
	CDC_CHAOS_REPORT=docs/reports/chaos.md $(BIN)/pytest -m chaos tests/chaos

# The protocol's model in its larger spaces: docs/explanation/model.md.
explore: setup-dev
	$(BIN)/python docs/model/protocol_model.py --bounds explore

# The merge against its reference model on 100,000 random logs.
fuzz: setup-dev
	$(BIN)/pytest -n 2 --hypothesis-profile=fuzz tests/property/test_kernel.py

# A million lines of Debezium's files that nobody would write: none ends the reader, hangs it or fills its memory.
fuzz-lines: setup-dev
	CDC_FUZZ_LINES=1000000 $(BIN)/pytest -s tests/property/test_odd_lines.py

# Random changes of tables, rows and pipeline runs: PostgreSQL, MariaDB, events in files. CDC_FUZZ_SEEDS=first,count chooses others,
# CDC_FUZZ_LAKE=spark the real lake instead of the fast one. MARKS=kafka JARS=kafka: topics, on a broker that is fetched.
fuzz-shapes: setup-dev
	CDC_FUZZ_SEEDS=$${CDC_FUZZ_SEEDS:-0,400} $(BIN)/pytest -n 2 -m "$(or $(MARKS),not kafka)" tests/fuzz

# Limits, peers and this project in one run: docs/reports/performance.md. BENCH chooses rows: make bench BENCH="B1 B4".
bench: setup-bench
	$(BIN)/python -m benchmarks --page $(BENCH)

setup-bench: python
	@$(SET_UP) --lock requirements-dev.txt --jars postgres --jars s3 --jars kafka

bench-quick: setup-bench
	$(BIN)/python -m benchmarks --quick $(BENCH)

bank: setup-dev
	$(BIN)/pytest -s tests/acceptance/test_bank.py

compose: setup
	$(BIN)/python -m cdc_pipeline.launcher.compose > docker/new.yml || { rm docker/new.yml; exit 1; }
	mv docker/new.yml docker/docker-compose.yml

lock: setup
	$(COMPILE) requirements.in --output-file requirements.txt
	$(COMPILE) requirements-dev.in --constraint requirements.txt --output-file requirements-dev.txt

# How old the pinned versions are: docs/reports/versions.md. docs/explanation/security.md says what else to ask.
audit: setup-dev
	$(BIN)/python -m tests.support.versions

clean:
	rm -rf .venv .cache *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
