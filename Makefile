# Everything a contributor runs. `make help` lists the targets.
#
# PYTHON       the interpreter that makes the environment (default python3)
# PYTEST_ARGS  extra arguments for every pytest run, for example PYTEST_ARGS='-k journal -x'
# WORKERS      parallel pytest workers (default 4: the tests wait for each other's processes more than they compute)

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
WORKERS ?= 4
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
SEED ?= 1
BUG ?=
SEEDS ?= 300
BASE ?= 1
SECONDS ?= 300
MINUTES ?= 30
REVISION ?=
TARGET ?=

# The tests start more than a thousand processes, each of which would compile the whole package.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/setup.stamp
TESTDATA_STAMP := $(VENV)/testdata.stamp
FUZZ_STAMP := $(VENV)/fuzz.stamp
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- environment ------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP) $(TESTDATA_STAMP) ## Make .venv with everything that the tests need

# The virtual environment itself is kept when only the lock file changed: pip then moves just the pins that differ.
$(STAMP): requirements.lock setup.cfg devtools/setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: set PYTHON" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	PYTHONWARNINGS='ignore:Editable installation' $(PIP) install --no-build-isolation --no-deps --editable . --editable devtools
	touch $@

# PySpark comes as source and is packed once into a wheel of 450 MB, which pip keeps for the next environment.
$(TESTDATA_STAMP): requirements-testdata.lock | $(STAMP)
	$(PIP) install --require-hashes --no-deps -r requirements-testdata.lock
	touch $@

# Linux only, and large: for those who fuzz.
$(FUZZ_STAMP): requirements-fuzz.lock | $(STAMP)
	$(PIP) install --require-hashes --no-deps -r requirements-fuzz.lock
	touch $@

.PHONY: lock
lock: ## Resolve the requirements of setup.cfg again, keeping pins that still fit
	scripts/update-lock

.PHONY: dist
dist: $(STAMP) ## Build what users install: dist/ with the source distribution, and the wheel made of that
	rm -rf dist
	PYTHONWARNINGS=error $(BIN)/python -m build --no-isolation --outdir dist .

.PHONY: java
java:
	@scripts/ensure-java --optional

# --- checks -----------------------------------------------------------------------------------------------------------

.PHONY: fmt
fmt: $(STAMP) ## Format the code and apply the safe fixes of the linter
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# Import-linter takes tallybook for a namespace, whose parts are roots: .ns has it as one.
.PHONY: lint
lint: $(STAMP) ## Check style, format, the layers between folders, and what docker/ has
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	scripts/check-words
	PYTHONPATH=.ns NO_COLOR=1 $(BIN)/lint-imports | sed -n '/^Contracts$$/,$$p'
	$(BIN)/hadolint --failure-threshold style docker/Dockerfile
	$(BIN)/shellcheck --enable all --exclude SC2250,SC2310,SC2312 docker/*/*.sh
	$(BIN)/yamllint --strict --config-file docker/.yamllint.yml docker
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yml
	$(BIN)/kubernetes-validate --strict --quiet --kubernetes-version 1.34 $(filter-out %/kustomization.yaml,$(wildcard docker/kubernetes/*.yaml docker/kubernetes/*/*.yaml))

.PHONY: lint-docker
lint-docker: ## Check docker/ with what is no Python package: kube-score (Go builds it), promtool, kubectl; without them that is a failure
	promtool=$$(scripts/ensure-promtool) && for each in docker/prometheus/prometheus.yml docker/kubernetes/monitoring/prometheus.yml; do \
		"$$promtool" check config --syntax-only $$each || exit 1; done
	score=$$(scripts/ensure-kube-score) && kubectl kustomize docker/kubernetes | "$$score" score --exit-one-on-warning --output-format ci -

.PHONY: type
type: $(STAMP) ## Check the types of every package
	$(BIN)/python scripts/check-types

.PHONY: proto
proto: $(STAMP) ## Generate the code of proto/*.proto
	$(BIN)/python scripts/gen-proto

.PHONY: blocking
blocking: $(STAMP) ## Generate the blocking handles from the asyncio classes
	$(BIN)/python scripts/gen-blocking

.PHONY: docs
docs: $(STAMP) ## Generate the pages that come from the code: command line, configuration, metrics, size
	$(BIN)/python scripts/gen-docs
	$(BIN)/python scripts/gen-size

.PHONY: api-docs
api-docs: $(STAMP) ## Make the reference of what programs import, from its docstrings (out/api)
	$(BIN)/python scripts/gen-api-docs

