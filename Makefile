# Commands for contributors. Each target does its own set-up.
#
#   make up             three servers on 127.0.0.1:9092-9094, until ^C; NODES=3, PORT=9092, DATA=data
#   make down           stop the servers with data in DATA
#   make test           all tests, stage by stage (.ci/budgets.toml); STAGES="unit codec" selects stages,
#                       PART=all runs long lists whole
#   make newcomer       make test in a fresh clone with an empty home and no caches; STAGES="check"
#   make check          format, lint, types, tidy, generated code; writes nothing
#   make fix            format and repair what can be repaired
#   make gen            regenerate the Kafka codec and the gRPC modules
#   make sim SEEDS=100 FIRST=1 [MINUTES=8] [KIND=power]
#   make chaos          real servers and disks under faults, more than an hour; CUTS=200, FLIPS=300, SYNCS=20,
#                       FAILOVERS=10, BRIDGES=10, CHURN=300, LISTS=600 select one kind
#   make bad-night      some thirty faults on real servers: their reports, and the cure of the runbook;
#                       ONLY=one_dead,bridge, RECORD=1 writes the table to deploy/runbook.md
#   make grow           three to seven to three servers under load, the catalog's leader killed in each
#                       phase, some minutes; SECONDS=60
#   make plans          ten plans carried out under load, with kills, pauses and full disks
#   make host-death     twelve servers as three hosts, one of which dies under load; two minutes
#   make hostile        10,000 silent connections on each port of a secured set, and forty hostile clients
#                       beside its users
#   make beside         latency beside hostile clients where every server has a processor of its own;
#                       ONLY="groups tokens" selects kinds of requests
#   make eos            long runs of exactly-once: Kafka Streams, Connect and Flink with kills, lists of
#                       transactions under faults; ONLY=streams, connect, flink or lists
#   make examples       tests of properties with new random examples; TIMES=10
#   make mutants        planted bugs: the simulator must find each; ONLY=name, RECORD=1
#   make planted        bugs of public vulnerabilities: a unit test must catch each; ONLY=name
#   make fuzz           a million damaged handshakes, certificates and login tokens, COUNT=; 20,000
#                       random lives of Fetch sessions, ROUNDS=; SEED=
#   make cost           calls, system calls and bytes for each record, counted in the simulator; ONLY=single,
#                       TOP=40 lists the functions, RECORD=1
#   make price          worst cost of a request of each API, written to docs/request-costs.md;
#                       ONLY=Fetch for one API
#   make conformance    the Raft core against transcripts of etcd-io/raft; DIR is a clone of it
#   make suites         tests of other projects for a Kafka cluster, from the folder SUITES; ONLY=librdkafka
#   make differential   equal requests to Kafka and VDL must get equal responses
#   make bench          throughput and latency of a replica set on this machine; PEER=kafka compares
#                       with Kafka; BENCH_ARGS=idle and others: docs/performance.md
#   make bench-limit    produce compared with minimal code that moves the same bytes to the same disks
#   make test-pipeline  tests of vdl/pipeline; tests with Spark need Java 17
#   make cdc            100,000 changes of a MariaDB by Debezium to two tables, with kill -9 of leaders
#   make violence       Spark jobs killed and suspended: each row is written once; KILLS=10,
#                       SINKS=iceberg,delta-s3, LEADERS=2, ZOMBIES=2, SOURCE=vdl, SEED=1, and
#                       SPECULATE=1: on a cluster with frozen executors
#   make pipeline-env   one file with the parts of the pipeline that a cluster needs besides Spark
#   make audit-large    an audit of three copies of 1.1 GB each, damaged in three ways
#   make pipeline-demo  336,776 flights through topics and Spark to tables and a chart
#   make setup          set-up in .venv; setup-spark: set-up of the pipeline in .venv-spark
#   make lock           packages of the image with their hashes, in deploy/*.lock
#   make sbom           contents of the image as CycloneDX, in build/sbom.json
#   make clean          remove builds, caches and both; never data

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-ready
DEV := $(VENV)/.dev-ready
SPARK_VENV := .venv-spark
SPARK_BIN := $(SPARK_VENV)/bin
SPARK := $(SPARK_VENV)/.ready

