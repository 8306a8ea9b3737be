# The environment is .venv in the project; every target that needs it makes it first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# A wheel folder that pip is told of serves uv too; without one, torch's CPU build comes from PyTorch's own index.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
TORCH := $(if $(UV_FIND_LINKS),,--torch-backend=cpu)
# Bytecode is made once: where Python may not write it, each of the processes of a run would compile torch and vLLM anew.
INSTALL = $(UV) pip install --quiet --compile-bytecode $(TORCH) \
	--constraints images/lock-cpu.txt --overrides images/overrides-cpu.txt --python $(BIN)/python
# Outputs of local runs stay in the project, so that the local cache never points at a cleaned /tmp.
export FLYTE_SDK_LOCAL_SANDBOX ?= $(CURDIR)/outputs/flyte
export PYTHONWARNINGS ?= ignore
# Three files at a time: each waits for its own processes half of the time. Their order is tests/conftest.py's.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder
# The command rlvr; .venv/bin/rlvr is the same.
RLVR := $(BIN)/python -m tasks.commands
RUN := $(RLVR) run

IMAGES := data generation-none generation-cuda  # stages of images/Dockerfile that install packages
PUBLISHED = $(shell sed -n 's/^published = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",')

.PHONY: help environment demo demo-experiment demo-tools test test-fast test-all test-memory test-recipes test-mistakes test-experiment test-images test-installed chaos chaos-hosts soak check lock image-digests reference pod-fields words format bench gpu-check cluster-check bench-learning images register registry-is-named accelerator-is-known config-exists code-server prune clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r target what; do \
		printf '%-16s %s\n' "$$target" "$$what"; done

environment: $(VENV)/.ready  ## the environment alone, and how to use it
	@echo "ready: source $(BIN)/activate; then rlvr --help"

demo: $(VENV)/.ready  ## the whole pipeline on the quickstart: 9 minutes on two idle cores with bfloat16, else longer
	@echo "model and its check, source, clean, difficulty, mix, train, evaluate, report: 9 minutes on two idle cores with bfloat16, else longer"
	@$(RUN)

demo-experiment: $(VENV)/.ready  ## two variants of the quickstart, trained and compared
	@$(RUN) experiment

demo-tools: $(VENV)/.ready  ## the pipeline with episodes: a number is guessed in several turns; 10 minutes of training
	@$(RUN) --training quickstart_tools

test: $(VENV)/.ready  ## what is worth running before every commit
	@$(PYTEST) -m "not complete"

test-fast: $(VENV)/.ready  ## what is worth running on every save
	@$(PYTEST) -n 2 -m "not engine and not pipeline and not long and not complete"

test-all: $(VENV)/.all-ready  ## every test: complete tables, the published checkers beside ours, and trackers; two hours
	@RLVR_EXAMPLES=all $(PYTEST) -m "not separate"
	@$(MAKE) --no-print-directory test-memory test-recipes test-mistakes test-experiment

# Alone, because it needs the memory of a pod, and more for the bucket.
test-memory: $(VENV)/.ready  ## the quickstart under the memory limit of its pod
	@$(BIN)/pytest tests/workflows/test_pod_memory.py

test-recipes: $(VENV)/.ready  ## every recipe and data file that ships, shrunk, from its first row to the report: half an hour at most
	@$(BIN)/pytest -n 2 --dist load tests/hub tests/workflows/test_shipped_files.py

test-mistakes: $(VENV)/.ready  ## every mistake and fault of the table, as a person meets it on a terminal: 20 minutes
	@$(BIN)/pytest -n 2 --dist load tests/mistakes

test-experiment: $(VENV)/.ready  ## an experiment of two variants and two seeds with real engines: 10 minutes
	@$(BIN)/pytest -s tests/workflows/two_by_two.py

test-images: $(VENV)/.ready $(IMAGES:%=.images/%/.ready)  ## environments of the images of both kinds (Python 3.11 and 3.12), and every task's container command
	@RLVR_IMAGES=$(CURDIR)/.images $(BIN)/pytest tests/images tests/workflows/test_containers.py

test-installed: $(VENV)/.ready  ## the README's commands for the wheel, in a fresh environment (4 GB), to a trained policy: 15 minutes
	@$(BIN)/pytest -s tests/installed.py

chaos: $(VENV)/.ready  ## processes of each kind killed at random moments (CHAOS_SEEDS=20), and training's container command
	@$(BIN)/pytest -s tests/training/chaos.py
	@RLVR_KILLS=5 $(BIN)/pytest tests/workflows/test_kills.py

