# Everything runs in .venv, made on first use; PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart cifar10 federation test test-slow lint docs format bench clean

quickstart: $(VENV)/.installed
	$(BIN)/python -m fuprune.main --config configs/quickstart.py --workdir runs/quickstart

# The published ResNet20 forgets trucks, beside the published retrained models.
PUBLISHED := results/cifar10_resnet20
cifar10: $(VENV)/.installed
	$(BIN)/python -m fuprune.main --config configs/cifar10_resnet_prune.py --workdir runs/cifar10 \
	  --config.model.load=$(PUBLISHED)_raw/models/raw.safetensors \
	  --config.audit.reference=$(PUBLISHED)_class9,$(PUBLISHED)_class9_retrained \
	  --config.fine_tune.seeds=1

# A SuperLink and three SuperNodes on loopback, with certificates: trains, forgets, reports.
federation: $(VENV)/.installed-flower
	rm -rf runs/federation
	OMP_NUM_THREADS=1 $(BIN)/python -m fuprune.flower.launch rehearse --folder runs/federation

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal
	@if [ -d tests/multidevice ]; then $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/multidevice; fi

test-slow: $(VENV)/.installed-dev
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest -q -m slow
	@if [ -d tests/multidevice ]; then JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest -q -m "" tests/multidevice; fi

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/shellcheck .ci/run $(wildcard launch/*.sh launch/*.sbatch benchmarks/*.sh)
	$(BIN)/python -c 'import sys, yaml; [list(yaml.safe_load_all(open(p))) for p in sys.argv[1:]]' \
	  CITATION.cff $(wildcard launch/*.yaml)

docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -W -q -b html docs build/site

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" bash benchmarks/setup.sh
	$(BIN)/python benchmarks/round_throughput.py

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache build dist

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fuprune needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# The stamps are newer than pyproject.toml once it is installed: a second `make` installs nothing.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-flower: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[flower]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/.installed $(VENV)/.installed-flower $@
