"""Bad input: one line on standard error that says what and where, exit code 2."""

from __future__ import annotations

import json

import pytest


def assert_one_line(result, *fragments):
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("pams-parallel")
    for fragment in fragments:
        assert fragment in lines[0]


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (b'{\n  "simulation": {,}\n}', ["config.json:2:18: "]),
        (b"", ["config.json:1:1: "]),
        (b"[1]", ["config.json: must be a JSON object, not list"]),
        (b"{}", ["config.json: simulation must be an object"]),
        (b'{"simulation": 3}', ["config.json: simulation must be an object"]),
        (b'{"a": "\xff"}', ["config.json: not UTF-8 at byte 7"]),
        (b"[" * 200_000, ["config.json: nested too deeply"]),
    ],
)
def test_unreadable_config(command, folder, content, fragments):
    (folder / "config.json").write_bytes(content)

    assert_one_line(command("compare", "config.json"), *fragments)


def test_missing_config_names_the_examples(command):
    assert_one_line(command("compare", "nowhere.json"), "nowhere.json: no such file", "index")


def test_config_that_is_a_directory(command, folder):
    assert_one_line(command("compare", str(folder)), str(folder), "directory")


def test_byte_order_mark_is_no_error(command, folder, config):
    text = json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8-sig")

    assert command("run", "config.json", "--output", "out.csv").returncode == 0


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"A": {"class": "Nobody"}}, ["A.class", "unknown class 'Nobody'", "MODULE:Nobody"]),
        ({"M": {"class": "Nobody"}}, ["M.class", "unknown class 'Nobody'"]),
        ({"A": {"class": "Market"}}, ["agent class for A does not inherit Agent class"]),
        ({"M": {"class": "FCNAgent"}}, ["market class for M does not inherit Market class"]),
        ({"M": {"marketPrice": None}}, ["TypeError", "(in 'M')"]),
        ({"A": {"markets": ["X"]}}, ["KeyError: 'X'", "(in 'A')"]),
        ({"A": {"numAgents": "many"}}, ["'many'"]),
        ({"A": {"noiseScale": {"expon": 1}}}, ["Exponential", "FCNAgent.setup of 'A-0'"]),
        ({"simulation": {"agents": ["B"]}}, ["B setting is missing in config"]),
        ({"simulation": {"markets": "M"}}, ["simulation.markets"]),
        ({"simulation": {"sessions": None}}, ["simulation.sessions"]),
        ({"simulation": {"numParallel": True}}, ["simulation.numParallel"]),
        ({"simulation": {"startMethod": "SPAWN"}}, ["simulation.startMethod must be one of"]),
    ],
)
def test_config_errors(command, folder, config, change, fragments):
    config.update({key: {**config[key], **value} for key, value in change.items()})
    (folder / "config.json").write_text(json.dumps(config))

    assert_one_line(command("compare", "config.json"), "config.json: ", *fragments)


@pytest.mark.parametrize("missing", ["numAgents", "markets", "cashAmount", "chartWeight", "class"])
def test_missing_keys_of_an_agent(command, folder, config, missing):
    del config["A"][missing]
    (folder / "config.json").write_text(json.dumps(config))
    result = command("run", "config.json", "--output", "out.csv")

    if missing == "numAgents":  # one agent, then
        assert result.returncode == 0
    else:
        assert_one_line(result, "config.json: ", missing)


def test_unknown_event(command, folder, config):
    config["simulation"]["sessions"][1]["events"] = ["E"]
    config["E"] = {"class": "Quake"}
    (folder / "config.json").write_text(json.dumps(config))

    assert_one_line(command("compare", "config.json"), "E.class", "unknown class 'Quake'")


