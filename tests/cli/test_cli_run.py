"""``pams-parallel run``."""

from __future__ import annotations

import csv
import os
import random

import pytest
from pams.runners import SequentialRunner

HEADER = [
    "time",
    "market",
    "market_price",
    "fundamental_price",
    "executed_volume",
    "buy_orders",
    "sell_orders",
]


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("runner", ["process", "sequential"])
def test_row_per_step_and_market(command, write_config, folder, config, runner):
    config["M"].update({"numMarkets": 2, "fundamentalVolatility": 0.01})
    result = command("run", write_config(), "--runner", runner, "--output", "out.csv")
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert "out.csv: 16 rows" in result.stderr

    reference = SequentialRunner(config, prng=random.Random(1))
    reference._setup()
    reference._run()
    expected = [HEADER]
    for time in range(8):
        for market in reference.simulator.markets:
            values = (
                market.get_market_price(time),
                market.get_fundamental_price(time),
                market.get_executed_volume(time),
                market.get_n_buy_order(time),
                market.get_n_sell_order(time),
            )
            expected.append([str(time), market.name, *map(repr, values)])
    assert sum(int(row[4]) for row in expected[1:]) > 0
    assert rows_of(folder / "out.csv") == expected


def test_process_is_the_default_runner(command, write_config):
    result = command("run", write_config(), "--output", "out.csv")

    assert result.stderr.splitlines()[-1].endswith("MultiProcessAgentParallelRunner")


def test_quiet_says_nothing(command, write_config, config):
    config["M"]["tickSize"] = 1e-15  # no order price is off the tick, which pams warns about
    result = command("run", write_config(), "--output", "out.csv", "--quiet")

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_failed_run_keeps_the_old_file(command, write_config, folder):
    (folder / "out.csv").write_text("precious")
    before = sorted(os.listdir(folder))
    name = write_config("Failing")
    result = command("run", name, "--class", "my_agents:Failing", "--output", "out.csv")

    assert result.returncode == 3
    assert (folder / "out.csv").read_text() == "precious"
    assert sorted(set(os.listdir(folder)) - {"__pycache__", name}) == before


def test_file_keeps_its_mode_and_links_stay_links(command, write_config, folder):
    (folder / "real.csv").write_text("old")
    (folder / "real.csv").chmod(0o600)
    (folder / "out.csv").symlink_to("real.csv")
    assert command("run", write_config(), "--output", "out.csv").returncode == 0

    assert (folder / "out.csv").is_symlink()
    assert (folder / "real.csv").stat().st_mode & 0o777 == 0o600
    assert rows_of(folder / "real.csv")[0] == HEADER


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="no /dev/stdout")
def test_standard_output_as_file(command, write_config):
    result = command("run", write_config(), "--steps", "1", "--output", "/dev/stdout")

    assert result.returncode == 0, result.stderr
    assert [line.split(",")[0] for line in result.stdout.splitlines()] == ["time", "0", "1"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk(command, write_config):
    result = command("run", write_config(), "--output", "/dev/full")

    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == (
        "pams-parallel: error: --output /dev/full: No space left on device"
    )


@pytest.mark.parametrize("output", ["missing/out.csv", ".", "config.json/out.csv"])
def test_unusable_output_is_known_before_the_run(command, write_config, output):
    name = write_config("Failing")  # a run would end with exit code 3
    result = command("run", name, "--class", "my_agents:Failing", "--output", output)

    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"--output {output}: " in result.stderr