DATA ?= data
NODES ?= 3
PORT ?= 9092
SEEDS ?= 100
FIRST ?= 1
# Minutes of new seeds after the given ones.
MINUTES ?= 0
DIR ?=
STAGES ?=
ONLY ?=
RECORD ?=
TOP ?=
TIMES ?= 10
CI_STAGES ?=
BENCH_ARGS ?=
export PEER ?=
export PEER_COMMAND ?=
# Quiet: pip warns of editable installations, which are intended here.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --editable
PIP := PYTHONWARNINGS=ignore $(BIN)/python $(PIP_INSTALL)

.PHONY: help setup setup-spark setup-unit setup-clients setup-codec setup-ecosystem setup-pipeline up down test newcomer check fix gen lock sbom conformance sim chaos bad-night grow plans host-death hostile beside examples mutants planted fuzz cost price \
  suites differential bench bench-limit clean test-pipeline cdc violence pipeline-env audit-large pipeline-demo

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

# --- set-up -------------------------------------------------------------------------------------
# `make up` needs what a server needs, and the client of commands where there is one built. The tests add the clients and tools of the `dev` extra.

$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	  if command -v $$python >/dev/null && \
	     $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then echo "setup: $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); fi; \
	done; \
	echo "setup: Python 3.11 or newer with the venv module is required (Debian: python3-venv)" >&2; exit 1

$(RUNTIME): pyproject.toml vdl/records/_walk.c segments/io/_ring.c | $(BIN)/python
	@echo "setup: dependencies"
	@$(PIP) '.[cli]' --only-binary confluent-kafka 2>/dev/null || { $(PIP) . && \
	  echo "setup: no confluent-kafka for this machine: commands such as vdl topic are left out"; }
	@touch $@

$(DEV): pyproject.toml vdl/records/_walk.c segments/io/_ring.c | $(RUNTIME)
	@echo "setup: test clients and tools"
	@$(PIP) '.[dev]'
	@touch $(RUNTIME) $@

# About 840 MB, needed only by `vdl/pipeline`: in an environment of its own, so that no other test
# depends on it. Written back before a server starts, whose first sync would wait for all of it.
$(SPARK): pyproject.toml vdl/records/_walk.c segments/io/_ring.c | $(DEV)
	@echo "setup: Spark, in $(SPARK_VENV)"
	@$(BIN)/python -m venv $(SPARK_VENV)
	@PYTHONWARNINGS=ignore $(SPARK_BIN)/python $(PIP_INSTALL) '.[dev,spark,spark-dev,lineage]'
	@sync
	@touch $@

setup: $(DEV)

setup-spark: $(SPARK)

# Programs that the tests of a folder run, fetched and built into .cache.
setup-unit setup-clients setup-codec setup-ecosystem: $(DEV)
	@exec $(BIN)/python -m tests.programs $(@:setup-%=%)

setup-pipeline: $(SPARK)
	@exec $(BIN)/python -m tests.programs pipeline

# --- running ------------------------------------------------------------------------------------

up: $(RUNTIME)
	@VDL_CALLED_BY="make up" exec $(BIN)/vdl up --nodes $(NODES) --data $(DATA) --base-port $(PORT)

down: $(RUNTIME)
	@$(BIN)/vdl down --data $(DATA)

# --- tests --------------------------------------------------------------------------------------

test: $(DEV)
	@exec $(BIN)/python .ci/stages.py $(CI_STAGES) $(STAGES)

# As for a newcomer: committed files, no installed package, no variable except PATH. Go's caches are
# read-only, so they are made writable before removal.
newcomer:
	@folder=$$(mktemp --directory); \
	trap "chmod --recursive u+w $$folder; rm --recursive --force $$folder" EXIT; \
	git clone --quiet . $$folder/vdl; mkdir $$folder/home; \
	env --ignore-environment PATH="$$PATH" HOME=$$folder/home \
	  make --no-print-directory --directory $$folder/vdl test STAGES="$(STAGES)"

conformance: $(DEV)
	@exec $(BIN)/python -m tests.conformance.run $(DIR)

