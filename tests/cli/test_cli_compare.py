"""``pams-parallel compare``."""

from __future__ import annotations

import multiprocessing
import re

import pytest


@pytest.mark.parametrize("as_module", [False, True])
def test_identical_outcomes(command, write_config, as_module):
    result = command("compare", write_config(), as_module=as_module)

    assert result.returncode == 0, result.stderr
    assert "The outcomes are identical" in result.stdout
    assert "config.json: 1 market, 8 agents, 8 steps, seed 1; 2 workers" in result.stdout


def test_table_has_the_seconds_of_both_runners_and_their_ratio(command, write_config):
    lines = command("compare", write_config()).stdout.splitlines()

    assert lines[-3].split() == [
        "seconds",
        "SequentialRunner",
        "MultiProcessAgentParallelRunner",
        "ratio",
    ]
    seconds = {}
    for line in lines[-2:]:
        match = re.fullmatch(r"(\D+?) +([\d.]+) +([\d.]+) +([\d.]+)", line)
        assert match, line
        seconds[match[1]] = tuple(map(float, match.groups()[1:]))
    assert list(seconds) == ["collect phase", "whole run"]
    for column in (0, 1):
        assert 0.0 <= seconds["collect phase"][column] < seconds["whole run"][column]
    sequential, parallel, ratio = seconds["whole run"]
    # Printed seconds are rounded to a millisecond, the ratio to two places.
    assert ratio == pytest.approx(sequential / parallel, abs=0.02)


def test_bundled_example_is_the_default(command):
    result = command("compare", "--steps", "1")

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("index: 5 markets, 210 agents, 1 step, ")
    assert "identical" in result.stdout


def test_example_by_name_whose_agents_change_themselves(command):
    result = command("compare", "learning")

    assert result.returncode == 0, result.stdout + result.stderr


def test_file_wins_over_an_example_of_the_same_name(command, write_config, folder):
    write_config()
    (folder / "config.json").rename(folder / "index")

    assert "1 market, 8 agents" in command("compare", "index").stdout


def test_different_outcomes_exit_1_and_name_what_differs(command, write_config):
    result = command("compare", write_config("Bound"), "--class", "my_agents:Bound")

    assert result.returncode == 1
    assert re.search(r"The outcomes DIFFER in \d+ of \d+ values:", result.stdout)
    assert re.search(r"^  market 'M': .+\[\d+\]: .+ against .+$", result.stdout, re.MULTILINE)
    assert re.search(r"^  and \d+ more$", result.stdout, re.MULTILINE)
    assert "whole run" in result.stdout


def test_seed_changes_the_run(command, write_config, folder):
    write_config()
    for seed in ("1", "2"):
        command("run", "config.json", "--seed", seed, "--output", f"{seed}.csv")
    command("run", "config.json", "--output", "default.csv")

    assert (folder / "1.csv").read_text() != (folder / "2.csv").read_text()
    assert (folder / "1.csv").read_text() == (folder / "default.csv").read_text()


def test_options_take_the_place_of_config_keys(command, write_config):
    arguments = ("--workers", "3", "--start-method", "spawn", "--steps", "4", "--seed", "7")
    result = command("compare", write_config(), *arguments)

    assert result.returncode == 0, result.stderr
    # The sessions have 3 and 5 steps; the cap holds for each of them.
    assert "7 steps, seed 7; 3 workers (spawn)" in result.stdout


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_class_from_the_current_directory(command, write_config, method):
    arguments = ("--class", "my_agents:Quiet", "--start-method", method)
    result = command("compare", write_config("Quiet"), *arguments)

    assert result.returncode == 0, result.stdout + result.stderr


def test_class_may_be_repeated(command, write_config):
    arguments = ("--class", "my_agents:Chatty", "--class", "my_agents:Quiet")
    arguments += ("--class", "my_agents:Quiet")  # twice the same is no ambiguity

    assert command("compare", write_config("Quiet"), *arguments).returncode == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_agents_print_does_not_mix_with_the_report(command, write_config, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    arguments = ("--class", "my_agents:Chatty", "--start-method", method)
    result = command("compare", write_config("Chatty"), *arguments)

    assert result.returncode == 0, result.stderr
    assert "agent\n" not in result.stdout
    assert "EXECUTION TIME" not in result.stdout
    # At least once by each runner: nothing is swallowed either.
    assert result.stderr.count("printed by an agent") > 8
    assert result.stderr.count("written by an agent") > 8


def test_warnings_take_one_line_and_the_well_known_one_is_left_out(command, write_config, config):
    config["simulation"]["numparallel"] = 2
    result = command("compare", write_config())

    assert "experimental" not in result.stderr
    assert "numparallel" in result.stderr
    lines = result.stderr.splitlines()
    assert all(line.startswith("pams-parallel: warning: ") for line in lines)
    # Both runs give the warning that prices are rounded to ticks.
    assert len(set(lines)) == len(lines)
    assert any("tick size" in line for line in lines)


def test_example_by_option(command, folder):
    # A file of the example's name does not get in the way.
    (folder / "learning").write_text("no JSON", encoding="utf-8")

    result = command("compare", "--example", "learning", "--steps", "2", "--workers", "1")

    assert result.returncode == 0, result.stderr
    assert "identical" in result.stdout
