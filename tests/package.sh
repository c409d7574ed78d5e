#!/usr/bin/env bash
# Builds what would be published, and uses it as an auditor does: the wheel and the sdist, each in a
# virtual environment of its own, beside NumPy and SciPy and nothing else.
#
#     tests/package.sh PYTHON FOLDER
set -eu
python=$1
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "$0")/.."
golden=$PWD/tests/ledger/golden

lowest() { # The lower bound of a requirement, as a version to install.
    sed -n "s/.*\"$1>=\([0-9.]*\)\".*/\1/p" setup.py
}

install() { # ENVIRONMENT ARGUMENT...
    test -x "$folder/$1/bin/python" || "$python" -m venv "$folder/$1"
    "$folder/$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

use() { # ENVIRONMENT FILE
    install "$1" --no-deps --force-reinstall "$2"
    # Isolated, so that folders of tests are not taken for packages.
    "$folder/$1/bin/python" -I "$PWD/tests/without_tensorflow.py" "$golden" "$folder/$1/bin/tfdp"
}

install build build twine
rm -rf "$folder/dist"
"$folder/build/bin/python" -m build --outdir "$folder/dist" . > "$folder/build.log" 2>&1 || {
    cat "$folder/build.log"
    exit 1
}
"$folder/build/bin/python" -m twine --no-color check --strict "$folder"/dist/*
"$python" - "$PWD" "$folder"/dist/*.whl "$folder"/dist/*.tar.gz <<'PYTHON'
import pathlib, sys, tarfile, zipfile

root = pathlib.Path(sys.argv[1])
found = (p for p in (root / "tfdp").rglob("*") if "__pycache__" not in p.parts and p.is_file())
ours = {str(p.relative_to(root)) for p in found}
wheel = {n for n in zipfile.ZipFile(sys.argv[2]).namelist() if ".dist-info/" not in n}
sdist = {n.partition("/")[2] for n in tarfile.open(sys.argv[3]).getnames()}
packed = [n for n in ours if n.endswith((".py", "py.typed", ".j2"))]
if set(packed) != ours or wheel != ours or not sdist >= ours | {"LICENSE", "README.md", "CHANGELOG.md"}:
    sys.exit(f"packed wrongly: {sorted(wheel ^ ours)}, {sorted(ours - sdist)}")
if any(n.startswith(("tests/", "docs/", "tutorials/", "benchmarks/")) for n in wheel | sdist):
    sys.exit("more than the package is packed")
print(f"{len(wheel)} files are packed, with py.typed and the templates, and no tests")
PYTHON
install newest --upgrade numpy scipy
use newest "$folder"/dist/*.whl
install oldest --only-binary :all: "numpy==$(lowest numpy).*" "scipy==$(lowest scipy).*"
use oldest "$folder"/dist/*.tar.gz
