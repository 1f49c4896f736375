# `make train` and `make test` install what they need; `make help` lists the usual targets, `make help-all` all.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help help-all env train test test-docs test-all lint models kernels grouping device test-gpu cleaning measurements hosts cluster report bench docs lock release fuzz faults hostfaults mutants endurance soak newcomer pythons clean

# With it, Python would not search the project's folder for the modules of its programs.
unexport PYTHONSAFEPATH

PYTHON_FILES := .
SHELL_FILES := config.sh run.sh examples/*.sh setup-utils/*.sh setup-utils/launchers/* setup-utils/horovod-build/{cmake,mpicxx} docs/lab/*.sh .ci/run

# The environment in .venv, even if another one is active in the calling shell. The installer runs without it, since it
# searches the system's Python.
IN_VENV := VIRTUAL_ENV="$(CURDIR)/.venv" PATH="$(CURDIR)/.venv/bin:$$PATH"

# The tests that need real data (LFW and others) look for it beside the checkout; without it they are skipped.
ifneq ($(wildcard ../shared/data),)
export TOOLKIT_DATA ?= $(abspath ../shared/data)
endif

help: ## list the usual targets
	@awk -F ':.*[^#]## ' '/^[a-z-]+:.*[^#]## / { printf "  make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

help-all: ## list all targets: also the long tests, and what maintainers do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## install everything into .venv; PYTHON=... and MXNET_PACKAGE=mxnet-cu112 choose
	@bash setup-utils/install.sh

train: env ## train on the synthetic faces with two ranks on this host; NP=... changes their number
	@$(IN_VENV) NP="$${NP:-2}" bash run.sh

# A page of a run, from its folder alone.
RUN ?= models/synthetic-tiny
report: env ## make the report of a run again and open it if there is a screen: RUN=models/synthetic-tiny
	@$(IN_VENV) python -m evaluation.report "$(RUN)"
	@if [[ -n "$${DISPLAY:-}$${WAYLAND_DISPLAY:-}" ]]; then \
	    xdg-open "$(RUN)/report.html" 2>/dev/null \
	    || $(IN_VENV) python -m webbrowser "file://$$(realpath "$(RUN)")/report.html"; \
	fi

# Two modules at a time: tests that start ranks mostly wait for processes.
PYTEST := python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Marks of the long forms, which have targets of their own.
LONG := kernels or models or grouping or device or cleaning or measurements or hosts or documents

test: ## install everything and test the code
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) $(PYTEST)

test-docs: ## install everything, MkDocs too, and test the documents: links, commands, the lab, the site
	@bash setup-utils/install.sh --dev
	@bash setup-utils/install-docs.sh
	@$(IN_VENV) $(PYTEST) -m documents $$(grep -rl --include="test_*.py" "mark\.documents" tests)

# These wait for processes and time limits so much that three at a time suit two cores.
test-all: ## test what `make test` leaves out: installers, launchers, the device path, short forms of the long tests
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) $(PYTEST) -n 3 -m "thorough and not ($(LONG))"

models: ### test a step and a batch of 128 with every classifier; the other tests use four of them
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m models

kernels: ### test which kernels of oneDNN compute each network; the other tests have two
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m "kernels or not kernels" tests/benchmarks/test_kernels.py

grouping: ### test jobs with parameter servers, and examples/: killed processes end them
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m grouping tests/parallel tests/examples

device: ### test what runs on a GPU without one: on MXNet's second CPU context, minutes
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m "device or not device" tests/device

# Without TF32, whose products have 10 bits.
test-gpu: ### test the same on the first GPU, and two ranks on two GPUs; please send what it prints
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) TOOLKIT_DEVICE="gpu(0)" NVIDIA_TF32_OVERRIDE=0 \
	    python -m pytest -v -rs -m "device or not device" tests/device

cleaning: ### test evaluation.clean on all of LFW with planted wrong labels; TOOLKIT_DATA
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m "cleaning or not cleaning" tests/evaluation/clean

measurements: ### test every benchmark with its smallest sizes; TOOLKIT_DATA
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m measurements tests/benchmarks

hosts: ### test every launcher on two hosts, made of network namespaces: as root, with iproute2 and openssh-server
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m "hosts and not cluster" tests/hosts

cluster: ### test parameter servers there: MNIST to 0.98 in every scheme, all processes killed, an hour; TOOLKIT_DATA
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m cluster tests/hosts --ignore tests/hosts/test_faults.py

lint: ## check the style of the Python files (ruff), their types (mypy) and the shell scripts (shellcheck)
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) ruff check $(PYTHON_FILES)
	@$(IN_VENV) mypy
	@$(IN_VENV) shellcheck --external-sources --source-path=SCRIPTDIR:. $(SHELL_FILES)

# A report is written when it is complete: an interrupted run keeps the former one.
BENCHMARKS ?= head
bench: env ## measure, write benchmarks/results; BENCHMARKS="head input backbone end_to_end", PYTORCH=1 for PyTorch, too
	@if [[ -n "$${PYTORCH:-}" ]]; then bash setup-utils/install-bench.sh; fi
	@mkdir -p benchmarks/results
	@for name in $(BENCHMARKS); do \
	    $(IN_VENV) python -m benchmarks.$$name >benchmarks/results/$$name.md.tmp \
	    && mv benchmarks/results/$$name.md.tmp benchmarks/results/$$name.md \
	    && cat benchmarks/results/$$name.md || exit; \
	done

# --strict: a warning, such as of a link to nothing, is an error.
docs: env ## build the site into site/, with an environment of its own
	@bash setup-utils/install-docs.sh
	@VIRTUAL_ENV="$(CURDIR)/.venv-docs" .venv-docs/bin/mkdocs --quiet build --strict
	@echo site/index.html

lock: ### write requirements*.lock from requirements*.txt, with hashes; UPGRADE="idna requests" takes their newest versions
	@UPGRADE="$(UPGRADE)" bash setup-utils/lock.sh

release: ### tag this commit with its section of CHANGELOG.md; versions and dates have to agree
	@bash setup-utils/release.sh

# Long forms of tests, of which `make test` runs short forms.
INPUTS ?= 100000
KILLS ?= 20
N ?= 200
MINUTES ?= 10
SEED ?= 1
fuzz: env ### feed damaged files to every reader; INPUTS=100000 SEED=1
	@$(IN_VENV) python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED)

faults: env ### kill ranks, resume, compare with an undisturbed run; KILLS=20 SEED=1
	@$(IN_VENV) python -m tests.faults --kills $(KILLS) --seed $(SEED)
	@$(IN_VENV) python -m tests.faults --kills $(KILLS) --seed $(SEED) --center-store
	@$(IN_VENV) python -m tests.faults --kills $(KILLS) --seed $(SEED) --center-store --ranks 1

hostfaults: ### disturb jobs of every launcher on two hosts, which end in time or go on; as root
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m pytest -m hosts tests/hosts/test_faults.py

mutants: ### change the code at random lines, which its tests must notice; N=200 SEED=1,2,3
	@bash setup-utils/install.sh --dev
	@$(IN_VENV) python -m tests.mutants --count $(N) --seed $(SEED)

endurance: env ### train 3,000 updates on three ranks: memory, Horovod's response cache, stalls
	@$(IN_VENV) python -m tests.endurance

soak: env ### run jobs with 1 and 3 parameter servers under load, replay every staleness; MINUTES=10 of each
	@$(IN_VENV) python -m tests.soak --minutes $(MINUTES) --servers 1,3

newcomer: env ### run every command of the README in a fresh clone, an hour; TOOLKIT_DATA, PYTHON
	@$(IN_VENV) python -m tests.newcomer $(if $(PYTHON),--python "$(PYTHON)")

ONLY ?= 3.9,3.10,3.11,3.12
pythons: env ### install, train, test, import all with every supported Python of the machine; ONLY=3.9,3.12
	@$(IN_VENV) python -m tests.pythons --only $(ONLY)

clean: ## remove the environment and the caches of the tools; not the data, not the models
	@rm -rf .venv .venv-bench .venv-docs site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
