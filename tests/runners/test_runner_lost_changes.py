"""The warning about changes that do not come back."""

from __future__ import annotations

import re
import warnings
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import lost_changes, references, scripts
from runner_support.executors import InlineExecutor
from runner_support.runner_classes import OneChunk
from runner_support.scenarios import (
    build,
    collect,
    expected_warnings_ignored,
    give_scripts,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST_WORDS = "Changes to attributes not listed in synced_attributes are lost"


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """Messages of the warnings about lost changes during the test."""
    found = _Messages()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found.caught = caught
        yield found


class _Messages(list[str]):
    caught: Any

    def take(self) -> list[str]:
        """The messages since the last call."""
        texts = [
            str(entry.message)
            for entry in self.caught
            if str(entry.message).startswith("Changes to attributes")
        ]
        assert all(
            entry.category is UserWarning
            for entry in self.caught
            if str(entry.message).startswith("Changes to attributes")
        )
        self.caught.clear()
        return texts


def expected_message(names: str, cls: str = "Scripted", runner: str | None = None) -> str:
    runner = runner or MultiProcessAgentParallelRunner.__name__
    return (
        "Changes to attributes not listed in synced_attributes are lost: "
        f"{cls} assigned or deleted {names} in submit_orders on a worker process of {runner}. "
        f"List them in {cls}.synced_attributes to keep the changes."
    )


def reported_names(texts: list[str]) -> list[str]:
    found = []
    for text in texts:
        match = re.search(r"assigned or deleted (.*) in submit_orders on a worker", text)
        assert match is not None
        found += re.findall(r"'([^']*)'", match[1])
    return found


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_text(scripted: Any, messages: Any, start_method: str) -> None:
    runner = scripted([lost_changes.assign_a_and_b], start_method=start_method)
    collect(runner)
    assert messages.take() == [expected_message("'a', 'b'")]


class MyRunner(MultiProcessAgentParallelRunner):
    pass


def test_text_names_the_classes(scripted: Any, messages: Any) -> None:
    runner = scripted([lost_changes.assign_time], cls="FirstClass", runner_class=MyRunner)
    collect(runner)
    assert messages.take() == [expected_message("'step_0'", "FirstClass", "MyRunner")]


def test_once_per_class_and_name(scripted: Any, messages: Any) -> None:
    runner = scripted([lost_changes.assign_a_and_b] * 3, workers=2, steps=3)
    runner._run()
    assert messages.take() == [expected_message("'a', 'b'")]


def test_new_names_are_reported_later(scripted: Any, messages: Any) -> None:
    runner = scripted([lost_changes.assign_time] * 2, steps=3)
    runner._run()
    assert messages.take() == [expected_message(f"'step_{i}'") for i in range(3)]


def test_known_names_are_left_out_of_later_messages(scripted: Any, messages: Any) -> None:
    runner = scripted([lost_changes.add_through_dict])
    agent = runner.simulator.agents[0]
    agent.removed = 1
    collect(runner)
    assert messages.take() == [expected_message("'added', 'removed'")]
    agent.script = lost_changes.assign_a_and_b
    collect(runner)
    assert messages.take() == [expected_message("'a', 'b'")]
    agent.script = lost_changes.add_through_dict
    collect(runner)
    assert messages.take() == []


def test_every_runner_warns_anew(scripted: Any, messages: Any) -> None:
    for _ in range(2):
        collect(scripted([lost_changes.assign_a_and_b]))
        assert messages.take() == [expected_message("'a', 'b'")]


def test_every_class_has_its_own_message(messages: Any) -> None:
    settings = scripted_settings(2, steps=2, cls="FirstClass")
    settings["simulation"]["agents"].append("Second")
    settings["Second"] = {**settings["Agents"], "class": "SecondClass"}
    runner = build(MultiProcessAgentParallelRunner, settings, numParallel=2, startMethod="fork")
    with expected_warnings_ignored():
        runner._setup()
    give_scripts(runner, [lost_changes.assign_a_and_b] * 4)
    runner._run()
    assert sorted(messages.take()) == [
        expected_message("'a', 'b'", "FirstClass"),
        expected_message("'a', 'b'", "SecondClass"),
    ]


def test_equal_values_are_other_objects() -> None:
    """Otherwise the table of what is not reported would say nothing about equality."""
    singletons = {"equal empty str", "equal bool", "equal none"}
    for name, (before, after) in lost_changes.NOT_REPORTED.items():
        if name not in singletons and "same" not in name:
            assert after(before) is not before, name


def test_which_assignments_are_reported(scripted: Any, messages: Any) -> None:
    """All rules of equality at once; see the tables in ``lost_changes``."""
    runner = scripted([lost_changes.assign_all])
    agent = runner.simulator.agents[0]
    for table in (lost_changes.REPORTED, lost_changes.NOT_REPORTED):
        for name, (before, _) in table.items():
            setattr(agent, name, before)
    collect(runner)
    texts = messages.take()
    assert len(texts) == 1
    reported = reported_names(texts)
    assert set(lost_changes.REPORTED) - set(reported) == set()
    assert set(lost_changes.NOT_REPORTED) & set(reported) == set()
    assert reported == sorted(lost_changes.REPORTED)


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        (lost_changes.delete_a, ["a"]),
        (lost_changes.add_through_dict, ["added", "removed"]),
        (lost_changes.replace_dict, ["added"]),
        (lost_changes.add_and_remove, []),
        (lost_changes.change_in_place, []),
        (lost_changes.replace_what_cannot_be_listed, []),
        (scripts.buy, []),
    ],
)
def test_which_other_changes_are_reported(
    scripted: Any, messages: Any, script: Callable[..., Any], reported: list[str]
) -> None:
    runner = scripted([script])
    agent = runner.simulator.agents[0]
    agent.a = 1
    agent.removed = None
    agent.items = []
    agent.mapping = {"k": 1}
    agent.array = np.zeros(2)
    agent.nested = [[1]]
    collect(runner)
    assert reported_names(messages.take()) == reported


