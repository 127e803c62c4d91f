"""Settings of JAX on which numbers depend are those of the main process on every worker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.experimental
from jax_support import reports
from jax_support.reports import NUMERIC_SETTINGS
from jax_support.running import jax_configured, run_scripted
from pams_parallel import JaxAgentParallelRunner
from runner_support.runner_classes import with_initializer

Found = tuple[dict[str, Any], dict[str, Any]]

ON_MAIN = {name: values[0] for name, values in NUMERIC_SETTINGS.items()}
OTHERS = {name: values[1] for name, values in NUMERIC_SETTINGS.items()}


def on_worker(runner_class: type[Any] = JaxAgentParallelRunner) -> Found:
    """Settings on a worker, and what they do there."""
    found = run_scripted(
        [reports.report_numeric_settings],
        listed=("report", "behaviour"),
        runner_class=runner_class,
    )
    assert found.warnings == []
    (agent,) = found.agents
    return agent.report, agent.behaviour


def on_main() -> Found:
    return (
        {name: getattr(jax.config, name) for name in NUMERIC_SETTINGS},
        reports.numeric_behaviour(),
    )


class OtherEnvironment(JaxAgentParallelRunner):
    def _get_worker_environment(self) -> dict[str, str]:
        others = {name.upper(): str(value) for name, value in OTHERS.items()}
        return {**super()._get_worker_environment(), **others}


@pytest.fixture(scope="module")
def defaults() -> tuple[Found, Found]:
    """Main process and worker without any setting."""
    return on_main(), on_worker()


@pytest.fixture(scope="module")
def applied() -> tuple[Found, Found]:
    """Main process and worker, all settings being set on the main process."""
    with jax_configured(**ON_MAIN):
        return on_main(), on_worker()


@pytest.fixture(scope="module")
def overridden_by_environment() -> tuple[Found, Found]:
    """Main process with other settings, and worker whose environment has settings of its own."""
    with jax_configured(**OTHERS):
        expected = on_main()
    with jax_configured(**ON_MAIN):
        return expected, on_worker(OtherEnvironment)


@pytest.fixture(scope="module")
def overridden_by_initializer() -> tuple[Found, Found]:
    """As with the environment, but the worker initializer sets them."""
    with jax_configured(**OTHERS):
        expected = on_main()
    runner_class = with_initializer(reports.apply_settings, (OTHERS,), JaxAgentParallelRunner)
    with jax_configured(**ON_MAIN):
        return expected, on_worker(runner_class)


def test_test_settings_make_a_difference(
    defaults: tuple[Found, Found], applied: tuple[Found, Found]
) -> None:
    """Otherwise the tests below could not fail."""
    for name in NUMERIC_SETTINGS:
        assert defaults[0][0][name] != applied[0][0][name]
        assert defaults[0][1][name] != applied[0][1][name]


def check(found: tuple[Found, Found], setting: str) -> None:
    (expected, expected_behaviour), (worker, behaviour) = found
    assert worker[setting] == expected[setting]
    assert behaviour[setting] == expected_behaviour[setting]


@pytest.mark.parametrize("setting", NUMERIC_SETTINGS)
def test_default(defaults: tuple[Found, Found], setting: str) -> None:
    check(defaults, setting)


@pytest.mark.parametrize("setting", NUMERIC_SETTINGS)
def test_setting_of_the_main_process(applied: tuple[Found, Found], setting: str) -> None:
    check(applied, setting)


@pytest.mark.parametrize("setting", NUMERIC_SETTINGS)
def test_worker_environment_wins(
    overridden_by_environment: tuple[Found, Found], setting: str
) -> None:
    check(overridden_by_environment, setting)


@pytest.mark.parametrize("setting", NUMERIC_SETTINGS)
def test_initializer_wins(overridden_by_initializer: tuple[Found, Found], setting: str) -> None:
    check(overridden_by_initializer, setting)


@pytest.fixture(scope="module")
def in_contexts() -> tuple[Found, Found]:
    """Main process and worker, all settings being set by the context managers of JAX."""
    with contextlib.ExitStack() as stack:
        for name, value in ON_MAIN.items():
            # Older versions have some of them elsewhere.
            manager = name.removeprefix("jax_")
            home = jax if hasattr(jax, manager) else jax.experimental
            stack.enter_context(getattr(home, manager)(value))
        return on_main(), on_worker()


@pytest.mark.parametrize("setting", NUMERIC_SETTINGS)
def test_setting_of_a_context(in_contexts: tuple[Found, Found], setting: str) -> None:
    """It holds for what ``SequentialRunner`` does in it, so it holds for the workers."""
    assert in_contexts[0][0][setting] == ON_MAIN[setting]
    check(in_contexts, setting)


def _set_late(agents: list[Any]) -> None:
    jax.config.update("jax_numpy_dtype_promotion", "strict")


class MakesExecutorLate(JaxAgentParallelRunner):
    """Has no executor yet when the set-up is over."""

    def _setup(self) -> None:
        super()._setup()
        self._shutdown_executor()


@pytest.mark.parametrize("prepare", [None, _set_late])
def test_settings_that_change_after_the_runner_was_made(
    prepare: Callable[[list[Any]], None] | None,
) -> None:
    """What counts is what holds when the workers are made."""
    setting = "jax_numpy_dtype_promotion"
    with jax_configured(**{setting: "standard"}):
        found = run_scripted(
            [reports.report_numeric_settings],
            listed=("report", "behaviour"),
            runner_class=MakesExecutorLate,
            prepare=prepare,
        )
    assert found.agents[0].report[setting] == ("standard" if prepare is None else "strict")


# As users write it: JAX is imported at the top level, and therefore on every spawned worker
# before anything can be configured there, but the setting stands under the guard.
SCRIPT = """
import json
import os
import random
import sys
import warnings

