# Everything runs from .venv, which is made when it is missing or out of date; no environment has to be active.
.POSIX:
.PHONY: help setup demo test simulate fleet lint types schemas bench pulsar

BIN = .venv/bin

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-10s%s\n", $$1, $$2}' Makefile

setup: .venv/.ready ## make .venv (instant when it is up to date); PYTHON=... chooses the interpreter

.venv/.ready: pyproject.toml constraints.txt
	@sh tools/setup.sh

demo: .venv/.ready ## a model from DeployModel to inference, two failures survived, and the story from the log
	@$(BIN)/magnetar demo

# A file is one worker's. Taken as collected (e2e, integration, unit) the long ones start first, and the workers end together. Most of the long ones wait for a broker: four workers keep two cores busy.
test: .venv/.ready ## all tests; ARGS="-k name -x" goes to pytest; MAGNETAR_REQUIRE=pulsar,mlserver,triton,history forbids absences
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

simulate: .venv/.ready ## the adversary against the production loops on a virtual clock; SEEDS=n FROM=seed
	@$(BIN)/python -m tests.simulation --seeds $${SEEDS:-200} --from $${FROM:-0}

fleet: .venv/.ready ## a day of 500 servers on the real core, against placement by total memory; SEEDS=n FROM=seed ARGS="--load 0.6 0.8"
	@$(BIN)/python -m tests.fleet --seeds $${SEEDS:-1} --from $${FROM:-0} $(ARGS)

lint: .venv/.ready ## ruff, its formatter, and the direction of imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports

types: .venv/.ready ## pyright, strict
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

schemas: .venv/.ready ## write events/schemas from the models
	@$(BIN)/python -m magnetar_events write

bench: .venv/.ready ## ratios measured in one run; ARGS="decisions hops" for some of them
	@$(BIN)/python -m tests.bench $(ARGS)

pulsar: .venv/.ready ## fetch a real Pulsar's jars (243 MB, once) and prepare its fast start
	@$(BIN)/python -m magnetar_common.brokers.jvm
