# make run    set up everything and serve the demo on http://127.0.0.1:8000
# make test   set up everything and run the tests: all but those that take seconds each
PYTHON ?= python3
VENV := .venv
# cpu or gpu: which ONNX Runtime
RUNTIME ?= cpu
UV ?= uv
# a Python with PyTorch for CUDA: another one than that of .venv where nothing can be installed
GPU_PYTHON ?= $(VENV)/bin/python
# a process per core and two more, since some tests wait for servers and browsers; one thread of linear algebra each: more
# threads than cores only wait for each other; bytecode is kept, since some tests start the command line anew
PROCESSES ?= $(shell n=$$(($$(getconf _NPROCESSORS_ONLN) + 2)); echo $$((n < 8 ? n : 8)))
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n $(PROCESSES) --dist worksteal
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help lock run docs clients golden languages test test-ci test-all test-under-load sabotage coverage mutation lint bench bench-quick experiments-quick gpu sbom screenshots clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing packages"
	$(PIP) -e '.[$(RUNTIME),serve,train]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[$(RUNTIME),serve,train,dev]'
	@touch $@

run: $(VENV)/.installed
	$(VENV)/bin/secondread demo $(if $(PORT),--port $(PORT))
	exec $(VENV)/bin/secondread serve $(if $(PORT),--port $(PORT))

# make lint   format, rules of style and types
lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/oxlint --quiet -D correctness -D suspicious -A require-post-message-target-origin --deny-warnings --ignore-pattern '**/vendor/**' app/web/static tests/javascript
	$(VENV)/bin/mypy $(addprefix -p ,secondread app ml tests benchmarks experiments tools)

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow and not heavy and not gpu"

# make docs   build the documentation as a site into build/site; a warning is an error
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --quiet

# make clients   renew what is generated from the code: openapi.json, the clients, pages of the reference
clients: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tools.openapi_files
	$(VENV)/bin/python -m tools.reference_pages

# make golden   renew the golden files; legitimate only when an issue names the number or the document that changes
golden: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.golden

# make languages   find the sentences of the pages anew, say which have no translation yet, and compile the catalogues
languages: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tools.catalogues

# make test-ci   what CI runs after `make test`: kills, the adversary, all routes on PostgreSQL, two servers, fuzzing, the browser
test-ci: $(VENV)/.installed-dev
	$(PYTEST) -m "ci and slow and not heavy and not gpu"

# make test-all   before a release: every test on both databases, long runs, controls undone, mutants, benchmarks and experiments
test-all: lint
	$(PYTEST) --all-databases -m "not gpu"
	$(MAKE) sabotage mutation bench-quick experiments-quick

# make lock   pin what the images install by digest, to the versions of constraints.txt; needs uv
lock:
	for runtime in cpu gpu; do \
	  echo setuptools | $(UV) pip compile --quiet pyproject.toml - --extra $$runtime --extra serve --extra charts --extra oidc --extra s3 --extra otel \
	    -c constraints.txt --generate-hashes --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
	    --no-annotate --no-header --no-emit-index-url -o docker/requirements-$$runtime.lock || exit 1; \
	done

# make coverage   branches that the tests go through but for the long ones, and the lines that it does not
coverage: $(VENV)/.installed-dev
	$(PYTEST) -m "not heavy and not gpu" --cov --cov-report=term

# make mutation   mutants of the rules for reading and of the weights; those that survive are in docs/contribute/mutants.md
mutation: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(VENV)/bin/mutmut run
	$(VENV)/bin/mutmut results

# make test-under-load   `make test` with eight busy processes next to them: slow, and as green
test-under-load: $(VENV)/.installed-dev
	@pids=; for i in 1 2 3 4 5 6 7 8; do $(VENV)/bin/python -c 'while True: pass' & pids="$$pids $$!"; done; \
	  trap "kill $$pids" EXIT INT TERM; \
	  SECONDREAD_TEST_PATIENCE=10 $(PYTEST) -m "not slow and not heavy and not gpu"

# make sabotage   undo each control of the service while its test runs, and see the test fail
sabotage: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q --sabotage -m "not gpu"

# make sbom   what is installed with which licence, as CycloneDX: secondread.cdx.json
sbom: $(VENV)/.installed
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt cyclonedx-bom
	build/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o secondread.cdx.json $(VENV)/bin/python

# make bench   run the benchmarks that have goals of speed, save their results, and print the table of goal, reached, peers and limit
bench: $(VENV)/.installed-dev
	$(PIP) -e '.[bench]'
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.table --run

# make bench-quick   whether all benchmarks still run, in a few minutes and without peers; its figures mean nothing, and nothing is saved
bench-quick: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m benchmarks.table --quick

# make experiments-quick   whether the experiments still run, with few rounds; their figures mean nothing, and nothing is saved
experiments-quick: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m experiments

# make gpu   train and score on a CUDA device, beside the CPU
gpu: $(if $(filter $(VENV)/bin/python,$(GPU_PYTHON)),$(VENV)/.installed-dev)
	$(GPU_PYTHON) -m benchmarks.gpu $(ARGS)

# make screenshots   pictures of every page into screenshots/; ARGS=--docs renews those of README and tutorial
screenshots: $(VENV)/.installed-dev
	PYTHONPATH=. $(VENV)/bin/python tools/screenshots.py $(ARGS)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage mutants
