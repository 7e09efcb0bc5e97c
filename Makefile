# Everything a newcomer needs: `make demo` and `make test` create .venv and install what they use.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := .[timm,slides,ct,lazyslide,tables,slurm,dask,view,onnx,fast,search]
# Compiled modules are kept, but not beside the sources: tests start many processes.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/bytecode

.PHONY: demo test test-quick test-pages test-lowest test-all lint bench study benchmark docs dist install clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '$(EXTRAS)' --group dev || { \
	  echo 'make: the versions of constraints.txt are not all offered here; going on without them'; \
	  $(BIN)/pip install --quiet --disable-pip-version-check --editable '$(EXTRAS)' --group dev; }
	touch $@

demo: install  ## train ABMIL and SmAP on synthetic slides, compare them, draw maps next to the truth
	$(BIN)/smmil demo --out ./smmil-demo

lint: install  ## style, types and the order of the rooms
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/lint-imports > .venv/imports.log 2>&1 & imports=$$!; $(BIN)/mypy; typed=$$?; \
	  wait $$imports; ordered=$$?; cat .venv/imports.log; exit $$((typed + ordered))

# Tests wait for browsers, for servers and for programs they kill about a third of their time: a third process and the
# lint fill it on two cores. Lint speaks up only when it fails, and the tests have the last word otherwise.
WORKERS ?= 3
test test-all test-quick test-pages: export OMP_NUM_THREADS := 1
LINT_AND = $(MAKE) --no-print-directory lint > .venv/lint.log 2>&1 & lint=$$!; $(1); tests=$$?; \
  wait $$lint; linted=$$?; test $$linted = 0 || cat .venv/lint.log; exit $$((tests + linted))

test: install  ## everything that runs in minutes
	@$(call LINT_AND,$(BIN)/pytest -n $(WORKERS))

test-pages: install  ## all pages in a real browser, every command of the docs, the notebooks, the demo, planted truths, kills
	$(BIN)/pytest -n $(WORKERS) -m '' tests/browser tests/test_docs_run.py tests/test_notebooks.py tests/flows/test_demo.py \
	  tests/train/test_planted_targets.py tests/train/test_patient_runs.py tests/train/test_several_processes.py \
	  tests/experiments/test_runner.py tests/experiments/test_rotating.py

# Laws of the operator, the models and the metrics; no files, images or browsers.
QUICK := tests/test_graph.py tests/test_bag.py tests/test_losses.py tests/test_prediction.py tests/nn \
  tests/models/test_sm_family.py tests/evaluate --ignore=tests/evaluate/test_evaluate_command.py

test-quick: install  ## a minute: laws of operator, models and metrics, while you work on them
	$(BIN)/pytest -n 2 $(QUICK)

# Laws that use files, tables and commands, so that every direct dependency of the core takes part.
DOORS := tests/test_config.py tests/data/test_manifest.py tests/cli/test_cli.py tests/formats/test_lazyslide.py

test-lowest: .venv-lowest/installed  ## the same laws with the lowest versions that pyproject.toml allows (gigabytes)
	.venv-lowest/bin/python -m pytest -n 2 $(QUICK) $(DOORS)

.venv-lowest/installed: pyproject.toml benchmarks/dependencies.py
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-lowest/bin/python benchmarks/dependencies.py lowest > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check --constraint .venv-lowest/constraints.txt \
	  --editable '$(EXTRAS)' pytest pytest-xdist hypothesis httpx
	touch $@

test-all: install  ## the slow checks too
	@$(call LINT_AND,$(BIN)/pytest -n 2 -m '')

bench: install  ## ratios against torchmil, ABMIL and the matrix products that cannot be avoided
	$(BIN)/pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python benchmarks/sm_step.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/encoding.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/zoo_speed.py --n 1000

study: install  ## the published study again: make study IMAGES=folder of CRCHistoPhenotypes (hours; resumable)
	@test -n "$(IMAGES)" || { echo 'say where png/ and nuclei.csv are: make study IMAGES=folder'; exit 2; }
	$(BIN)/python benchmarks/evidence.py --images "$(IMAGES)"

benchmark: install  ## the localization benchmark: make benchmark [IMAGES=folder of CRCHistoPhenotypes] (hours; resumable)
	$(BIN)/python benchmarks/localization.py $(if $(IMAGES),--crchisto "$(IMAGES)")

docs: install  ## the documentation as a web site in site/
	$(BIN)/pip install --quiet --disable-pip-version-check --group docs
	IPYTHONDIR=$(CURDIR)/docs/.ipython $(BIN)/mkdocs build --strict  # runs the notebooks, some minutes

dist: install  ## wheel and source archive in dist/, checked
	$(BIN)/pip install --quiet --disable-pip-version-check --group release
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf .venv .venv-lowest site build dist smmil-demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
