# Everything runs in .venv; `setup` makes it and every other target depends on it.
PYTHON ?= python3
# Address of an additional package index, for example one with CPU-only builds of torch.
EXTRA_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INDEX := $(if $(EXTRA_INDEX),--extra-index-url $(EXTRA_INDEX))
STAMP := $(VENV)/.ready
SHARD ?= 1/1
# Processes of the default suite; those of one module stay in one, so that tests which share an engine stay together.
WORKERS ?= 2
ARGS ?=
# Two threads on both sides unless the caller says otherwise: the number of threads changes some bits.
export OMP_NUM_THREADS ?= 2
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1

SET ?= tuning
SEED ?=
ONLY ?=

.PHONY: setup setup-ascend demo test test-slow pairwise faults lint typecheck-cann format bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	@echo "setup: installing torch, the engines and the tools into $(VENV); this takes minutes, once"
	@PYTHON="$(PYTHON)" VENV="$(VENV)" INDEX="$(INDEX)" bash scripts/setup.sh
	@touch $@

# The real vllm-ascend sources of two versions, each in its own environment, for the slow tests in tests/ascend.
setup-ascend: setup
	@VENV="$(VENV)" INDEX="$(INDEX)" bash scripts/setup-ascend.sh

demo: setup
	$(BIN)/logdiff demo $(ARGS)

test: setup
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile $(ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m slow --shard $(SHARD) $(ARGS)

# The NPU kernels in the twin, on two cores: every pair of case, law, architecture, cores, Mmad model, length, dtype.
pairwise: setup
	@run() { OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/kernels/ascendc/test_covering_pairs.py --shard $$1/2 $(ARGS); }; \
	run 2 & run 1; first=$$?; wait $$! && exit $$first

# `logdiff diagnose` on the fault corpus (docs/faults.md): SET=tuning|scoring|all SEED=N ONLY="pattern ...".
faults: setup
	@$(BIN)/python -m tests.faults --set $(SET) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The Ascend C sources against the headers of your own CANN; skipped where ASCEND_HOME_PATH is not set.
typecheck-cann: setup
	$(BIN)/python -m logdiff_kernels.build.typecheck

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .venv-ascend-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
