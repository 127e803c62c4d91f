"""``jaxNumThreads``: fewer threads per worker, the same results."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("jax")

from jax_support.running import run_scripted
from jax_support.thread_scripts import count_threads

if not os.path.isdir("/proc/self/task"):
    pytest.skip("threads are counted in /proc", allow_module_level=True)


def report(**keys: Any) -> dict[str, Any]:
    found = run_scripted([count_threads], **keys)
    assert found.warnings == []
    result: dict[str, Any] = found.agents[0].report
    return result


@pytest.fixture(scope="module")
def without_the_key() -> dict[str, Any]:
    return report()


@pytest.fixture(scope="module")
def one_thread() -> dict[str, Any]:
    return report(jaxNumThreads=1)


def test_default_leaves_jax_alone(without_the_key: dict[str, Any]) -> None:
    assert without_the_key["flags"] == os.environ.get("XLA_FLAGS")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="JAX has one thread anyway")
def test_one_thread_is_fewer_threads(
    without_the_key: dict[str, Any], one_thread: dict[str, Any]
) -> None:
    assert one_thread["after"] < without_the_key["after"]


def test_number_counts(one_thread: dict[str, Any]) -> None:
    """Compared with each other, as JAX has threads for other purposes, too."""
    four = report(jaxNumThreads=4)
    assert four["after"] > one_thread["after"]
    assert four["value"] == one_thread["value"]


def test_results_are_equal(without_the_key: dict[str, Any], one_thread: dict[str, Any]) -> None:
    assert one_thread["value"] == without_the_key["value"]


def test_workers_may_still_use_all_cpus(one_thread: dict[str, Any]) -> None:
    """The limit is for XLA; agents may have threads of their own."""
    assert one_thread["cpus"] == len(os.sched_getaffinity(0))


# Spawned workers import JAX with the script, before the limit can be set.
SCRIPT = """
import sys

import jax
from jax_support.running import run_scripted
from jax_support.thread_scripts import count_threads

if __name__ == "__main__":
    keys = {"jaxNumThreads": 1} if len(sys.argv) > 1 else {}
    found = run_scripted([count_threads], **keys)
    assert found.warnings == []
    print(found.agents[0].report["after"])
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="JAX has one thread anyway")
def test_limit_holds_if_jax_was_imported_before(run_script: Any) -> None:
    numbers = []
    for arguments in ((), ("limited",)):
        done = run_script(SCRIPT, *arguments)
        assert done.returncode == 0, done.stderr
        numbers.append(int(done.stdout.splitlines()[-1]))
    assert numbers[1] < numbers[0]


def test_flags_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = "--xla_cpu_enable_fast_math=false"
    monkeypatch.setenv("XLA_FLAGS", flag)
    assert flag in report(jaxNumThreads=1)["flags"]
    assert os.environ["XLA_FLAGS"] == flag
