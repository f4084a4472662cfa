# `make demo` and `make test` need only Python 3.11 or later and make; the rest is set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
TEST_ARGS ?=
BENCHMARK_ARGS ?=

.PHONY: demo test benchmark lint types check clean

demo: $(VENV)/ready
	$(BIN)/python -m examples.summarize_docstrings $(DEMO_ARGS)

test: $(VENV)/ready
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 25 $(TEST_ARGS)

benchmark: $(VENV)/ready
	$(BIN)/python -m examples.benchmarks $(BENCHMARK_ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The package as users get it: a wheel in an environment of its own, imported from another folder and type-checked.
types: $(VENV)/ready
	rm -rf dist build .venv-wheel
	$(BIN)/python -m build --wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd dist && ../.venv-wheel/bin/python -c "import bertscore_tm.losses, bertscore_tm.callbacks; from bertscore_tm import BERTScore, bert_score; print('imported from', bertscore_tm.__file__)"
	.venv-wheel/bin/python -c "import bertscore_tm.losses, bertscore_tm.callbacks; print('imported from the checkout')"
	.venv-wheel/bin/python -m pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[plot,cli]" mypy
	cd dist && ../.venv-wheel/bin/python -m mypy --config-file ../pyproject.toml -p bertscore_tm

check: lint test types

# torch goes first and alone: the constraints file picks the build, and everything after it finds torch in place.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[plot,cli,demo,dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-wheel build dist outputs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
