"""Asks in a process of its own what may hang, crash or take memory, and in bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from interlock.cli._diagnosis import _probe
from interlock.cli._diagnosis._facts import FrameworkFacts

_LONGEST_REASON = 200
_FOLDERS = re.compile(r"""(?<![\w/:.])(?:~[\w.-]*)?/(?:[^\s/'"():,;]+/)*(?=[^\s/])""")
"""Of a path that begins at the root or at somebody's home."""


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe wrote before it ended or its time was over.

    Attributes:
        found: Its lines, in order.
        error: Why it has no more to say; None if it said all.
        crashed: Whether the process ended by itself, unasked.
        seconds: How long it took.
    """

    found: tuple[dict[str, Any], ...]
    error: str | None
    crashed: bool
    seconds: float


def ask(probe: str, *arguments: str, timeout_s: float) -> Answer:
    """Run a probe of `_probe` and return what it found. Blocks: at most `timeout_s`, and what killing it takes."""
    began = time.monotonic()
    command = [sys.executable, "-P", str(Path(_probe.__file__)), probe, *arguments]
    child = subprocess.Popen(  # noqa: S603 - our own program
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    late = False
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        late = True
        child.kill()
        out, err = _rest(child)
    except BaseException:
        child.kill()
        child.communicate()
        raise
    lines = _lines(out)
    seconds = round(time.monotonic() - began, 2)
    told = next((line["error"] for line in lines if "error" in line), None)
    found = tuple(line for line in lines if "done" not in line and "error" not in line)
    if told is not None:
        return Answer(found, without_paths(told), crashed=False, seconds=seconds)
    if any("done" in line for line in lines):
        return Answer(found, None, crashed=False, seconds=seconds)
    if late:
        return Answer(found, f"no answer in {timeout_s:.0f} s", crashed=False, seconds=seconds)
    return Answer(found, _death(child.returncode, err), crashed=True, seconds=seconds)


def framework_facts(name: str, answer: Answer) -> FrameworkFacts:
    """Return what a framework's probe found."""
    known: dict[str, Any] = {}
    for found in answer.found:
        known |= found
    failed_to_load = answer.error is not None and not answer.found and not answer.error.startswith("no answer")
    return FrameworkFacts(
        name=name,
        version=known.get("version"),
        cuda_version=known.get("cuda_version"),
        platforms=tuple(known.get("platforms", ())),
        devices=tuple(known.get("devices", ())),
        error=answer.error,
        crashed=answer.crashed or failed_to_load,
        seconds=answer.seconds,
    )


def without_paths(text: str) -> str:
    """Return an error of others as one line of a bounded length, with the folders of its paths left out."""
    line = _FOLDERS.sub("…/", " ".join(text.split()))
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 1]}…"


def _environment() -> dict[str, str]:
    """Return the process's own, with the same packages in reach and no framework that takes a device's memory."""
    path = os.pathsep.join(os.path.abspath(one) if one else str(Path.cwd()) for one in sys.path)  # noqa: PTH100 - zip files too
    quiet = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **quiet, "PYTHONPATH": path}


def _rest(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what a killed process had written; one that the system cannot end is left to it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.communicate(timeout=1.0)
    return "", ""


def _lines(text: str) -> list[dict[str, Any]]:
    """Return the lines that are whole."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(line)
            found += [value] if isinstance(value, dict) else []
    return found


def _death(code: int, err: str) -> str:
    last = next((line for line in reversed(err.splitlines()) if line.strip()), "")
    name = f"exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
    return without_paths(f"the process ended with {name}" + (f": {last}" if last else ""))
