"""Keys of ``simulation`` that the JAX runner reads."""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

pytest.importorskip("jax")

from jax_support.running import warnings_recorded
from pams_parallel import JaxAgentParallelRunner, MultiProcessAgentParallelRunner
from runner_support.scenarios import (
    build,
    expected_warnings_ignored,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTRIBUTES = {
    "jaxPlatforms": "jax_platforms",
    "jaxPreallocate": "jax_preallocate",
    "jaxMemoryFraction": "jax_memory_fraction",
    "jaxCompilationCacheDir": "jax_compilation_cache_dir",
    "jaxNumThreads": "jax_num_threads",
}

VALID = [
    ("jaxPlatforms", "cpu"),
    ("jaxPlatforms", "cuda"),
    ("jaxPlatforms", "cuda,cpu"),
    ("jaxPreallocate", True),
    ("jaxPreallocate", False),
    ("jaxMemoryFraction", 0.25),
    ("jaxMemoryFraction", 1.0),
    ("jaxMemoryFraction", 1),
    ("jaxMemoryFraction", 1e-300),
    ("jaxCompilationCacheDir", "jax-cache"),
    ("jaxNumThreads", 1),
    ("jaxNumThreads", 1000),
]

INVALID = {
    "jaxPlatforms": [None, "", 0, 1, True, False, b"cpu", ["cpu"], ("cpu",), {}, 1.5],
    "jaxPreallocate": [None, 0, 1, 1.0, "", "false", "true", b"true", [], [True]],
    "jaxMemoryFraction": [
        *(None, True, False, 0, 0.0, -0.0, -0.5, -1, 2, 1.1, math.nextafter(1.0, 2.0)),
        *(math.nan, math.inf, -math.inf, "", "0.5", b"0.5", [0.5], 0.5j, 10**400),
    ],
    "jaxCompilationCacheDir": [None, "", 0, True, b"cache", Path("cache"), ["x"], {}, "\udc80"],
    "jaxNumThreads": [None, 0, -1, 1.0, 2.5, "2", True, False, [2], math.nan, 2**31],
    "numParallel": [None, 0, -1, 1.0, "2", True, [2]],
    "startMethod": [None, "", "SPAWN", 1, ["spawn"]],
}


def make(runner_class: type[Any] = JaxAgentParallelRunner, **keys: Any) -> Any:
    return build(runner_class, scripted_settings(2), **{"numParallel": 1, **keys})


@pytest.fixture
def set_up() -> Iterator[Any]:
    """Factory of runners that have been set up; no worker starts before the first task."""
    runners: list[Any] = []

    def factory(runner_class: type[Any] = JaxAgentParallelRunner, **keys: Any) -> Any:
        runner = make(runner_class, **keys)
        runners.append(runner)
        with expected_warnings_ignored():
            runner._setup()
        return runner

    yield factory
    for runner in runners:
        runner._shutdown_executor()


@pytest.mark.parametrize(("key", "value"), VALID)
def test_valid_value(set_up: Any, key: str, value: Any) -> None:
    found = getattr(set_up(**{key: value}), ATTRIBUTES[key])
    assert found == value
    assert type(found) is (float if key == "jaxMemoryFraction" else type(value))


def test_attributes_without_keys(set_up: Any) -> None:
    runner = set_up()
    assert [getattr(runner, attribute) for attribute in ATTRIBUTES.values()] == [None] * 5


def test_attributes_before_the_setup() -> None:
    runner = make(**dict(VALID))
    assert [getattr(runner, attribute) for attribute in ATTRIBUTES.values()] == [None] * 5


def test_all_keys_together(set_up: Any) -> None:
    keys = dict(VALID)
    runner = set_up(**keys, startMethod="forkserver")
    assert {key: getattr(runner, ATTRIBUTES[key]) for key in keys} == keys
    assert (runner.start_method, runner.num_parallel) == ("forkserver", 1)


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in INVALID.items() for value in values]
)
def test_invalid_value(key: str, value: Any) -> None:
    """The error comes before anything has been started."""
    runner = make(**{key: value})
    children = psutil.Process().children(recursive=True)
    with expected_warnings_ignored(), pytest.raises(ValueError) as caught:  # noqa: PT011
        runner._setup()
    assert str(caught.value).startswith(f"simulation.{key} must be ")
    if value is not None and value != "" and value != 10**400:
        assert repr(value) in str(caught.value)
    assert runner.executor is None
    assert psutil.Process().children(recursive=True) == children


