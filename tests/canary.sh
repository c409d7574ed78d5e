#!/usr/bin/env bash
# Runs the tests of every part of the package on the newest and on the oldest versions that setup.py
# allows, of everything that the package itself needs, each in a virtual environment of its own.
#
#     tests/canary.sh PYTHON FOLDER [FOLDER OF TESTS...]
set -eu
python=$1 folder=$2
shift 2
cd "$(dirname "$0")/.."

lowest() { # The lower bound of a requirement, as a version to install.
    sed -n "s/^ *\"$1>=\([0-9.]*\)[,\"].*/\1/p" setup.py
}

test $# -gt 0 || set -- tests/[a-z]*/
tests=("$@")

run() { # NAME REQUIREMENT...
    local environment=$folder/$1
    shift
    test -x "$environment/bin/python" || "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
        -e ".[audit,report,statistics]" "pytest>=9" "hypothesis>=6.100" "mpmath>=1.3" "$@"
    "$environment/bin/python" -c 'from importlib.metadata import version
import platform
print(f"Python {platform.python_version()},", "Keras", version("keras"), "on TensorFlow",
      version("tensorflow"), "with NumPy", version("numpy"), "and SciPy", version("scipy"))'
    # Folders one after the other: what TensorFlow has compiled stays in the memory of a process.
    local failed=0
    for folder_of_tests in "${tests[@]}"; do
        "$environment/bin/python" -m pytest -q "$folder_of_tests" || failed=1
    done
    return $failed
}

run newest --upgrade tensorflow keras numpy scipy
run oldest "tensorflow==$(lowest tensorflow).*" "keras==$(lowest keras).*" \
    "tensorflow-probability==$(lowest tensorflow-probability).*" \
    "tf-keras==$(lowest tf-keras).*" "numpy==$(lowest numpy).*" "scipy==$(lowest scipy).*" \
    "cryptography==$(lowest cryptography).*" "dp-accounting==$(lowest dp-accounting).*"
