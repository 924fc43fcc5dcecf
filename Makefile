# `make demo` and `make test` do everything from a bare Python 3.11, set-up included.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= runs/catch-demo

.PHONY: demo test long lint format docs bench clean campaign

demo: $(VENV)/users  ## train an agent, evaluate it, draw its curve and film it
	@if [ -e $(DEMO) ]; then $(BIN)/discorl train --resume $(DEMO); \
	else $(BIN)/discorl train --env catch --seeds 3 --out $(DEMO); fi
	$(BIN)/discorl evaluate $(DEMO)
	@echo "Look at $(DEMO)/curve.png and $(DEMO)/episode.gif"

test: lint  ## lint, types, and all tests but the long ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 20

long: $(VENV)/developers  ## the tests that take minutes
	$(BIN)/python -m pytest -m long

campaign: $(VENV)/developers  ## thousands of attacks on commands and files, in a temporary folder
	$(BIN)/python tests/campaign --seed 0

lint: $(VENV)/developers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/developers
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/writers  ## the site, in site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/developers  ## speed, as ratios within one run; needs Disco103
	$(BIN)/python benchmarks/update.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/meta_gradient.py
	$(BIN)/python benchmarks/float32.py
	$(BIN)/python benchmarks/environments.py
	$(BIN)/python benchmarks/host.py

$(VENV)/users: pyproject.toml constraints.txt
	@echo "setting up $(VENV): pip installs JAX and the other dependencies; this takes about a minute, half of it without output"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/developers: $(VENV)/users
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .[dev,hub,optuna,wandb,jax-envs,host-envs]
	@touch $@

$(VENV)/writers: $(VENV)/users
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .[docs]
	@touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