def test_slots_are_not_reported(scripted: Any, messages: Any) -> None:
    runner = scripted([lost_changes.change_slot], cls="SlotsAndProperty")
    agent = runner.simulator.agents[0]
    agent.slot = 1
    agent.other_slot = 2
    collect(runner)
    assert messages.take() == []
    assert agent.slot == 1


def test_listed_names_are_not_reported(scripted: Any, messages: Any) -> None:
    runner = scripted([lost_changes.assign_a_and_b], listed=("a",))
    collect(runner)
    assert messages.take() == [expected_message("'b'")]


def test_everything_listed(scripted: Any, messages: Any) -> None:
    runner = scripted([references.change_attributes], listed=("count", "temporary", "fresh"))
    agent = runner.simulator.agents[0]
    agent.count = 0
    agent.items = []
    agent.temporary = 1
    collect(runner)
    assert messages.take() == []


def test_only_an_agents_own_changes_count(scripted: Any, messages: Any) -> None:
    """What others do to an agent before or after its own call is not its doing."""
    runner = scripted(
        [lost_changes.change_others, scripts.buy, lost_changes.change_others, scripts.draw],
        runner_class=OneChunk,
    )
    collect(runner)
    assert messages.take() == []


def test_other_executors(scripted: Any, messages: Any) -> None:
    class Inline(MultiProcessAgentParallelRunner):
        def _create_executor(self) -> Executor:
            return InlineExecutor()

    runner = scripted([lost_changes.assign_a_and_b] * 2, runner_class=Inline)
    collect(runner)
    assert messages.take() == [expected_message("'a', 'b'", runner="Inline")]
    assert not hasattr(runner.simulator.agents[0], "a")


def test_can_be_turned_into_an_error_by_its_first_words(scripted: Any) -> None:
    runner = scripted([lost_changes.assign_a_and_b] * 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=FIRST_WORDS)
        with pytest.raises(UserWarning, match=FIRST_WORDS):
            runner._run()
    assert runner.executor is None
