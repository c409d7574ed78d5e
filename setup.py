"""Metadata of the package; tool settings are in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
SOURCE = (ROOT / "tfdp" / "__init__.py").read_text()
# The site of the documents. `make test` builds it, too.
SITE = [
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.5,<10",
    "mkdocstrings[python]>=0.26,<2",
    # The last mkdocstrings for Python 3.10 does not know what came after.
    "pymdown-extensions>=10,<12; python_version<'3.11'",
]
VERSION = re.search(r'__version__ = "([^"]+)"', SOURCE)[1]

setup(
    name="tfdp",
    version=VERSION,
    description="Differential privacy for TensorFlow and Keras 3, with a ledger anybody can check",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(include=["tfdp", "tfdp.*"]),
    package_data={"tfdp": ["py.typed"], "tfdp.report": ["templates/*.j2"]},
    python_requires=">=3.10",
    install_requires=[
        "tensorflow>=2.18,<2.22",
        "keras>=3.12,<3.16",
        "tensorflow-probability>=0.25",
        "tf-keras>=2.18",
        "numpy>=1.26",
        "scipy>=1.12",
        "cryptography>=43",
        "dp-accounting>=0.5",
    ],
    extras_require={
        "audit": ["scikit-learn>=1.3", "matplotlib>=3.8"],
        "docs": SITE,
        "plots": ["matplotlib>=3.8"],
        "report": ["jinja2>=3.1", "matplotlib>=3.8"],
        "statistics": ["pandas>=2"],
        "tutorials": ["scikit-learn>=1.3", "matplotlib>=3.8", "jinja2>=3.1"],
        "tuning": ["optuna>=4", "keras-tuner>=1.4.7"],
        "test": [
            "pytest>=9",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "mpmath>=1.3",
            "ruff==0.17.5",
            "mypy==2.4.1",
            "scikit-learn>=1.3",
            "matplotlib>=3.8",
            "jinja2>=3.1",
            "tensorboard>=2.18",
            *SITE,
        ],
        "federated": ["flwr>=1.41,<1.42; python_version>='3.11'"],
    },
    entry_points={"console_scripts": ["tfdp = tfdp.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