@pytest.mark.parametrize(
    ("reference", "fragments"),
    [
        ("my_agents", ["must be MODULE:CLASS"]),
        (":Quiet", ["must be MODULE:CLASS"]),
        ("my_agents:", ["must be MODULE:CLASS"]),
        ("nowhere:Quiet", ["no module named 'nowhere'"]),
        ("my_agents.deep:Quiet", ["no module named 'my_agents.deep'"]),
        ("my_agents:Nobody", ["'my_agents' has no 'Nobody'"]),
        ("my_agents:NOT_A_CLASS", ["not a subclass of pams's Agent, Market or EventABC"]),
        ("json:JSONDecoder", ["not a subclass of pams's Agent, Market or EventABC"]),
        ("broken:Quiet", ["importing 'broken'", "SyntaxError", "broken.py, line 2"]),
        ("quitting:Quiet", ["importing 'quitting'", "SystemExit: 5"]),
        ("needy:Quiet", ["importing 'needy'", "No module named 'absent_library'"]),
    ],
)
def test_classes_that_cannot_be_used(command, folder, write_config, reference, fragments):
    (folder / "broken.py").write_text("x = 1\nclass\n")
    (folder / "quitting.py").write_text("raise SystemExit(5)\n")
    (folder / "needy.py").write_text("import absent_library\n")
    result = command("compare", write_config(), "--class", reference)

    assert_one_line(result, f"--class {reference}: ", *fragments)


def test_class_with_the_name_of_one_of_pams(command, folder, write_config):
    (folder / "mine.py").write_text("from pams.agents import FCNAgent as Base\n")
    with open(folder / "mine.py", "a") as file:
        file.write("class FCNAgent(Base):\n    pass\n")
    result = command("compare", write_config(), "--class", "mine:FCNAgent")

    assert_one_line(result, "config.json: A.class: several classes", "'FCNAgent'")


def test_agent_that_cannot_be_set_up(command, write_config):
    result = command("compare", write_config("BadSetup"), "--class", "my_agents:BadSetup")

    assert_one_line(result, "KeyError: 'secret' (in BadSetup.setup of 'A-0')", "--traceback")


def test_traceback_on_request(command, write_config):
    arguments = ("--class", "my_agents:BadSetup", "--traceback")
    result = command("compare", write_config("BadSetup"), *arguments)

    assert result.returncode == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert 'raise KeyError("secret")' in result.stderr
    assert result.stderr.splitlines()[-1].startswith("pams-parallel: error: config.json: ")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ([], ["required: COMMAND"]),
        (["explode"], ["invalid choice: 'explode'"]),
        (["compare", "--workers", "0"], ["--workers", "'0'"]),
        (["compare", "--workers", "two"], ["--workers", "'two'"]),
        (["compare", "--steps", "-1"], ["--steps", "'-1'"]),
        (["compare", "--seed", "x"], ["--seed", "'x'"]),
        (["compare", "--start-method", "SPAWN"], ["--start-method", "'SPAWN'"]),
        (["compare", "--work", "2"], ["--work"]),
        (["run", "config.json"], ["--output"]),
        (["run", "config.json", "--output", "o", "--runner", "gpu"], ["--runner", "'gpu'"]),
        (["run", "--output", "out.csv"], ["CONFIG"]),
    ],
)
def test_bad_options(command, arguments, fragments):
    assert_one_line(command(*arguments), *fragments)


@pytest.mark.parametrize("runner", ["process", "sequential"])
def test_failing_agent_is_no_bad_input(command, write_config, runner):
    arguments = ("--class", "my_agents:Failing", "--runner", runner, "--output", "out.csv")
    result = command("run", write_config("Failing"), *arguments)

    assert result.returncode == 3
    lines = [line for line in result.stderr.splitlines() if "warning" not in line]
    assert len(lines) == 1, result.stderr
    assert "LookupError: no more ideas" in lines[0]
    assert "Traceback" not in result.stderr
    traced = command("run", "config.json", *arguments, "--traceback")
    assert 'raise LookupError("no more\\nideas")' in traced.stderr


def test_help_and_version(command):
    import pams_parallel

    shown = command("--version").stdout
    assert shown.startswith(f"pams-parallel {pams_parallel.__version__} (pams ")
    for arguments in (["--help"], ["compare", "--help"], ["run", "--help"]):
        result = command(*arguments)
        assert result.returncode == 0
        assert "pams-parallel" in result.stdout
    shared = ["--class", "--workers", "--start-method", "--seed", "--steps", "--traceback"]
    for name in ("compare", "run"):
        assert all(option in command(name, "--help").stdout for option in shared)


def test_example_and_config(command):
    assert_one_line(command("compare", "learning", "--example", "index"), "not allowed with")


def test_unknown_example(command):
    assert_one_line(command("compare", "--example", "nothing"), "invalid choice: 'nothing'", "flax")


def test_neither_example_nor_config(command):
    assert_one_line(command("run", "--output", "out.csv"), "required")
