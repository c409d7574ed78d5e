#!/usr/bin/env bash
# Runs the tests of what Keras and TensorFlow do not promise to keep, and of all engines' promises, on
# the oldest and on the newest versions that setup.py allows, each in a virtual environment of its own.
#
#     tests/canary.sh PYTHON FOLDER
set -eu
python=$1 folder=$2
cd "$(dirname "$0")/.."

lowest() { # The lower bound of a requirement, as a version to install.
    sed -n "s/.*\"$1>=\([0-9.]*\),<.*/\1/p" setup.py
}

run() { # NAME REQUIREMENT...
    local environment=$folder/$1
    shift
    test -x "$environment/bin/python" || "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
        -e . "pytest>=9" "hypothesis>=6.100" "$@"
    "$environment/bin/python" -c 'from importlib.metadata import version
print("Keras", version("keras"), "on TensorFlow", version("tensorflow"))'
    "$environment/bin/python" -m pytest -q tests/gradients/keras_internals_test.py \
        tests/gradients/effects_test.py tests/gradients/ignored_weights_test.py \
        tests/gradients/mixing_test.py tests/gradients/called_on_test.py
}

run newest --upgrade tensorflow keras
run oldest "tensorflow==$(lowest tensorflow).*" "keras==$(lowest keras).*"
