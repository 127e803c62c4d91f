"""Keys of ``simulation`` and the warnings and errors around them."""

from __future__ import annotations

import multiprocessing
import random
import warnings
from typing import TYPE_CHECKING, Any

import pams.runners
import pytest
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support.scenarios import CLASSES, build, expected_warnings_ignored, scripted_settings

if TYPE_CHECKING:
    from collections.abc import Callable


def settings_with(quota: int = 1000, **keys: Any) -> dict[str, Any]:
    settings = scripted_settings(2, quota)
    settings["simulation"].update(keys)
    return settings


def caught_warnings(function: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    assert all(issubclass(entry.category, UserWarning) for entry in caught)
    return [str(entry.message) for entry in caught]


def set_up_and_close(settings: dict[str, Any], runner_class: type[Any] | None = None) -> list[str]:
    """Warnings of making a runner, setting it up and closing it."""

    def make() -> None:
        runner = build_loudly(runner_class or MultiProcessAgentParallelRunner, settings)
        runner._setup()
        runner._shutdown_executor()

    return caught_warnings(make)


def build_loudly(runner_class: type[Any], settings: dict[str, Any]) -> Any:
    """As ``build``, which hides warnings."""
    runner = runner_class(settings, prng=random.Random(1))
    for cls in CLASSES:
        runner.class_register(cls)
    return runner


@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, "2", None, True, False, [2], float("nan")])
def test_invalid_num_parallel(value: Any) -> None:
    runner = build(MultiProcessAgentParallelRunner, settings_with(numParallel=value))
    with expected_warnings_ignored(), pytest.raises(ValueError, match=r"simulation\.numParallel"):
        runner._setup()
    assert runner.executor is None


@pytest.mark.parametrize("value", [None, "", "SPAWN", "Fork", " spawn", 1, True, [], {}, b"spawn"])
def test_invalid_start_method(value: Any) -> None:
    runner = build(MultiProcessAgentParallelRunner, settings_with(startMethod=value))
    with expected_warnings_ignored(), pytest.raises(ValueError) as caught:  # noqa: PT011
        runner._setup()
    message = str(caught.value)
    assert message.startswith("simulation.startMethod must be one of [")
    for method in multiprocessing.get_all_start_methods():
        assert method in message
    assert runner.executor is None


def test_invalid_start_method_is_not_saved_by_the_default() -> None:
    class Spawning(MultiProcessAgentParallelRunner):
        default_start_method = "spawn"

    runner = build(Spawning, settings_with(startMethod=None))
    with expected_warnings_ignored(), pytest.raises(ValueError, match=r"simulation\.startMethod"):
        runner._setup()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_valid_settings(method: str) -> None:
    runner = build(
        MultiProcessAgentParallelRunner, settings_with(startMethod=method, numParallel=2)
    )
    with expected_warnings_ignored():
        runner._setup()
    assert (runner.start_method, runner.num_parallel) == (method, 2)
    runner._shutdown_executor()


def test_settings_are_not_changed() -> None:
    settings = settings_with(startMethod="fork", numParallel=2)
    expected = settings_with(startMethod="fork", numParallel=2)
    set_up_and_close(settings)
    assert settings == expected


def test_experimental_warning() -> None:
    messages = caught_warnings(
        lambda: build_loudly(MultiProcessAgentParallelRunner, settings_with())
    )
    assert len(messages) == 1
    assert messages[0].startswith("MultiProcessAgentParallelRunner is experimental.")


def test_experimental_warning_names_the_subclass() -> None:
    class MyRunner(MultiProcessAgentParallelRunner):
        pass

    with pytest.warns(UserWarning, match=r"^MyRunner is experimental\."):
        MyRunner(settings_with())


def too_many_workers(messages: list[str]) -> list[str]:
    return [text for text in messages if "maximum number of parallel agents" in text]


def test_more_workers_than_agents_may_submit() -> None:
    """The warning is the one that pams gives."""

    class MyRunner(MultiProcessAgentParallelRunner):
        pass

    reference = type("MyRunner", (pams.runners.MultiProcessAgentParallelRunner,), {})
    settings = settings_with(quota=3, numParallel=4, startMethod="fork")
    found = too_many_workers(set_up_and_close(settings, MyRunner))
    assert len(found) == 1
    assert found == too_many_workers(set_up_and_close(settings, reference))
    assert "MyRunner" in found[0]
    assert "(3)" in found[0]
    assert "(4)" in found[0]


def test_largest_session_counts_for_the_number_of_workers() -> None:
    settings = settings_with(quota=1, numParallel=4, startMethod="fork")
    first = settings["simulation"]["sessions"][0]
    settings["simulation"]["sessions"].append(
        {**first, "sessionName": "another", "maxNormalOrders": 4}
    )
    assert too_many_workers(set_up_and_close(settings)) == []


@pytest.mark.parametrize("keys", [{"numParallel": 3}, {"numParallel": 2, "startMethod": "fork"}])
def test_no_other_warnings(keys: dict[str, Any]) -> None:
    messages = set_up_and_close(settings_with(quota=3, **keys))
    assert len(messages) == 1
    assert "is experimental" in messages[0]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("numparallel", "numParallel"),
        ("NumParallel", "numParallel"),
        ("num_parallel", "numParallel"),
        ("start_method", "startMethod"),
        ("startmethod", "startMethod"),
        ("StartMethod", "startMethod"),
    ],
)
def test_key_that_is_nearly_right(key: str, meant: str) -> None:
    value: Any = 2 if meant == "numParallel" else "spawn"
    messages = [
        text
        for text in set_up_and_close(settings_with(**{key: value}))
        if key in text and meant in text
    ]
    assert len(messages) == 1


@pytest.mark.parametrize("key", ["numparallel", "start_method"])
def test_key_that_is_nearly_right_has_no_effect(key: str) -> None:
    runner = build(MultiProcessAgentParallelRunner, settings_with(**{key: "nonsense"}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner._setup()
    assert runner.start_method is None
    runner._shutdown_executor()


@pytest.mark.parametrize("key", ["note", "numAgents", "method", "start", "seed"])
def test_other_keys_are_none_of_our_business(key: str) -> None:
    messages = set_up_and_close(settings_with(quota=1000, **{key: 1, "numParallel": 1}))
    assert [text for text in messages if key in text and "is experimental" not in text] == []


def test_keys_of_pams_give_no_warning() -> None:
    settings = settings_with(numParallel=1, fundamentalCorrelations={})
    assert len(set_up_and_close(settings)) == 1


def test_errors_of_pams_in_setup_leave_no_executor() -> None:
    settings = settings_with()
    del settings["Agents"]["cashAmount"]
    runner = build(MultiProcessAgentParallelRunner, settings)
    with expected_warnings_ignored(), pytest.raises(ValueError, match="cashAmount"):
        runner._setup()
    assert runner.executor is None


def test_missing_simulation_is_the_error_of_pams() -> None:
    with expected_warnings_ignored():
        runner = MultiProcessAgentParallelRunner({})
        with pytest.raises(ValueError, match="simulation is required"):
            runner._setup()
