"""What the installed distribution says about itself, and what is in it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pams_parallel
import pytest

ROOT = Path(__file__).parents[2]
NAME = "pams-parallel"


def requirements(extra=None):
    """Requirements of the distribution or of one of its extras, without the marker."""
    found = set()
    for requirement in metadata.requires(NAME):
        text, _, marker = requirement.partition(";")
        extras = re.findall(r"extra == ['\"](\w+)['\"]", marker)
        if extra in extras or (extra is None and not extras):
            found.add(text.strip())
    return found


def names(texts):
    return {re.split(r"[<>=!~ ]", text)[0] for text in texts}


def test_tests_see_the_installed_package_and_not_the_sources():
    assert ROOT / "python" not in Path(pams_parallel.__file__).parents


def test_version_is_written_once():
    cargo = (ROOT / "Cargo.toml").read_text()
    (version,) = re.findall(r'^version = "(.+)"$', cargo, re.MULTILINE)

    assert metadata.version(NAME) == version
    assert pams_parallel.__version__ == version
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    others = [ROOT / "pyproject.toml", *ROOT.glob("python/**/*.py*"), *ROOT.glob("rust/**/*.rs")]
    assert len(others) > 10
    assert [path for path in others if f'"{version}"' in path.read_text()] == []


def test_requirements():
    # A lower bound for pams, because pip would take pams 0.0.2 rather than an older NumPy.
    (pams,) = (text for text in requirements() if text.startswith("pams"))

    assert set(re.findall(r"[<>=]+[\d.]+", pams)) == {">=0.3.0", "<1"}
    assert names(requirements()) == {"numpy", "pams", "tqdm"}
    assert metadata.metadata(NAME)["Requires-Python"] == ">=3.10"


def test_extras():
    assert set(metadata.metadata(NAME).get_all("Provides-Extra")) == {
        "jax",
        "test",
        "bench",
        "dev",
    }
    assert names(requirements("jax")) == {"jax", "flax"}
    assert {"pytest", "hypothesis", "psutil"} <= names(requirements("test"))
    assert {"pytest", "pytest-benchmark", "psutil"} <= names(requirements("bench"))
    assert {"maturin", "mypy", "ruff"} <= names(requirements("dev"))


def test_command_is_the_module():
    (command,) = metadata.entry_points(group="console_scripts", name=NAME)

    assert command.value == "pams_parallel.cli:main"


def test_licence():
    assert metadata.metadata(NAME)["License-Expression"] == "MIT"


def test_files():
    files = [str(path) for path in metadata.files(NAME)]
    package = [name for name in files if name.startswith("pams_parallel/")]

    assert {
        "pams_parallel/py.typed",
        "pams_parallel/_core.pyi",
        "pams_parallel/examples/flax.json",
        "pams_parallel/examples/index.json",
        "pams_parallel/examples/learning.json",
        "pams_parallel/cli/__init__.py",
    } <= set(package)
    assert len([name for name in package if re.search(r"/_core\..*(so|pyd)$", name)]) == 1
    assert any(name.endswith("licenses/LICENSE") for name in files)
    # Besides: what pip writes about the installation, and the script.
    others = [name for name in files if name not in package]
    assert [name for name in others if "dist-info" not in name and "bin/" not in name] == []
    kinds = {Path(name).suffix for name in package}
    assert kinds <= {".py", ".pyi", ".typed", ".json", ".so", ".pyd", ".pyc", ""}


def test_every_python_source_is_installed():
    installed = Path(pams_parallel.__file__).parent
    sources = ROOT / "python" / "pams_parallel"
    missing = [
        path.relative_to(sources)
        for path in sources.rglob("*")
        if path.suffix in {".py", ".pyi", ".typed", ".json"}
        and not (installed / path.relative_to(sources)).is_file()
    ]

    assert missing == []


OPTIONAL = ("jax", "flax", "torch")


@pytest.mark.parametrize("module", ["pams_parallel", "pams_parallel.cli"])
def test_import_needs_no_optional_library(module):
    # The finder stands in for libraries that may not be installed here.
    code = f"""
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            sys.exit(f"imports {{name}}")

sys.meta_path.insert(0, Finder())
import {module}
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_check_for_optional_libraries_works():
    code = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "jax":
            sys.exit(f"imports {name}")

sys.meta_path.insert(0, Finder())
import jax
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert "imports jax" in result.stderr
