# `make demo` and `make test` need only Python 3.11 or later and make. They install everything else in .venv.
PYTHON ?= python3
VENV := .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
# Versions that are installed. Empty: the newest ones.
CONSTRAINTS ?= --constraint constraints.txt
# If uv is installed, use it, because it is faster than pip.
UV := $(shell command -v uv)
ifdef UV
create = $(UV) venv --quiet --seed --allow-existing --python $(PYTHON) $(1)
install = $(UV) pip install --quiet --python $(1)/$(SCRIPTS)/python
else
create = $(PYTHON) -m venv $(1)
# Do not compile all installed files, most of which are never imported. Python compiles the others when it imports them.
install = $(1)/$(SCRIPTS)/python -m pip install --quiet --no-compile
endif
DEMO_ARGS ?=
TEST_ARGS ?=
# torch version for `make lowest`; the default CPU build avoids downloading gigabytes of CUDA packages.
LOWEST_TORCH ?= $(shell sed -n "s/^torch==//p" tests/lowest.txt)
# Let Python write bytecode: every worker and every process that tests start would compile all files again otherwise.
unexport PYTHONDONTWRITEBYTECODE
MODULE ?=
NEWEST_TORCH ?=
BENCHMARK_ARGS ?=
INSTALL_BROWSER := DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install --yes --no-install-recommends chromium
# Names of mutants: mutant 13 of each function that has one, about 180 in total.
MUTANTS ?= *__mutmut_13
MODEL ?= roberta-large
QUICK_TESTS := tests/repository/test_layers.py tests/matching/test_greedy.py tests/matching/test_scores.py \
	tests/alignment/test_alignment.py tests/alignment/test_data.py tests/alignment/test_display_tokens.py \
	tests/functional/test_bert_score.py tests/scoring/test_idf.py tests/metric/test_states.py tests/utilities/test_checks.py \
	tests/losses/soft/test_softmax_matching.py tests/losses/soft/test_relaxation.py tests/callbacks/test_loaders.py \
	tests/callbacks/test_hyperparameters.py tests/workflows/training/test_pytorch_lightning.py \
	tests/cli/test_score.py tests/cli/test_options.py tests/cli/test_encoder.py tests/cli/test_errors.py
# Tests of numbers that kernels compute, so that they depend on the processor's instructions. Identity, tokenizers, caches,
# errors and ranks do not. Models of unlisted types run through the code of the listed families.
AVX2_TESTS := tests/matching tests/device/test_onednn.py tests/device/test_precision.py tests/encoder/test_families.py \
	tests/encoder/test_forward.py tests/encoder/test_packing.py tests/encoder/test_relative_attention.py \
	tests/encoder/test_soft_tokens.py tests/losses/soft/test_loss.py tests/losses/soft/test_expectations.py \
	tests/losses/soft/test_output_layer.py tests/losses/soft/test_softmax_matching.py \
	tests/losses/sequence/test_minimum_risk.py tests/losses/sequence/test_sampling.py
LOWEST_TESTS := tests/repository/test_docstrings.py tests/repository/test_overrides.py tests/callbacks/test_scoring.py \
	tests/callbacks/test_loaders.py tests/callbacks/test_logged_keys.py tests/callbacks/test_corpus_warnings.py

.PHONY: demo test nightly quick avx2 mutants benchmark gpu parity lint dist release types check-wheel lowest newest engines docs docs-serve check browser ci clean

demo: $(VENV)/demo-ready
	$(BIN)/python -m examples.programs.demo $(DEMO_ARGS)

# All tests except those of `make nightly` and `make engines`. Three workers for two cores, because tests that start
# processes leave cores idle.
test: $(VENV)/ready
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal --durations 25 -m "not nightly" $(TEST_ARGS)

# Tests of the research programs: study, meta-evaluation, layers, parity and benchmarks.
nightly: $(VENV)/ready
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m nightly tests/examples $(TEST_ARGS)

# About one minute: the fast tests of the files in QUICK_TESTS, none that starts processes. `make quick MODULE=matching/greedy`
# runs tests/matching/test_greedy.py alone: MODULE is the path of a test file in tests/, without test_ and .py.
quick: $(VENV)/ready
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not slow and not distributed" \
		$(if $(MODULE),tests/$(dir $(MODULE))test_$(notdir $(MODULE)).py,$(QUICK_TESTS)) $(TEST_ARGS)

# Change operators, arguments and values of the code, one at a time, and list the changes that no test notices. mutmut
# matches the path of a file with the name of its module, so run it in a copy that has the layout of a wheel.
mutants: $(VENV)/ready
	rm -rf .mutants
	mkdir .mutants
	cp -R bertscore_tm tests examples pyproject.toml .mutants
	cp -R losses callbacks .mutants/bertscore_tm
	cd .mutants && OMP_NUM_THREADS=1 ../$(BIN)/python -m mutmut run "$(MUTANTS)"
	cd .mutants && ../$(BIN)/python -m mutmut results

benchmark: $(VENV)/ready
	$(BIN)/python -m examples.research.benchmarks $(BENCHMARK_ARGS)

# All tests and the checks of a GPU, in an environment that has a torch for it: make gpu PYTHON=path/to/python. Installs
# without the constraints, because they would replace this torch by a build for CPUs.
gpu:
	$(PYTHON) -m pip install --quiet --editable ".[plot,cli,demo,dev]"
	$(PYTHON) -m pytest --numprocesses 3 --dist worksteal $(TEST_ARGS)
	$(PYTHON) -m examples.research.benchmarks.gpu