chaos-hosts: $(VENV)/.ready  ## a cluster's hosts killed, cut off and added; emulated, by root on Linux
	@$(BIN)/pytest -s tests/training/chaos_hosts.py

soak: $(VENV)/.ready  ## thousands of steps (SOAK_STEPS=2000): flat memory, and nothing left behind
	@$(BIN)/pytest -s tests/training/soak.py

check: $(VENV)/.ready  ## lint, format, types, names, documents, and whether pyproject.toml and the pins agree
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m images.pins
	@$(BIN)/pytest -m "not long" tests/test_language.py tests/test_documents.py
	@$(BIN)/python -m tests.words

# What the files in images/ cover: Python and the extras of machines without a GPU, and of the image that has CUDA.
# A version stays where pyproject.toml permits it; UPGRADE=--upgrade, or "--upgrade-package vllm", asks for newer ones.
LOCK = $(UV) pip compile --quiet --no-annotate --python-platform x86_64-unknown-linux-gnu $(UPGRADE)
UPGRADE =
lock: | $(UV)  ## pins of both environments after a change of requirements, from PyPI ([UPGRADE=--upgrade])
	@$(call LOCKED,cpu,3.11,cpu dev bench harness wandb mlflow) $(TORCH) --overrides images/overrides-cpu.txt
	@$(call LOCKED,cuda,3.12,gpu liger harness wandb mlflow)
	@$(LOCK) images/view.in --python-version 3.11 --output-file images/lock-view.txt \
		--custom-compile-command 'make lock (Python 3.11, Linux on x86-64, the requirements of images/view.in)'
LOCKED = $(LOCK) pyproject.toml --python-version $(2) $(3:%=--extra %) --output-file images/lock-$(1).txt \
	--custom-compile-command 'make lock (Python $(2), Linux on x86-64, the extras $(3) of pyproject.toml)'

image-digests: | $(UV)  ## pins the base images of images/Dockerfile by digest, as their registries answer
	@$(BIN)/python -m images.digests images/Dockerfile

reference: $(VENV)/.ready  ## what is made from the options: JSON schemas, docs/options, docs/alarms.md, metrics, constraints
	@$(BIN)/python -m tasks.inputs.json_schema workflows/schemas
	@$(BIN)/python -m tasks.inputs.options_page docs/options
	@$(BIN)/python -m tasks.inputs.alarms_page > docs/alarms.md
	@$(BIN)/python -m tasks.inputs.metrics_page > docs/metrics.md
	@$(BIN)/python -m tasks.verifiers.instructions.constraints_page > docs/constraints.md

pod-fields: $(VENV)/.ready  ## the fields of pods, from the installed client of Kubernetes
	@$(BIN)/python -m tasks.kubernetes.client_fields > tasks/kubernetes/pod_fields.json

words: $(VENV)/.ready  ## stores how often phrases of our own dialect occur, after some have become fewer
	@$(BIN)/python -m tests.words --write

format: $(VENV)/.ready  ## lint that mends itself, and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.bench-ready  ## performance tables, and benchmarks.json
	@$(BIN)/python -m tests.bench

GPU_PYTHON = $(if $(DRY),$(BIN)/python,python3)
JSON =
ONLY =
VARIANTS =
TABLE =
gpu-check: $(if $(DRY),$(VENV)/.ready)  ## learner, engine and whole runs on this machine's GPU, in parts ([DRY=1: tiny, on CPUs] [ONLY=A,training] [VARIANTS=plain] [JSON=file] [TABLE=file: into docs/clusters.md] [GPU_PYTHON=python3])
	@$(GPU_PYTHON) -m $(if $(TABLE),tasks.gpu_check.page "$(TABLE)",tasks.gpu_check $(if $(DRY),--dry) \
		$(if $(ONLY),--only "$(ONLY)") $(if $(VARIANTS),--variants "$(VARIANTS)") $(if $(JSON),--json "$(JSON)"))

TRAINING = workflows/recipes/quickstart.yaml
cluster-check: $(VENV)/.ready  ## what a run will need, here, or with ON=cluster by the registered launch plan ([TRAINING=recipe.yaml])
	@$(if $(filter cluster,$(ON)),$(RLVR) launch cluster_check --config $(CONFIG) --project $(PROJECT) --domain $(DOMAIN) \
		--training $(TRAINING),$(RLVR) doctor cluster-check --training $(TRAINING))

