"""The user's own lines: excerpts, stacks with library frames folded, and what a line is called when it moves."""

from __future__ import annotations

import ast
import linecache
import os
import re
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, final

from interlock.check._report._words import counted
from interlock.check._sites import is_library

if TYPE_CHECKING:
    from interlock._core._events import Frame
    from interlock.check._model import Place

_FRAME = re.compile(r'  File "([^"]*)", line \d+')
_OURS = str(Path(__file__).resolve().parents[2]) + os.sep


@final
@dataclass(frozen=True, slots=True)
class Line:
    """One line of an excerpt."""

    number: int
    text: str
    guilty: bool


@final
@dataclass(frozen=True, slots=True)
class Folded:
    """Frames of libraries that are not shown."""

    count: int


def line_text(file: str, line: int) -> str:
    """Return a line without its indentation; empty if the file cannot be read."""
    return linecache.getline(file, line).strip()


def excerpt(file: str, line: int, context: int = 2) -> tuple[Line, ...]:
    """Return a line and its neighbours, without common indentation and blank edges; empty if the file cannot be read.

    Args:
        file: A source file.
        line: Its guilty line, from 1.
        context: Lines shown before and after.
    """
    lines = linecache.getlines(file)
    if not 1 <= line <= len(lines):
        return ()
    first = max(1, line - context)
    chosen = [text.rstrip() for text in lines[first - 1 : line + context]]
    dedented = textwrap.dedent("\n".join(chosen)).expandtabs(4).split("\n")
    shown = [Line(first + index, text, first + index == line) for index, text in enumerate(dedented)]
    while not shown[0].text and not shown[0].guilty:
        del shown[0]
    while not shown[-1].text and not shown[-1].guilty:
        del shown[-1]
    return tuple(shown)


def callers(place: Place, most: int = 6) -> tuple[Frame | Folded, ...]:
    """Return the frames that called the place's own, innermost first, library frames folded to their number.

    Args:
        place: One access.
        most: At most so many entries; those nearest to the place are kept.
    """
    entries: list[Frame | Folded] = []
    for frame in place.site[_depth(place) + 1 :]:
        if not is_library(frame[0]):
            entries.append(frame)
        elif entries and isinstance(entries[-1], Folded):
            entries[-1] = Folded(entries[-1].count + 1)
        else:
            entries.append(Folded(1))
    while entries and isinstance(entries[-1], Folded):  # whoever started the program
        entries.pop()
    return tuple(entries[:most])


def inside(place: Place) -> str:
    """Return which library frames the place's own line went through; empty if it did the access itself."""
    depth = _depth(place)
    if not 0 < depth < len(place.site):
        return ""
    file, line, function = place.site[0]
    return f"{counted(depth, 'library frame')}, down to {PurePath(file).name}:{line} in {function}"


def _depth(place: Place) -> int:
    """Return how many frames lie inside the place's own."""
    return next(
        (number for number, frame in enumerate(place.site) if frame[:2] == (place.file, place.line)), len(place.site)
    )


def users_traceback(text: str) -> str:
    """Return a traceback without the frames that Interlock put round the program."""
    kept, hidden = [], False
    for line in text.splitlines(keepends=True):
        frame = _FRAME.match(line)
        if frame:
            hidden = frame[1].startswith(_OURS) or frame[1] == "<frozen runpy>"
        elif not line.startswith("  "):
            hidden = False
        if not hidden:
            kept.append(line)
    return "".join(kept)


def moving_name(file: str, line: int) -> str:
    """Return what a line is called however far it moves: its function, its text, and which of equal lines it is."""
    text = line_text(file, line)
    if not text:
        return f"line {line}"
    name, start = _enclosing(file, line)
    lines = linecache.getlines(file)
    equal = sum(lines[index - 1].strip() == text for index in range(start, line))
    return f"{name}|{text}|{equal}"


def _enclosing(file: str, line: int) -> tuple[str, int]:
    """Return the innermost function or class round a line and where it begins."""
    found = ("", 1)
    for name, first, last in _scopes("".join(linecache.getlines(file))):
        if first <= line <= last:
            found = (name, first)
    return found


@lru_cache(maxsize=64)
def _scopes(program: str) -> tuple[tuple[str, int, int], ...]:
    """Return name, first and last line of each function and class, outer ones before inner ones."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError):
        return ()
    scopes: list[tuple[str, int, int]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}.{child.name}".lstrip(".")
                scopes.append((name, child.lineno, child.end_lineno or child.lineno))
            visit(child, name)

    visit(tree, "")
    return tuple(scopes)
