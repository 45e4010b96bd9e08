"""A finished trace, read back for pictures and tables."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from interlock.errors import UsageError

if TYPE_CHECKING:
    import os


@final
@dataclass(frozen=True, slots=True)
class Bar:
    """A span of a finished trace.

    Attributes:
        name: As in `Span`.
        start_ms: From the start of the trace.
        end_ms: The same clock.
        number: As in `Span`; -1 for none.
        size_bytes: As in `Span`.
        subject: As in `Span`.
    """

    name: str
    start_ms: float
    end_ms: float
    number: int
    size_bytes: int
    subject: str


@final
@dataclass(frozen=True, slots=True)
class Track:
    """The spans of one thread or stream.

    Attributes:
        process: `host`, or the name of a device.
        thread: Name of the thread or stream.
        bars: By their beginning; one inside another comes after it.
    """

    process: str
    thread: str
    bars: list[Bar] = field(default_factory=list)


@final
@dataclass(frozen=True, slots=True)
class Recording:
    """A finished trace.

    Attributes:
        tracks: In the order in which they first reported.
        dropped: Spans that were left out.
    """

    tracks: list[Track]
    dropped: int


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a trace of ours, or the complete events of any other in Chrome's format.

    Raises:
        UsageError: There is no such file, or it is no trace.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        if isinstance(content, list):  # the format's other form
            content = {"traceEvents": content}
        events = content["traceEvents"]
        return Recording(_tracks(events), int(content.get("otherData", {}).get("spans left out", 0)))
    except OSError as error:
        raise UsageError(f"the trace {str(path)!r} cannot be read", why=f"{error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"{str(path)!r} is no trace", why=why, hint="make one with interlock.trace") from error


def _tracks(events: list[dict[str, Any]]) -> list[Track]:
    processes: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    bars: dict[tuple[Any, Any], list[Bar]] = {}
    for event in events:
        key = (event.get("pid"), event.get("tid"))
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[key[0]] = _plain(event["args"]["name"])
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads[key] = _plain(event["args"]["name"])
        elif event["ph"] == "X":
            bars.setdefault(key, []).append(_bar(event))
    return [
        Track(
            processes.get(key[0], _plain(key[0])),
            threads.get(key, _plain(key[1])),
            sorted(found, key=lambda bar: (bar.start_ms, -bar.end_ms)),
        )
        for key, found in bars.items()
    ]


def _bar(event: dict[str, Any]) -> Bar:
    start_us, args = float(event["ts"]), event.get("args", {})
    end_us = start_us + max(0.0, float(event["dur"]))
    if not math.isfinite(end_us):
        raise ValueError(f"the times {event['ts']} and {event['dur']}")
    return Bar(
        _plain(event["name"]),
        start_us / 1000,
        end_us / 1000,
        int(args.get("batch", -1)),
        int(args.get("bytes", 0)),
        _plain(args.get("of", "")),
    )


def _plain(name: object) -> str:
    """Return a name that a terminal and an SVG file can hold: whoever wrote the file may have put codes into it."""
    return "".join(one if one.isprintable() else "?" for one in str(name))
