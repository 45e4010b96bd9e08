"""Loads the corpus and gives each program to the tests that want one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType


def load_table() -> ModuleType:
    """Import `table.py`, which lies in no package."""
    name = "litmus_table"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("table.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def table() -> ModuleType:
    return load_table()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise over the corpus."""
    corpus: Any = load_table()
    for argument, found in (("program", corpus.programs), ("control", corpus.controls)):
        if argument in metafunc.fixturenames:
            cases = found()
            metafunc.parametrize(argument, cases, ids=[f"{case.entry}-{case.name}".lstrip("-") for case in cases])