@pytest.mark.parametrize("key", INVALID)
def test_main_raises_for_an_invalid_value(key: str) -> None:
    with expected_warnings_ignored(), pytest.raises(ValueError, match=rf"^simulation\.{key} must "):
        make(**{key: []}).main()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        *((attribute, key) for key, attribute in ATTRIBUTES.items()),
        *((key.lower(), key) for key in ATTRIBUTES),
        *((key[0].upper() + key[1:], key) for key in ATTRIBUTES),
        ("jaxPlatform", "jaxPlatforms"),
        ("jaxPreallocation", "jaxPreallocate"),
        ("jaxMemFraction", "jaxMemoryFraction"),
        ("jaxCompilationCacheDirectory", "jaxCompilationCacheDir"),
        ("jaxNumThread", "jaxNumThreads"),
        ("num_parallel", "numParallel"),
        ("start_method", "startMethod"),
    ],
)
def test_key_that_is_nearly_right(set_up: Any, misspelt: str, meant: str) -> None:
    with warnings_recorded() as texts:
        runner = set_up(**{misspelt: "nonsense"})
    assert len([text for text in texts if misspelt in text and meant in text]) == 1
    assert len(texts) == 1
    assert [getattr(runner, attribute) for attribute in ATTRIBUTES.values()] == [None] * 5


@pytest.mark.parametrize("key", ["note", "jax", "memory", "threads", "seed"])
def test_other_keys_are_none_of_our_business(set_up: Any, key: str) -> None:
    with warnings_recorded() as texts:
        set_up(**{key: 1})
    assert texts == []


def test_right_keys_give_no_warning(set_up: Any) -> None:
    with warnings_recorded() as texts:
        set_up(**dict(VALID), startMethod="spawn")
    assert texts == []


def test_process_runner_takes_no_notice_of_the_keys(set_up: Any) -> None:
    with warnings_recorded() as texts:
        set_up(MultiProcessAgentParallelRunner, jaxNumThreads="nonsense", jaxPlatforms=None)
    assert [text for text in texts if "must be" in text] == []


def test_readme_lists_every_key() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert [key for key in INVALID if f"| `{key}`" not in readme] == []


def test_settings_are_not_changed(set_up: Any) -> None:
    runner = set_up(**dict(VALID))
    expected = scripted_settings(2)
    expected["simulation"].update(numParallel=1, **dict(VALID))
    assert runner.settings == expected


ENVIRONMENTS = [
    ({}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ({"jaxPreallocate": False}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ({"jaxPreallocate": True}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}),
    ({"jaxMemoryFraction": 0.25}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.25"}),
]


@pytest.mark.parametrize(("keys", "expected"), ENVIRONMENTS)
def test_worker_environment(
    monkeypatch: pytest.MonkeyPatch, set_up: Any, keys: dict[str, Any], expected: dict[str, str]
) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    found = set_up(**keys)._get_worker_environment()
    assert type(found) is dict
    assert all(isinstance(item, str) for pair in found.items() for item in pair)
    assert expected.items() <= found.items()


@pytest.mark.parametrize("value", [1e-5, 1e-17, 1 / 3, 1])
def test_memory_fraction_is_written_so_that_it_reads_back(set_up: Any, value: float) -> None:
    found = set_up(jaxMemoryFraction=value)._get_worker_environment()
    assert float(found["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == value


@pytest.mark.parametrize("key", ["jaxNumThreads", "jaxMemoryFraction"])
def test_huge_integer(set_up: Any, key: str) -> None:
    """One of more digits than Python likes to write."""
    with pytest.raises(ValueError, match=rf"^simulation\.{key} must be"):
        set_up(**{key: 10**5000})
