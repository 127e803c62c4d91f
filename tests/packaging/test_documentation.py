"""Code in the README and in docstrings runs.

Python blocks run as scripts, each in a process of its own, as a user would run them: from a
folder of their own, in the order in which they stand. A block whose first line is a comment such
as ``# agents.py`` is saved under that name, so that the ones after it can import it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOURCES = ROOT / "python" / "pams_parallel"
TIMEOUT = 240

needs_jax = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jax", "flax"))), reason="needs JAX and Flax"
)
JAX_OR_NOT = [pytest.param(False, id="plain"), pytest.param(True, marks=needs_jax, id="jax")]


def fenced(text, language):
    """Blocks of Markdown with a language, also those in a list, which are indented."""
    pattern = rf"^( *)```{language}\n(.*?)^\1```$"
    found = re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(match[2]) for match in found]


def mentions_jax(block):
    return re.search("jax|flax", block, re.IGNORECASE) is not None


def readme_blocks(language, uses_jax):
    return [block for block in fenced(README, language) if mentions_jax(block) == uses_jax]


def literal(docstring):
    """Literal blocks of reStructuredText: indented text after a line that ends in ``::``."""
    lines = textwrap.dedent(docstring).splitlines()
    for number, line in enumerate(lines):
        if not line.rstrip().endswith("::"):
            continue
        margin = len(line) - len(line.lstrip())
        block = []
        for following in lines[number + 1 :]:
            if following.strip() and len(following) - len(following.lstrip()) <= margin:
                break
            block.append(following)
        yield textwrap.dedent("\n".join(block)).strip() + "\n"


def docstring_blocks():
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                docstring = ast.get_docstring(node)
                for block in literal(docstring) if docstring else ():
                    name = f"{path.relative_to(SOURCES)}:{getattr(node, 'name', 'module')}"
                    marks = needs_jax if mentions_jax(block) else ()
                    yield pytest.param(block, id=name, marks=marks)


def run(arguments, folder):
    scripts = sysconfig.get_path("scripts")
    result = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, f"{arguments}\n{result.stdout}\n{result.stderr}"
    return result


def run_python(block, folder, default_name="block.py"):
    title = re.match(r"# (\w+\.py)\n", block)
    name = title[1] if title else default_name
    (folder / name).write_text(block, encoding="utf-8")
    return run([sys.executable, name], folder)


@pytest.mark.parametrize("uses_jax", JAX_OR_NOT)
def test_readme_blocks(uses_jax, tmp_path):
    blocks = readme_blocks("python", uses_jax)

    assert len(blocks) >= 2
    for block in blocks:
        run_python(block, tmp_path)


@pytest.mark.parametrize("uses_jax", JAX_OR_NOT)
def test_readme_shell_blocks(uses_jax, tmp_path):
    """Blocks marked ``bash`` run as they are; the set-up, marked ``sh``, is run by .ci/run."""
    blocks = readme_blocks("bash", uses_jax)

    assert blocks
    for block in blocks:
        run(["bash", "-euc", block], tmp_path)


def test_readme_has_two_commands_that_set_everything_up():
    commands = [line for block in fenced(README, "sh") for line in block.splitlines()]
    set_up = [line for line in commands if line.startswith("python3 -m venv ")]

    assert [line.split("/")[-1] for line in set_up] == ["pams-parallel compare", "python -m pytest"]
    # .ci/run takes the last one from here.
    assert len(re.findall(r"^.*-m pytest$", README, re.MULTILINE)) == 1


def test_readme_links_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("block", list(docstring_blocks()))
def test_docstring_blocks(block, tmp_path):
    run_python(block, tmp_path)
