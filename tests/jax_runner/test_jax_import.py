"""Who imports JAX, and what happens when it cannot be imported.

These tests do not need JAX: it is kept from being imported, or must not be.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# A stand-in that comes before the library on the path, for the main process and its workers.
BLOCKED = 'raise ImportError("blocked", name=__name__)\n'

SETTINGS = """
settings = {
    "simulation": {
        "markets": ["Market"],
        "agents": ["Agents"],
        "numParallel": 1,
        "sessions": [{
            "sessionName": "0", "iterationSteps": 1, "withOrderPlacement": True,
            "withOrderExecution": True, "withPrint": False, "maxNormalOrders": 2,
        }],
    },
    "Market": {"class": "Market", "tickSize": 0.01, "marketPrice": 300.0},
    "Agents": {
        "class": "FCNAgent", "numAgents": 2, "markets": ["Market"], "assetVolume": 50,
        "cashAmount": 10000, "fundamentalWeight": 1.0, "chartWeight": 0.0, "noiseWeight": 1.0,
        "noiseScale": 0.01, "timeWindowSize": 10, "orderMargin": 0.0,
    },
}
"""


def python(code: str, *path: str) -> subprocess.CompletedProcess[str]:
    lines = [f"import sys; sys.path[:0] = {list(path)!r}", code]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output(code: str, *path: str) -> list[str]:
    done = python(code, *path)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def without_jax(tmp_path: Path) -> str:
    """Folder that, on the path, keeps JAX and Flax from being imported."""
    for name in ("jax", "jaxlib", "flax"):
        (tmp_path / f"{name}.py").write_text(BLOCKED)
    return str(tmp_path)


IMPORTS_NOTHING = {
    "package": "import pams_parallel",
    "class": "from pams_parallel import JaxAgentParallelRunner",
    "command": "import pams_parallel.cli",
    "help": """
import contextlib
from pams_parallel.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
    main(["compare", "--help"])
""",
    "examples": "from pams_parallel import examples; examples.names(); examples.load('index')",
    "process runner": SETTINGS
    + """
from pams_parallel import MultiProcessAgentParallelRunner
settings["simulation"]["startMethod"] = "fork"
import contextlib
with contextlib.redirect_stdout(sys.stderr):
    MultiProcessAgentParallelRunner(settings).main()
""",
    "command with the process runner": """
import contextlib
from pams_parallel.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
    code = main(["compare", "index", "--steps", "1", "--quiet"])
    assert code == 0, code
""",
}


@pytest.mark.parametrize("code", IMPORTS_NOTHING.values(), ids=IMPORTS_NOTHING)
def test_imports_neither_jax_nor_flax(code: str) -> None:
    found = output(f"{code}\nprint('jax' in sys.modules, 'jaxlib' in sys.modules)")
    assert found == ["False", "False"]
    assert output(f"{code}\nprint('flax' in sys.modules)") == ["False"]


@pytest.mark.parametrize("code", IMPORTS_NOTHING.values(), ids=IMPORTS_NOTHING)
def test_works_without_jax(without_jax: str, code: str) -> None:
    output(code, without_jax)


@pytest.mark.parametrize("way", ["broken", "missing", "None in sys.modules"])
def test_constructor_without_jax(without_jax: str, way: str) -> None:
    code = {
        "broken": "",
        "missing": """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "jax":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
""",
        "None in sys.modules": "sys.modules['jax'] = None",
    }[way]
    code += f"""
{SETTINGS}
import multiprocessing, warnings
from pams_parallel import JaxAgentParallelRunner
warnings.simplefilter("ignore")
try:
    JaxAgentParallelRunner(settings)
except ImportError as error:
    print(error)
assert multiprocessing.active_children() == []
"""
    text = " ".join(output(code, *[without_jax] * (way == "broken")))
    assert "pip install 'pams-parallel[jax]'" in text


def test_constructor_names_the_cause(without_jax: str) -> None:
    code = f"{SETTINGS}\nimport pams_parallel\npams_parallel.JaxAgentParallelRunner(settings)"
    done = python(code, without_jax)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert "ImportError: blocked" in done.stderr


def test_command_without_jax(without_jax: str) -> None:
    code = """
from pams_parallel.cli import main
sys.exit(main(["compare", "index", "--runner", "jax", "--steps", "1", "--quiet"]))
"""
    done = python(code, without_jax)
    assert done.returncode in (2, 3)
    assert "pip install 'pams-parallel[jax]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_subclass_of_what_scripts_use_already() -> None:
    code = """
import pams.runners, pams_parallel, pams_parallel.runners
cls = pams_parallel.JaxAgentParallelRunner
assert issubclass(cls, pams_parallel.MultiProcessAgentParallelRunner)
assert issubclass(cls, pams.runners.MultiProcessAgentParallelRunner)
assert pams_parallel.runners.JaxAgentParallelRunner is cls
assert "JaxAgentParallelRunner" in pams_parallel.__all__
print(cls.default_start_method)
"""
    assert output(code) == ["spawn"]


def test_constructor_imports_jax() -> None:
    pytest.importorskip("jax")
    code = f"""
{SETTINGS}
import warnings
import pams_parallel
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pams_parallel.JaxAgentParallelRunner(settings)
print('jax' in sys.modules, 'flax' in sys.modules)
(text,) = (str(w.message) for w in caught if "is experimental" in str(w.message))
print(text.split()[0])
"""
    assert output(code) == ["True", "False", "JaxAgentParallelRunner"]