.PHONY: docs-check
docs-check: $(STAMP) ## Check that those pages agree with the code
	$(BIN)/python scripts/gen-docs --check
	$(BIN)/python scripts/gen-dashboard --check
	$(BIN)/python scripts/gen-size --check

.PHONY: proto-check
proto-check: $(STAMP) ## Check that the generated code is what proto/*.proto gives
	$(BIN)/python scripts/gen-proto --check

.PHONY: blocking-check
blocking-check: $(STAMP) ## Check that the blocking handles are what the asyncio classes give
	$(BIN)/python scripts/gen-blocking --check

# --- tests ------------------------------------------------------------------------------------------------------------

.PHONY: test
test: setup java lint type proto-check blocking-check docs-check ## Run every check and every test
	$(PYTEST)

.PHONY: check
check: lint type ## Lint, types and the fast tests: the inner loop
	$(PYTEST) tests/unit tests/scenario -m 'not slow and not nightly'

.PHONY: unit
unit: $(STAMP) ## Run the unit tests only
	$(PYTEST) tests/unit

.PHONY: integration
integration: setup java ## Run the tests that start real processes
	$(PYTEST) tests/integration

.PHONY: test-s3
test-s3: $(STAMP) ## Run the tests of object stores on a real S3 server, too (Go builds it the first time)
	scripts/ensure-minio run $(BIN)/pytest tests/contract/objects $(PYTEST_ARGS)

.PHONY: test-minio
test-minio: $(STAMP) ## Run the tests of object stores on a real S3 server only; without one there are none, which is a failure
	scripts/ensure-minio run $(BIN)/pytest tests/contract/objects -m s3 $(PYTEST_ARGS)

.PHONY: test-azure
test-azure: $(STAMP) ## Run the tests of object stores on Azurite only (npm installs it the first time); without it that is a failure
	scripts/ensure-azurite run $(BIN)/pytest tests/contract/objects -m azure $(PYTEST_ARGS)

.PHONY: test-stores
test-stores: $(STAMP) ## Run the tests of object stores on everything that plays one: moto, MinIO, Azurite
	scripts/ensure-minio run scripts/ensure-azurite run $(BIN)/pytest tests/contract/objects $(PYTEST_ARGS)

.PHONY: test-alerts
test-alerts: ## Check and try the alert rules with promtool (of Debian, or Go builds it); without it that is a failure
	promtool=$$(scripts/ensure-promtool) && cd docker/prometheus && "$$promtool" check rules alerts.yml && "$$promtool" test rules alerts_test.yml

.PHONY: test-pythons
test-pythons: $(STAMP) ## Import everything and run a cluster with later versions of Python, those that are there
	scripts/check-pythons

.PHONY: console-test
console-test: $(STAMP) ## Run the tests of the console's page in Chromium (Debian's is installed where there is none)
	scripts/ensure-chromium run $(BIN)/pytest tests/integration/test_console_page.py \
		tests/integration/test_console_maintenance_page.py $(PYTEST_ARGS)

.PHONY: console-screenshots
console-screenshots: $(STAMP) ## Take the pictures of the console that are in docs/operate/
	TALLYBOOK_SCREENSHOTS=docs/operate scripts/ensure-chromium run $(BIN)/pytest tests/integration/test_console_page.py \
		tests/integration/test_console_maintenance_page.py -k pictures

.PHONY: test-times
test-times: setup java ## Run every test, and write the processor time of each folder, which make docs puts on a page
	TALLYBOOK_TEST_TIMES=$(CURDIR)/tests/times.csv $(PYTEST)

.PHONY: crash
crash: $(STAMP) ## Lose power at every disk operation, in every way that is not too many (ten minutes of one core)
	TALLYBOOK_TESTS=full $(BIN)/pytest tests/crash -m crash_states --timeout=3600 -o faulthandler_timeout=0 $(PYTEST_ARGS)

.PHONY: nightly
nightly: setup java ## Run everything that takes hours: all tests in full, many seeds, planted bugs, a cluster of two revisions
	TALLYBOOK_TESTS=full HYPOTHESIS_PROFILE=nightly $(PYTEST) -m '' --timeout=3600 -o faulthandler_timeout=0
	$(MAKE) --no-print-directory sim-many sim-bugs
	$(BIN)/python -m tallybook.sim.upgrade mixed $(REVISION)

.PHONY: upgrade-test
upgrade-test: $(STAMP) ## Run a cluster of this revision and another one under load (REVISION; by default that of the newest fixture)
	$(BIN)/python -m tallybook.sim.upgrade mixed $(REVISION)

.PHONY: fuzz
fuzz: setup $(FUZZ_STAMP) ## Search for inputs that a decoder does not expect (TARGET, else all; SECONDS for each); docs/project/fuzzing.md
	$(BIN)/python -m tests.fuzz run $(TARGET) --seconds $(SECONDS)

