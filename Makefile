# The front door. `make demo` and `make test` need only python3 (3.11+, venv) and make.
#
#   PIP_ARGS     extra arguments for pip, e.g. PIP_ARGS="--index-url https://my.index/simple"
#   CONSTRAINTS  the pins to install with; CONSTRAINTS=/dev/null takes whatever pyproject.toml allows
#   PYTHON       the interpreter that makes .venv

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PIP_ARGS ?=
BIN := $(VENV)/bin
# charts that stand in the documentation
PICTURES := lineup ops_h200_graph audit_image audit_far-order lens_image_attention lens_wiki_attention atlas

# Virtual machines that advertise AMX without allowing it kill bfloat16 matmuls with SIGILL.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.DEFAULT_GOAL := help
.PHONY: help demo test lint format test-slow test-kernels test-faults test-adversarial test-gpu bench report docs docs-serve hub-kernel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c $(CONSTRAINTS) -e ".[dev]"
	@touch $@

demo: $(BIN)/.installed ## train four small models side by side, on a CPU, in three minutes
	$(BIN)/longlens demo

test: lint ## everything CI checks: lint, types, import contract, test suite
	$(BIN)/python -m pytest -n auto
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto -m kernels_short

lint: $(BIN)/.installed ## ruff, mypy --strict and the import contract
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(BIN)/.installed ## rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test-slow: $(BIN)/.installed ## the tests that take minutes
	$(BIN)/python -m pytest -n auto -m slow

test-kernels: $(BIN)/.installed ## the logic of the Triton kernels, in Triton's interpreter
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto -m kernels

test-faults: $(BIN)/.installed ## the tests that kill processes on purpose
	$(BIN)/python -m pytest -m faults

test-adversarial: $(BIN)/.installed ## seeded random attacks, counted; RECORD=1 writes docs/reliability.md
	ADVERSARIAL_RECORD=$(RECORD) $(BIN)/python -m pytest -s -m adversarial tests/adversarial

test-gpu: $(BIN)/.installed ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

bench: $(BIN)/.installed ## LaS against plain attention on this machine
	$(BIN)/longlens bench ops

report: $(BIN)/.installed ## report.html from results/, and the tables and pictures of the documentation
	$(BIN)/longlens report results -o report.html --pictures docs/pictures $(PICTURES) --update README.md docs/atlas.md docs/audit.md docs/farfield.md docs/results.md docs/speed.md docs/tasks.md docs/training.md docs/zoo.md

docs: $(BIN)/.installed ## the documentation as a site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: $(BIN)/.installed ## the same at http://127.0.0.1:8000, built anew as you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

hub-kernel: $(BIN)/.installed ## LaS attention as a kernel of the Hugging Face Hub, in build/hub-kernel
	$(BIN)/python hub/make.py $(if $(REPO_ID),--repo-id $(REPO_ID))

clean: ## remove .venv and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