RUNS = 1
bench-learning: $(VENV)/.bench-ready  ## held-out pass rate over wall time, beside TRL's, as a chart: 12 minutes of training each (RUNS=1)
	@$(BIN)/python -m tests.bench.learning $(RUNS)

REGISTRY =
TAG = $(shell git describe --always --dirty)
EXTRAS =
CUBINS =
CONFIG = $(HOME)/.flyte/config.yaml
PROJECT = flytesnacks
DOMAIN = development
ACCELERATOR = cuda
TAGGED = $(TAG)$(if $(filter none,$(ACCELERATOR)),-cpu)
REGISTERED = $(foreach name,data generation training,--image $(name)=$(REGISTRY)/rlvr-$(name):$(TAGGED))
images: | registry-is-named accelerator-is-known  ## builds the images of all tasks and pushes them (REGISTRY=... [ACCELERATOR=none TAG=... EXTRAS=harness,wandb,mlflow CUBINS=https://flashinfer.ai/whl])
	@for name in data generation training; do image=$(REGISTRY)/rlvr-$$name:$(TAGGED); \
		DOCKER_BUILDKIT=1 docker build -f images/Dockerfile --target $$name --build-arg accelerator=$(ACCELERATOR) --build-arg image=$$image \
		--build-arg extras=$(EXTRAS) --build-arg cubins=$(CUBINS) -t $$image . && docker push $$image || exit 1; done

register: $(VENV)/.ready | registry-is-named accelerator-is-known config-exists  ## registers the workflows with these images ([ACCELERATOR=none CONFIG= PROJECT= DOMAIN=])
	@$(BIN)/pyflyte --config $(CONFIG) register workflows --copy all --project $(PROJECT) --domain $(DOMAIN) $(REGISTERED)

registry-is-named:
	@test -n "$(REGISTRY)" || { echo "REGISTRY is missing: make images REGISTRY=registry.example/team"; exit 1; } >&2

accelerator-is-known:
	@case "$(ACCELERATOR)" in cuda|none) ;; *) echo "ACCELERATOR = $(ACCELERATOR) is neither cuda nor none"; exit 1;; esac >&2

config-exists:
	@test -f "$(CONFIG)" || { echo "CONFIG = $(CONFIG) is no file: make register CONFIG=the configuration of flytectl"; exit 1; } >&2

HOST = 127.0.0.1
PORT = 8440
WORKERS = 1
OPTIONS =
code-server: $(VENV)/.ready  ## runs programs for machines that may not (OPTIONS="--token-env NAME ..."; --help lists them)
	@$(BIN)/python -m tasks.verifiers.code.server --host $(HOST) --port $(PORT) --workers $(WORKERS) $(OPTIONS)

prune: $(VENV)/.ready  ## what can go of the outputs of local runs (OPTIONS=--yes removes it; --help lists them)
	@$(RLVR) prune $(OPTIONS)

clean:  ## outputs of local runs, and their cache
	rm -rf outputs

MACHINE = $(shell uname -s -m)
$(UV):
	@test "$(MACHINE)" = "Linux x86_64" || { echo "rlvr-flyte runs on Linux on x86-64, and this is $(MACHINE): \
	use WSL 2 on Windows, and elsewhere a Linux machine or a container of the platform linux/amd64"; exit 1; } >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet uv==0.13.8

$(VENV)/.ready: pyproject.toml images/lock-cpu.txt images/overrides-cpu.txt images/nltk-data.txt | $(UV)
	@echo "installing into $(VENV) ..."
	@$(INSTALL) -e '.[cpu,dev]'
	@$(BIN)/python -m images.nltk_data
	@$(BIN)/python -m compileall -q images tasks tests workflows
	@touch $@

.images/%/.ready: images/Dockerfile pyproject.toml images/lock-cpu.txt images/lock-cuda.txt images/overrides-cpu.txt images/nltk-data.txt | $(VENV)/.ready
	@echo "installing into .images/$* ..."
	@$(BIN)/python -m tests.images.environments $* .images/$*
	@touch $@

$(VENV)/.all-ready: $(VENV)/.ready
	@$(INSTALL) -e '.[cpu,dev,harness,wandb,mlflow]'
	@$(INSTALL) --no-deps $(PUBLISHED)
	@touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	@$(INSTALL) -e '.[cpu,dev,bench]'
	@touch $@
