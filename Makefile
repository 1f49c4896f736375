# `make train` and `make test` are all that a fresh machine needs; `make help` lists the rest.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help env train test lint models classification grouping bench fuzz faults mutants endurance soak newcomer pythons clean

PYTHON_FILES := .
SHELL_FILES := config.sh run.sh setup-utils/*.sh setup-utils/*/* .ci/run

# The environment in .venv, whatever else is active in the shell that calls make. The installer itself looks for the
# system's Python and must not be led into .venv.
IN_VENV := VIRTUAL_ENV="$(CURDIR)/.venv" PATH="$(CURDIR)/.venv/bin:$$PATH"

# Real data beside the checkout (LFW and others) is used by the tests that want it; without it they are skipped.
ifneq ($(wildcard ../shared/data),)
export TOOLKIT_DATA ?= $(abspath ../shared/data)
endif

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## install everything into .venv; PYTHON=... and MXNET_PACKAGE=mxnet-cu112 choose
	@bash setup-utils/install.sh

train: env ## train on the synthetic faces with two ranks on this host; NP=... changes their number
	@$(IN_VENV) NP="$${NP:-2}" bash run.sh

# Two modules at a time: most of a test that starts ranks is waiting for one process after the other.
test: ## install everything and run all tests
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

models: ## every classifier takes a step and a batch of 128; the other tests do that with four of them
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m models

classification: ## ResNet18 on files of CIFAR-10's format, ResNet50 on a record file; the study of scaling
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m classification tests/test_classify_sets.py tests/benchmarks/test_scaling.py

grouping: ## jobs with parameter servers on MNIST: killed processes end them, every scheme learns; TOOLKIT_DATA
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m grouping tests/parallel tests/benchmarks/test_grouping.py

lint: ## check the style of the Python files (ruff), their types (mypy) and the shell scripts (shellcheck)
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) ruff check $(PYTHON_FILES)
	@$(IN_VENV) mypy
	@$(IN_VENV) shellcheck --external-sources --source-path=SCRIPTDIR $(SHELL_FILES)

# A report appears when it is complete: a run that ends early leaves the one before.
BENCHMARKS ?= head
bench: env ## measure, writes benchmarks/results; BENCHMARKS="head input backbone end_to_end", PYTORCH=1 beside PyTorch
	@if [[ -n "$${PYTORCH:-}" ]]; then bash setup-utils/install-bench.sh; fi
	@mkdir -p benchmarks/results
	@for name in $(BENCHMARKS); do \
	    $(IN_VENV) python -m benchmarks.$$name >benchmarks/results/$$name.md.tmp \
	    && mv benchmarks/results/$$name.md.tmp benchmarks/results/$$name.md \
	    && cat benchmarks/results/$$name.md || exit; \
	done

# Long forms of tests that run in a small form with the others.
INPUTS ?= 100000
KILLS ?= 20
N ?= 200
MINUTES ?= 10
SEED ?= 1
fuzz: env ## feed damaged files to every reader; INPUTS=100000 SEED=1
	@$(IN_VENV) python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED)

faults: env ## kill ranks, resume, compare with an undisturbed run; KILLS=20 SEED=1
	@$(IN_VENV) python -m tests.faults --kills $(KILLS) --seed $(SEED)

mutants: ## change the code at random places, which its tests must notice; N=200 SEED=1,2,3
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m tests.mutants --count $(N) --seed $(SEED)

endurance: env ## 3,000 updates on three ranks: memory, Horovod's response cache, stalls
	@$(IN_VENV) python -m tests.endurance

soak: env ## jobs with 1 and 3 parameter servers under load, and every staleness replayed; MINUTES=10 of each
	@$(IN_VENV) python -m tests.soak --minutes $(MINUTES) --servers 1,3

newcomer: env ## every command of the README in a fresh clone, an hour; TOOLKIT_DATA, PYTHON
	@$(IN_VENV) python -m tests.newcomer $(if $(PYTHON),--python "$(PYTHON)")

ONLY ?= 3.9,3.10,3.11,3.12
PLACE ?=
pythons: env ## every supported Python that the machine has: install, train, import all; ONLY=3.9,3.12 PLACE=space
	@$(IN_VENV) python -m tests.pythons --only $(ONLY) $(if $(PLACE),--place $(PLACE))

clean: ## remove the environment and what the tools keep; not the data, not the models
	@rm -rf .venv .venv-bench .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
