"""One exception tree, one message form, and each name of the core in public exactly once."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
from pathlib import Path

import pytest

from interlock import errors, lowlevel
from interlock.errors import (
    BoundError,
    DeviceError,
    InterlockError,
    InternalError,
    LeaseError,
    ModelError,
    PeerError,
    SampleError,
    SinkConflictError,
    SinkError,
    SourceError,
    UsageError,
)

CORE = Path(inspect.getfile(errors)).parent / "_core"
NOT_FOR_OTHERS = {
    "Family",
    "HostBlock",
    "LEAF",
    "Level",
    "Mark",
    "MarkedSpans",
    "Marks",
    "OURS",
    "Points",
    "Poison",
    "Report",
    "Sums",
    "Turns",
    "about",
    "capital",
    "copy_name",
    "counted",
    "current",
    "difference",
    "duration",
    "emit",
    "expect",
    "expected",
    "exposition",
    "host_timeline",
    "host_track",
    "is_past",
    "listen",
    "megabytes",
    "new_allocation_id",
    "observed",
    "one_thread_at_a_time",
    "percent",
    "processors",
    "report",
    "sums_of",
    "timed",
    "traced",
}
"""Public inside the package: what only devices and the core itself call, and aliases for annotations."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InterlockError("it broke"), "it broke"),
        (InterlockError("it broke", why="too hot"), "it broke: too hot"),
        (InterlockError("it broke", hint="cool it"), "it broke; cool it"),
        (UsageError("it broke", why="too hot", hint="cool it"), "it broke: too hot; cool it"),
        (SampleError("sample 3 broke", index=3, why="too hot"), "sample 3 broke: too hot"),
        (InternalError("it broke"), "it broke; this is a bug in Interlock: please report it with this message"),
    ],
)
def test_a_message_says_what_why_and_the_next_step(error: InterlockError, text: str):
    assert str(error) == text


def test_the_parts_of_a_message_live_on_the_exception():
    error = SampleError("sample 3 broke", index=3, why="too hot", hint="cool it")
    assert (error.what, error.why, error.hint, error.index) == ("sample 3 broke", "too hot", "cool it", 3)


@pytest.mark.parametrize(
    ("child", "parents"),
    [
        (UsageError, (InterlockError, ValueError)),
        (LeaseError, (UsageError,)),
        (SourceError, (UsageError,)),
        (SinkConflictError, (UsageError,)),
        (PeerError, (InterlockError,)),
        (SampleError, (PeerError,)),
        (ModelError, (PeerError,)),
        (SinkError, (PeerError,)),
        (DeviceError, (InterlockError,)),
        (BoundError, (InterlockError, TimeoutError)),
        (InternalError, (InterlockError,)),
    ],
)
def test_the_tree_is_the_one_that_its_docstring_draws(child: type, parents: tuple[type, ...]):
    assert all(issubclass(child, parent) for parent in parents)
    assert child.__name__ in (errors.__doc__ or "")
    assert child.__name__ in errors.__all__


@pytest.mark.parametrize(
    "error",
    [
        UsageError("what", why="why", hint="hint"),
        SampleError("what", index=3, why="why", hint="hint"),
        BoundError("what", hint="hint"),
        InternalError("what", why="why"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_processes_whole(error: InterlockError):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def public_core_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(CORE.glob("_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                names = [node.name]
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            else:
                continue
            for name in names:
                if not name.startswith("_") and len(name) > 1:
                    found.setdefault(name, []).append(path.stem)
    return found


def test_each_public_name_of_the_core_is_defined_once_and_public_in_lowlevel():
    names = public_core_names()
    assert {name: homes for name, homes in names.items() if len(homes) > 1} == {}
    assert names.keys() - NOT_FOR_OTHERS - set(lowlevel.__all__) == set()
    assert NOT_FOR_OTHERS - names.keys() == set(), "the list of exceptions is out of date"
    assert not NOT_FOR_OTHERS & set(lowlevel.__all__)


def test_lowlevel_names_the_very_objects_and_lists_each_once_in_order():
    assert lowlevel.__all__ == sorted(set(lowlevel.__all__))
    for name, homes in public_core_names().items():
        if name in lowlevel.__all__:
            module = importlib.import_module(f"interlock._core.{homes[0]}")
            assert getattr(lowlevel, name) is getattr(module, name)
    for name in lowlevel.__all__:
        assert hasattr(lowlevel, name)
