"""The examples in the documents and docstrings run."""

from __future__ import annotations

import doctest
import importlib
import re
import warnings
from pathlib import Path

import pytest

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