sim: $(DEV)
	@exec $(BIN)/vdl sim --seeds $(SEEDS) --first $(FIRST) --minutes $(MINUTES) $(if $(KIND),--kind $(KIND))

# CUTS, FLIPS, SYNCS, FAILOVERS, BRIDGES, CHURN and LISTS select one test each and its length; without
# them all tests run in full, for more than an hour. SEED repeats the random choices.
CHAOS_TESTS := $(if $(CUTS),tests/chaos/test_power_cut.py) \
  $(if $(FLIPS),tests/chaos/test_bit_flips.py) $(if $(SYNCS),tests/chaos/test_failed_sync.py) \
  $(if $(FAILOVERS),tests/chaos/test_failover.py) $(if $(CHURN),tests/chaos/test_consumer_churn.py) \
  $(if $(BRIDGES),tests/chaos/test_bridge.py) $(if $(LISTS),tests/chaos/test_list_append.py)
CHAOS_FULL := CUTS=200 FLIPS=300 SYNCS=20 FAILOVERS=10 BRIDGES=10 CHURN=300 LISTS=600 TRANSACTIONS=100000

chaos: $(DEV)
	@exec env $(if $(strip $(CHAOS_TESTS)),,$(CHAOS_FULL)) $(BIN)/python -m pytest -q -s \
	  -o faulthandler_timeout=0 $(or $(strip $(CHAOS_TESTS)),tests/chaos)

bad-night: $(DEV)
	@exec $(BIN)/python -m tests.chaos.bad_night $(if $(ONLY),--only $(ONLY)) $(if $(RECORD),--record)

grow: $(DEV)
	@exec $(BIN)/python -m tests.chaos.grow_and_shrink $(if $(SECONDS),--seconds $(SECONDS))

plans: $(DEV)
	@exec $(BIN)/python -m tests.chaos.plans_tried $(if $(ONLY),--only $(ONLY))

host-death: $(DEV)
	@exec $(BIN)/python -m tests.chaos.host_death

