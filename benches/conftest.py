"""Options and fixtures of the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import measure
import pytest

if TYPE_CHECKING:
    from measure import Sizes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--smoke", action="store_true", help="tiny sizes: show only that the benchmarks work"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "n_agents" in metafunc.fixturenames:
        metafunc.parametrize("n_agents", _sizes(metafunc.config).agents)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict) -> None:
    machine_info["pams_parallel"] = measure.machine()


def _sizes(config: pytest.Config) -> Sizes:
    return measure.SMOKE if config.getoption("--smoke") else measure.FULL


@pytest.fixture
def sizes(request: pytest.FixtureRequest) -> Sizes:
    return _sizes(request.config)
