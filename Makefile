# make test, make demo, make docs: each needs only Python 3.10-3.13 and make. Everything goes to .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=15

export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: test lint canary package demo docs clean

# setup.py decides what is installed; a change of it installs again.
$(VENV)/.test: setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

$(VENV)/.demo: setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[tutorials]"
	touch $@

$(VENV)/.docs: setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# As many workers as there are cores: a second thread for products would only wait for a core. In
# three parts: what TensorFlow has compiled stays in the memory of a worker until it ends, and in
# one go two of them came to 16 GiB.
test: export OPENBLAS_NUM_THREADS ?= 1
test: $(VENV)/.test lint
	$(PYTEST) tests/gradients
	$(PYTEST) tests/keras
	$(PYTEST) --ignore=tests/gradients --ignore=tests/keras

# The oldest and the newest Keras and TensorFlow that setup.py allows.
canary:
	tests/canary.sh $(PYTHON) $(VENV)-canary

# The wheel and the sdist, checked and used without TensorFlow.
package:
	tests/package.sh $(PYTHON) $(VENV)-package

demo: $(VENV)/.demo
	$(BIN)/python tutorials/digits_demo.py --out demo_output

# The site, in site/; a warning is an error. (With --quiet, MkDocs would not count warnings.)
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(VENV)-canary $(VENV)-package demo_output site