hostile: $(DEV)
	@exec env SILENT=10000 HOSTILE_SECONDS=300 $(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 \
	  tests/chaos/test_silent_ports.py tests/chaos/test_hostile_clients.py

beside: $(DEV)
	@exec $(BIN)/python -m tests.price.beside $(if $(ONLY),--kinds $(ONLY))

# Tests of properties, TIMES times. A failure is printed with the command that repeats it. Tests of the
# pipeline are skipped if Spark's libraries are missing (`make setup-spark`).
EXAMPLES := -m pytest -q -m hypothesis --hypothesis-profile=fresh

examples: $(DEV)
	@for ((n = 1; n <= $(TIMES); n++)); do echo "examples: $$n of $(TIMES)"; \
	  $(BIN)/python $(EXAMPLES) tests/unit tests/codec tests/storage_contract; \
	  if [ -e $(SPARK) ]; then $(SPARK_BIN)/python $(EXAMPLES) tests/pipeline; fi; done

EOS_FULL := VDL_STREAMS_LINES=1000000 VDL_STREAMS_KILLS=5 VDL_STREAMS_LEADERS=3 \
  VDL_CONNECT_LINES=100000 VDL_CONNECT_KILLS=5 \
  VDL_FLINK_RECORDS=200000 VDL_FLINK_FAILURES=5 VDL_FLINK_LEADERS=3 \
  LISTS=600 TRANSACTIONS=100000
EOS_TESTS := exactly_once or lists_of_transactions

eos: $(DEV)
	@exec env $(EOS_FULL) $(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 \
	  -k "($(EOS_TESTS))$(if $(ONLY), and $(ONLY))" tests/ecosystem tests/chaos/test_list_append.py

mutants: $(DEV)
	@exec $(BIN)/python -m tests.mutants.run $(if $(ONLY),--only $(ONLY)) $(if $(RECORD),--record)

planted: $(DEV)
	@exec $(BIN)/python -m tests.planted.planted $(if $(ONLY),--only $(ONLY))

fuzz: $(DEV)
	@$(BIN)/python -m tests.fuzz.security --count $(or $(COUNT),1000000) --seed $(or $(SEED),1)
	@$(BIN)/python -m tests.fuzz.fetch_sessions --count $(or $(ROUNDS),20000) --seed $(or $(SEED),1)

price: $(DEV)
	@exec $(BIN)/python -m tests.price.run $(if $(ONLY),--only $(ONLY))

cost: $(DEV)
	@exec $(BIN)/python -m tests.cost.run $(if $(ONLY),--only $(ONLY)) $(if $(TOP),--top $(TOP)) \
	  $(if $(RECORD),--record)

# SUITES, SUITE_CACHE, SUITE_LIMIT and others are passed as variables.
suites: $(DEV)
	@exec $(BIN)/python -m tests.suites.run $(ONLY)

# KAFKA_PEER is the folder whose pom.xml lists Kafka's jars, KAFKA_LIB a folder that has them.
differential: $(DEV)
	@exec $(BIN)/python -m pytest -q tests/differential

# PEER=NAME, and PEER_COMMAND for a program in another place, are passed as variables.
bench: $(DEV)
	@exec $(BIN)/python -m tests.bench $(BENCH_ARGS)

bench-limit: $(DEV)
	@exec $(BIN)/python -m tests.bench limit $(BENCH_ARGS)

# --- the pipeline on Spark ------------------------------------------------------------------------

test-pipeline: $(SPARK)
	@exec $(SPARK_BIN)/python -m pytest -q tests/pipeline

cdc: $(SPARK)
	@exec env CHANGES=100000 LEADERS=2 KILLS=2 $(SPARK_BIN)/python -m pytest -q -s \
	  -o faulthandler_timeout=0 tests/ecosystem/test_debezium.py tests/pipeline/test_debezium.py

# Uses about one core for some minutes for each sink. S3 is a server of the tests.
violence: $(SPARK)
	@exec $(SPARK_BIN)/python -m tests.pipeline.violence --source $(or $(SOURCE),vdl) \
	  --sinks $(or $(SINKS),iceberg) --kills $(or $(KILLS),10) --leaders $(or $(LEADERS),2) \
	  --zombies $(or $(ZOMBIES),2) --seed $(or $(SEED),1) $(if $(SPECULATE),--speculate)

# For nodes with the same Python in the same place and the same system. The cluster has Spark.
PACKED := dist/vdl-pipeline

pipeline-env: $(BIN)/python
	@rm -rf $(PACKED) $(PACKED).tar.gz && mkdir -p dist && $(BIN)/python -m venv $(PACKED)
	@$(PACKED)/bin/python -m pip install --quiet --disable-pip-version-check '.[spark,lineage]'
	@$(PACKED)/bin/python -m pip uninstall --quiet --yes pyspark py4j
	@tar --create --gzip --file $(PACKED).tar.gz --directory $(PACKED) .
	@echo "pipeline-env: $(PACKED).tar.gz"

audit-large: $(SPARK)
	@AUDIT_MB=1100 exec $(SPARK_BIN)/python -m pytest -q -k on_spark tests/pipeline/test_audit.py

pipeline-demo: $(SPARK)
	@exec $(SPARK_BIN)/python -m examples.pipeline.demo --folder $(DATA)/pipeline-demo

# --- the source -----------------------------------------------------------------------------------

check: $(DEV)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/python -m vdl.kafka.codegen --check
	$(BIN)/python -m pytest -q tests/tidy

fix: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

gen: $(DEV)
	$(BIN)/python -m vdl.kafka.codegen
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
	  rpc/proto/admin.proto

# In separate environments: no package depends on these tools. `lock` uses the package index.
LOCK_OPTIONS := --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate

lock: $(BIN)/python
	@$(BIN)/python -m venv build/lock && build/lock/bin/pip install --quiet --disable-pip-version-check uv
	@build/lock/bin/uv pip compile $(LOCK_OPTIONS) pyproject.toml --output-file deploy/requirements.lock
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | build/lock/bin/uv pip compile $(LOCK_OPTIONS) - --output-file deploy/build.lock

sbom: $(BIN)/python
	@$(BIN)/python -m venv build/sbom && build/sbom/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.*
	@build/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-file build/sbom.json \
	  deploy/requirements.lock
	@echo "sbom: build/sbom.json"

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info $(VENV) \
	  $(SPARK_VENV)
