"""The examples in the documents and docstrings run."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import warnings
from pathlib import Path

import pytest

from interlock.cli import main
from interlock.drain import verify_sink

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    (document.name, number, block)
    for document in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md")
    for number, block in enumerate(BLOCK.findall(document.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("document", "number", "block"), BLOCKS, ids=lambda value: str(value)[:12])
def test_a_program_in_a_document_runs(document, number, block, capsys):
    exec(compile(block, f"{document}, program {number}", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own text
    if "poison" in block:
        assert capsys.readouterr().out == "b'\\xff\\xff\\xff\\xff'\nb'\\x01\\x02\\x03\\x04'\n"


def test_the_commands_of_predict_run_on_a_folder_of_images(tmp_path, monkeypatch):
    images = pytest.importorskip("PIL.Image")
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Predict\n")[2].partition("\n## ")[0]
    (program,) = BLOCK.findall(text)
    (tmp_path / "model.py").write_text(program)
    (tmp_path / "images").mkdir()
    for number in range(3):
        images.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / f"images/{number}.png")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ interlock (.*)$", text, re.MULTILINE)
    assert [main(shlex.split(command)) for command in (*commands, commands[0])] == [0, 0, 0, 0]
    assert verify_sink("parquet:out").rows == 3


@pytest.mark.parametrize(
    "module",
    [
        "interlock.feed._feed",
        "interlock.feed._stages",
        "interlock.feed._tolerance",
        "interlock.feed._prefetch",
        "interlock.drain._drain",
    ],
)
def test_the_examples_in_docstrings_are_true(module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = doctest.testmod(importlib.import_module(module))
    assert (found.failed, found.attempted > 0) == (0, True)


def test_relative_links_in_documents_lead_somewhere():
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{document.name}: {target}"


def test_every_path_that_architecture_names_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src|tests|examples|benchmarks)/[\w./]+)(?:::(\w+))?`", text))
    assert len(named) > 20
    for path, test in named:
        assert (ROOT / path).exists(), path
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"
