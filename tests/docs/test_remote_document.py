"""`docs/remote.md` says what is true: its program runs, and its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interlock.drain._remote import _client, _entries, _leases

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")


def test_the_program_runs():
    fsspec = pytest.importorskip("fsspec")
    (program,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    try:
        exec(compile(program, "docs/remote.md", "exec"), {})  # noqa: S102 - our own text
    finally:
        fsspec.filesystem("memory").store.clear()


def test_its_figures_are_those_of_the_code():
    assert f"valid for {_leases.VALID_S:.0f} s" in TEXT
    assert f"renews it each {_leases._RENEW_EVERY_S:.0f} s" in TEXT
    assert f"more than {_entries.MOST_ENTRIES}" in TEXT
    assert len(_client._PAUSES_S) == 3
    assert "tried again three times" in TEXT