# Compare scores with those of bert-score on the same encoder, a hub name or a folder: make parity MODEL=roberta-large.
parity: $(VENV)/ready
	$(BIN)/python -m examples.research.parity $(MODEL)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The sdist, and the wheel built from it.
dist: $(VENV)/ready
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation

# Build the files of a release. Fail if its tag TAG differs from the version, or if the changelog has no date for it.
release: dist
	test -f "dist/bertscore_tm-$(TAG:v%=%).tar.gz"
	grep "^## \[$(TAG:v%=%)\] - 20" CHANGELOG.md

# The package as users get it: a wheel in a new environment, imported from another folder and type-checked.
types: dist
	$(MAKE) check-wheel

# The checks of `types` for the wheel that is in dist. mypy writes no cache, because each run has a new environment.
check-wheel:
	rm -rf .venv-wheel
	$(call create,.venv-wheel)
	$(call install,.venv-wheel) $(CONSTRAINTS) torch
	$(call install,.venv-wheel) $(CONSTRAINTS) dist/*.whl
	cd dist && ../.venv-wheel/$(SCRIPTS)/python -c "import bertscore_tm.losses, bertscore_tm.callbacks; from bertscore_tm import BERTScore, bert_score; print('imported from', bertscore_tm.__file__)"
	.venv-wheel/$(SCRIPTS)/python -c "import bertscore_tm.losses, bertscore_tm.callbacks; print('imported from the checkout')"
	$(call install,.venv-wheel) $(CONSTRAINTS) "$$(echo dist/*.whl)[plot,cli]" mypy
	cd dist && ../.venv-wheel/$(SCRIPTS)/python -m mypy --cache-dir /dev/null --config-file ../pyproject.toml -p bertscore_tm

# Run the examples of the docstrings and short trainings with the lowest versions that pyproject.toml allows.
lowest: .venv-lowest/ready
	.venv-lowest/$(SCRIPTS)/python -m pytest -q -m "not slow and not distributed" $(LOWEST_TESTS)

# Run the tests with the newest versions, in a new environment. `make newest NEWEST_TORCH=2.13.0` pins torch, because the
# newest torch may download gigabytes of CUDA packages.
newest:
	rm -rf .venv-newest
	mkdir .venv-newest
	echo "$(if $(NEWEST_TORCH),torch==$(NEWEST_TORCH))" > .venv-newest/constraints.txt
	$(MAKE) test VENV=.venv-newest CONSTRAINTS="--constraint .venv-newest/constraints.txt"

# Run every block of examples/docs/many_machines.md with datasets, Ray, Spark and Dask. Spark needs Java.
engines: $(VENV)/engines-ready
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest --durations 10 tests/examples/test_engines.py $(TEST_ARGS)

# Build one site from the README, the pages and the docstrings. Its search needs a server: make docs-serve.
docs: $(VENV)/ready
	rm -rf site
	$(BIN)/python -m sphinx -W --keep-going --quiet -c examples/docs/site . site/html

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site/html 8000

# Run the tests of computed numbers as on a processor without AVX512.
avx2: $(VENV)/ready
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not slow and not distributed" $(AVX2_TESTS)

check: lint test avx2 types lowest docs

# Install Chromium for the tests of the report, which are skipped without it. Update the list of packages only if the
# installation fails, because the update takes time.
browser:
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || \
		(($(INSTALL_BROWSER) || (timeout 120 apt-get update && $(INSTALL_BROWSER))) > /dev/null 2>&1 < /dev/null || \
		echo "Chromium is missing and apt-get cannot install it: its tests will be skipped.")

# All checks that must pass before a change lands. Two run at a time, so that no core waits for a download or for the
# slowest test. The wheel is built before, because tests build it too, in the same folder.
ci:
	$(MAKE) --jobs 2 --output-sync=target browser lint dist docs lowest LOWEST_TORCH=$$(sed -n "s/^torch==//p" constraints.txt)
	$(MAKE) --jobs 2 --output-sync=target test check-wheel avx2

# Install torch first and alone, so that the constraints choose its build and the other packages find it installed.
$(VENV)/demo-ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): one to five minutes, most of it torch ..."
	$(call create,$(VENV))
	$(call install,$(VENV)) $(CONSTRAINTS) torch
	$(call install,$(VENV)) $(CONSTRAINTS) --editable ".[plot,demo]"
	touch $@

$(VENV)/ready: $(VENV)/demo-ready
	@echo "Adding the tools of development to $(VENV): about a minute ..."
	$(call install,$(VENV)) $(CONSTRAINTS) --editable ".[plot,cli,demo,dev,docs]"
	touch $@

$(VENV)/engines-ready: $(VENV)/ready
	$(call install,$(VENV)) $(CONSTRAINTS) --editable ".[engines]"
	touch $@

.venv-lowest/ready: pyproject.toml constraints.txt tests/lowest.txt
	$(call create,.venv-lowest)
	sed "s/^torch==.*/torch==$(LOWEST_TORCH)/" tests/lowest.txt > .venv-lowest/lowest.txt
	$(call install,.venv-lowest) --constraint .venv-lowest/lowest.txt torch
	$(call install,.venv-lowest) --constraint .venv-lowest/lowest.txt --editable ".[plot,report,cli,demo]" pytest
	touch $@

clean:
	rm -rf $(VENV) .venv-newest .venv-wheel .venv-lowest .mutants build dist site outputs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
