"""``pip install 'pams-parallel[jax]'`` in a fresh environment gives a pams and a JAX that run.

pip takes pams 0.0.2, which has no runner to build on, rather than an older NumPy, unless the
requirements keep it from doing so. Whether they do can only be seen by letting pip choose.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pams_parallel
import pytest

NAME = "pams-parallel"

# Downloads of 300 MB in the worst case.
pytestmark = pytest.mark.timeout(1500)

CHECK = """
import json
from importlib import metadata

import flax.linen
import jax
import jax.numpy as jnp
import pams
import pams.runners

assert issubclass(
    pams.runners.MultiProcessAgentParallelRunner, pams.runners.MultiThreadAgentParallelRunner
)
layer = flax.linen.Dense(1)
params = layer.init(jax.random.PRNGKey(0), jnp.ones(3))
value = float(jax.jit(layer.apply)(params, jnp.arange(3.0))[0])
names = ["pams", "jax", "jaxlib", "flax", "numpy"]
print(json.dumps({"value": value, **{name: metadata.version(name) for name in names}}))
"""

AGENTS = """
import jax
import jax.numpy as jnp
from pams.agents import Agent
from pams.order import LIMIT_ORDER, Order


@jax.jit
def forecast(weights, price):
    return weights.sum() * price


class Forecaster(Agent):
    def setup(self, settings, accessible_markets_ids, *args, **kwargs):
        super().setup(settings, accessible_markets_ids, *args, **kwargs)
        self.weights = jnp.full(4, 0.25 + self.prng.uniform(-0.001, 0.001))

    def submit_orders(self, markets):
        price = float(forecast(self.weights, markets[0].get_market_price()))
        is_buy = self.prng.random() < 0.5
        return [Order(self.agent_id, 0, is_buy, LIMIT_ORDER, 1, price=price)]
"""

SIMULATION = """
import json
import random

from agents import Forecaster
from pams.runners import SequentialRunner
from pams_parallel import JaxAgentParallelRunner

SETTINGS = {
    "simulation": {
        "markets": ["Market"],
        "agents": ["Agents"],
        "numParallel": 2,
        "sessions": [{
            "sessionName": "0", "iterationSteps": 3, "withOrderPlacement": True,
            "withOrderExecution": True, "withPrint": False, "maxNormalOrders": 4,
        }],
    },
    "Market": {"class": "Market", "tickSize": 0.00001, "marketPrice": 300.0},
    "Agents": {
        "class": "Forecaster", "numAgents": 4, "markets": ["Market"], "assetVolume": 50,
        "cashAmount": 10000,
    },
}


def prices(runner_class):
    runner = runner_class(SETTINGS, prng=random.Random(1))
    runner.class_register(Forecaster)
    runner._setup()
    runner._run()
    return runner.simulator.markets[0].get_market_prices()


if __name__ == "__main__":
    print(json.dumps([prices(SequentialRunner), prices(JaxAgentParallelRunner)]))
"""


def installed_wheel() -> Path | None:
    """The wheel from which the package under test was installed, if it is still there.

    That is what ``PAMS_PARALLEL_WHEEL`` names, or else what pip has noted. A wheel that has
    other contents than the installed package counts as another one.
    """
    if given := os.environ.get("PAMS_PARALLEL_WHEEL"):
        return Path(given).resolve(strict=True)
    origin = metadata.distribution(NAME).read_text("direct_url.json")
    if origin is None:
        return None
    path = Path(unquote(urlsplit(json.loads(origin)["url"]).path))
    if path.suffix != ".whl" or not path.is_file():
        return None
    package = Path(pams_parallel.__file__).parent
    with zipfile.ZipFile(path) as archive:
        sources = {
            name.removeprefix("pams_parallel/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("pams_parallel/") and name.endswith(".py")
        }
    installed = {
        str(file.relative_to(package)): file.read_bytes() for file in package.rglob("*.py")
    }
    return path if sources == installed else None


def requirements(extra: str) -> list[str]:
    """What pip would be asked for by ``pams-parallel[extra]``, besides the package itself."""
    found = []
    for requirement in metadata.requires(NAME) or ():
        text, _, marker = requirement.partition(";")
        extras = re.findall(r"extra == ['\"](\w+)['\"]", marker)
        if not extras or extra in extras:
            found.append(text.strip())
    return found


def run(*command: str, folder: Path, seconds: int = 600) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a fresh virtual environment in ``venv``."""
    folder = tmp_path_factory.mktemp("installation")
    made = run(sys.executable, "-m", "venv", "venv", folder=folder)
    assert made.returncode == 0, made.stderr
    return folder


def python(folder: Path) -> str:
    return str(folder / "venv" / "bin" / "python")


@pytest.fixture(scope="module")
def installed(environment: Path) -> Path:
    """The environment after ``pip install 'pams-parallel[jax]'``."""
    pip = (python(environment), "-m", "pip", "--no-input")
    probe = run(*pip, "download", "--no-deps", "--dest", "probe", "tqdm>=4.60", folder=environment)
    if probe.returncode != 0:
        pytest.skip(f"no package index within reach: {probe.stderr.splitlines()[-1]}")
    wheel = installed_wheel()
    # The wheel itself if there is one; else what its metadata asks for.
    wanted = [f"{NAME}[jax] @ {wheel.as_uri()}"] if wheel else requirements("jax")
    done = run(*pip, "install", "--no-compile", *wanted, folder=environment, seconds=1200)
    assert done.returncode == 0, done.stderr
    return environment


def test_requirements_name_jax_and_pams() -> None:
    """Otherwise the environment below would be that of something else."""
    names = {re.split(r"[<>=!~ ]", text)[0] for text in requirements("jax")}
    assert {"pams", "jax", "flax", "numpy"} <= names


def test_pip_chooses_a_pams_and_a_jax_that_run(installed: Path) -> None:
    done = run(python(installed), "-c", CHECK, folder=installed)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert tuple(map(int, found["pams"].split(".")[:2])) >= (0, 3)
    assert tuple(map(int, found["jax"].split(".")[:3])) >= (0, 4, 30)
    if sys.version_info < (3, 13):
        assert found["numpy"].startswith("1.")
    assert isinstance(found["value"], float)


def test_what_pip_chose_fits_together(installed: Path) -> None:
    done = run(python(installed), "-m", "pip", "check", folder=installed)
    assert done.returncode == 0, done.stdout


def test_wheel_runs_there(installed: Path) -> None:
    if installed_wheel() is None:
        pytest.skip("the package was not installed from a wheel that still exists")
    (installed / "agents.py").write_text(AGENTS)
    (installed / "simulation.py").write_text(SIMULATION)
    done = run(python(installed), "-W", "ignore", "simulation.py", folder=installed)
    assert done.returncode == 0, done.stderr
    sequential, parallel = json.loads(done.stdout.splitlines()[-1])
    assert len(set(sequential)) > 1
    assert parallel == sequential