.PHONY: sim
sim: $(STAMP) ## Simulate a whole cluster from one seed (SEED), with a bug planted on purpose (BUG)
	$(BIN)/python -m tallybook.sim run $(SEED) $(if $(BUG),--bug '$(BUG)')

.PHONY: model
model: $(STAMP) ## Search small worlds to their end: every order of requests, losses and crashes (an hour of one core)
	$(BIN)/python -m tallybook.sim.model

.PHONY: sim-many
sim-many: $(STAMP) ## Simulate many clusters (SEEDS, BASE)
	$(BIN)/python -m tallybook.sim many --seeds $(SEEDS) --base $(BASE) --jobs $(WORKERS)

.PHONY: sim-bugs
sim-bugs: $(STAMP) ## Search a seed for each planted bug (an hour of two cores)
	$(BIN)/python -m tallybook.sim bugs --jobs $(WORKERS)

.PHONY: chaos
chaos: setup java ## Kill, stop and cut off real processes under load, and check every promise (SECONDS, SEED)
	$(BIN)/python -m tallybook.sim.chaos --seconds $(SECONDS) --seed $(SEED)

# --- use --------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: setup java ## Start a cluster on this machine and show what it does (DEMO_ARGS)
	$(BIN)/tallybook demo $(DEMO_ARGS)

.PHONY: examples
examples: $(STAMP) ## Build the examples in Go and Java, where their tools are there
	scripts/build-examples

.PHONY: bench
bench: $(STAMP) ## Measure this machine, beside BookKeeper (BENCH_ARGS); without BENCH_ARGS also latency with faults, scale, archive, Spark, streams, storage and operation
	@failed=0; $(BIN)/python -m tallybook.bench $(BENCH_ARGS) || failed=1; \
	$(if $(BENCH_ARGS),,for part in latency scale archive streams storage operation; do $(MAKE) --no-print-directory bench-$$part || failed=1; done;) exit $$failed

.PHONY: bench-peers
bench-peers: $(STAMP) ## Measure this machine, beside BookKeeper, NATS JetStream and Redis Streams (BENCH_ARGS)
	$(BIN)/python -m tallybook.bench --peers bookkeeper,nats,redis $(BENCH_ARGS)

.PHONY: bench-latency
bench-latency: $(STAMP) ## Measure the latency of adds with bad members (BENCH_ARGS), and write docs/project/benchmarks-latency.md
	$(BIN)/python -m tallybook.bench.latency --report docs/project $(BENCH_ARGS)

.PHONY: bench-scale
bench-scale: $(STAMP) ## Measure costs by the number of bookies, clients, ledgers and streams, and write docs/project/benchmarks-scale.md
	$(BIN)/python -m tallybook.bench.scale --report docs/project $(BENCH_ARGS)

.PHONY: bench-streams
bench-streams: $(STAMP) ## Measure streams (BENCH_ARGS), and write docs/project/benchmarks-streams.md
	$(BIN)/python -m tallybook.bench.streams --report docs/project $(BENCH_ARGS)

.PHONY: bench-archive
bench-archive: $(STAMP) ## Measure the archive and Spark (BENCH_ARGS), and write docs/project/benchmarks-archive.md
	$(BIN)/python -m tallybook.bench.archive --report docs/project $(BENCH_ARGS)

.PHONY: bench-storage
bench-storage: $(STAMP) ## Measure what a bookie does beside adds and reads (BENCH_ARGS), and write docs/project/benchmarks-storage.md
	$(BIN)/python -m tallybook.bench.storage --report docs/project $(BENCH_ARGS)

.PHONY: bench-operation
bench-operation: $(STAMP) ## Measure TLS, overload and imports (BENCH_ARGS), and write docs/project/benchmarks-operation.md
	$(BIN)/python -m tallybook.bench.operation --report docs/project $(BENCH_ARGS)

.PHONY: bench-open-ledgers
bench-open-ledgers: $(STAMP) ## Append to 20,000 open ledgers of one client at once, also while a bookie dies (BENCH_ARGS)
	$(BIN)/python -m tallybook.bench.loads.open_ledgers --dir out/open-ledgers $(BENCH_ARGS)

.PHONY: soak
soak: $(STAMP) ## Run a cluster with everything on for long (MINUTES), see whether anything grows, and write docs/project/soak.md
	$(BIN)/python -m tallybook.bench.soak --minutes $(MINUTES) --report docs/project

.PHONY: clean
clean: ## Remove everything that git ignores, the environment included
	git clean -d -X --force --quiet