import jax
import jax.numpy as jnp
from pams.agents import Agent
from pams.order import LIMIT_ORDER, Order
from pams.runners import SequentialRunner
from pams_parallel import JaxAgentParallelRunner
from runner_support.scenarios import scripted_settings


@jax.jit
def third(x):
    return x / 3


class Thirds(Agent):
    synced_attributes = ("dtype",)

    def submit_orders(self, markets):
        value = third(jnp.asarray(markets[0].get_market_price()) + self.prng.random())
        self.dtype = str(value.dtype)
        return [
            Order(
                agent_id=self.agent_id, market_id=0, is_buy=self.prng.random() < 0.5,
                kind=LIMIT_ORDER, volume=1, price=float(value) * 3,
            )
        ]


class Overriding(JaxAgentParallelRunner):
    def _get_worker_environment(self):
        variables = json.loads(os.environ.get("PAMS_TEST_OVERRIDE", "{}"))
        return {**super()._get_worker_environment(), **variables}


def run(runner_class):
    settings = scripted_settings(4, steps=3, cls="Thirds")
    settings["Market"]["tickSize"] = 1e-12
    settings["simulation"]["numParallel"] = 2
    runner = runner_class(settings, prng=random.Random(1))
    runner.class_register(Thirds)
    runner._setup()
    runner._run()
    prices = [price.hex() for price in runner.simulator.markets[0].get_market_prices()]
    return [agent.dtype for agent in runner.simulator.agents], prices


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", sys.argv[1] == "x64")
    print(json.dumps([run(SequentialRunner), run(Overriding)]))
"""


@pytest.mark.parametrize(("argument", "dtype"), [("x64", "float64"), ("x32", "float32")])
def test_script_with_a_setting_under_the_main_guard(
    run_script: Any, argument: str, dtype: str
) -> None:
    done = run_script(SCRIPT, argument)
    assert done.returncode == 0, done.stderr
    sequential, parallel = json.loads(done.stdout.splitlines()[-1])
    assert sequential[0] == [dtype] * 4
    assert len(set(sequential[1])) > 1
    assert parallel == sequential


@pytest.mark.parametrize(("argument", "variable"), [("x64", "0"), ("x32", "1")])
def test_inherited_variable_does_not_count(run_script: Any, argument: str, variable: str) -> None:
    """The script has set something else since JAX was imported."""
    done = run_script(SCRIPT, argument, environment={"JAX_ENABLE_X64": variable})
    assert done.returncode == 0, done.stderr
    sequential, parallel = json.loads(done.stdout.splitlines()[-1])
    assert parallel == sequential


@pytest.mark.parametrize(
    ("argument", "variable", "dtype"), [("x64", "0", "float32"), ("x32", "1", "float64")]
)
def test_worker_environment_wins_if_jax_was_imported_before(
    run_script: Any, argument: str, variable: str, dtype: str
) -> None:
    override = json.dumps({"JAX_ENABLE_X64": variable})
    done = run_script(SCRIPT, argument, environment={"PAMS_TEST_OVERRIDE": override})
    assert done.returncode == 0, done.stderr
    _, parallel = json.loads(done.stdout.splitlines()[-1])
    assert parallel[0] == [dtype] * 4
