"""Spans as events of the Chrome trace format, which Perfetto reads.

Source: "Trace Event Format" (the Chromium project): `M` names processes and threads, `X` is a complete event, `C` a
counter, `s` and `f` the two ends of an arrow. Times are microseconds.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from interlock._core._spans import Level, Span

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

HOST = "host"
_HOST_PID = 1
_MOST_OPEN_ARROWS = 4096
_STAGE_PLACE = 1000
_WRITER_PLACE = 100_000
_OTHER_PLACE = 200_000
_ARROWS = {
    "fill": ("copy in", "hand over"),
    "put": ("copy out", "write"),
    "copy out": ("write",),
}
"""Where a batch goes next, by the name of the span."""

_SOURCES = {"copy in": ("fill",), "hand over": ("fill",), "copy out": ("put",), "write": ("put", "copy out")}
"""The same, backwards."""


@final
@dataclass(slots=True)
class _Lane:
    """One row of the picture: a thread or a stream. Its spans are nested or apart, as the format demands."""

    pid: int
    tid: int
    thread: weakref.ref[threading.Thread] | None
    start_ns: int = 0
    end_ns: int = 0

    def fit(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return a span that does not straddle the end of the one before: clocks of devices are a little off."""
        if self.start_ns < start_ns < self.end_ns < end_ns:
            start_ns = self.end_ns
        self.start_ns, self.end_ns = start_ns, end_ns
        return start_ns, end_ns

    def is_free(self, start_ns: int) -> bool:
        thread = self.thread() if self.thread is not None else None
        return (thread is None or not thread.is_alive()) and self.end_ns <= start_ns


@final
class Formatter:
    """Turns reports into events. Belongs to one thread. What it remembers is bounded by the number of tracks.

    Args:
        origin_ns: The time that is zero.
    """

    def __init__(self, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._pids: dict[str, int] = {HOST: _HOST_PID}
        self._lanes: dict[str, list[_Lane]] = {}
        self._begun: dict[str, None] = {}
        self._ends: dict[str, dict[str, Any]] = {}

    def begin(self) -> Iterator[dict[str, Any]]:
        """Return the events that come first."""
        return self._name_process(HOST, _HOST_PID)

    def events(self, what: Span | Level, thread: threading.Thread | None) -> Iterator[dict[str, Any]]:
        """Return the events of one report.

        Args:
            what: The report.
            thread: Who made it.
        """
        return self._of_level(what) if isinstance(what, Level) else self._of_span(what, thread)

    def _of_level(self, level: Level) -> Iterator[dict[str, Any]]:
        yield self._counter(f"{level.track}: {level.name}", _HOST_PID, level.at_ns, level.value)

    def _of_span(self, span: Span, thread: threading.Thread | None) -> Iterator[dict[str, Any]]:
        start_ns, end_ns = max(span.start_ns, self._origin_ns), max(span.start_ns, span.end_ns)
        if end_ns < self._origin_ns:
            return
        process, name = _split(span.track)
        if process not in self._pids:
            self._pids[process] = len(self._pids) + _HOST_PID
            yield from self._name_process(process, self._pids[process])
        lane, is_new = self._lane(
            span.track, self._pids[process], start_ns, thread if span.track.startswith("host:") else None
        )
        if is_new:
            yield _metadata("thread_name", lane.pid, lane.tid, name=name)
            yield _metadata("thread_sort_index", lane.pid, lane.tid, sort_index=_place(name, lane.tid))
        start_ns, end_ns = lane.fit(start_ns, end_ns)
        yield self._complete(span, lane, start_ns, end_ns)
        yield from self._arrows_of(span, lane, start_ns)
        if process != HOST and span.size_bytes and end_ns > start_ns:
            yield self._counter(f"{name} GB/s", lane.pid, start_ns, span.size_bytes / (end_ns - start_ns))
            yield self._counter(f"{name} GB/s", lane.pid, end_ns, 0.0)

    def _lane(self, track: str, pid: int, start_ns: int, thread: threading.Thread | None) -> tuple[_Lane, bool]:
        """Return the lane of a stream or thread; threads of one name that live at the same time have one each."""
        lanes = self._lanes.setdefault(track, [])
        for lane in lanes:
            if thread is None or (lane.thread is not None and lane.thread() is thread):
                return lane, False
        reference = weakref.ref(thread) if thread is not None else None
        for lane in lanes:
            if lane.is_free(start_ns):
                lane.thread = reference
                return lane, False
        tid = 1 + sum(len(known) for known in self._lanes.values())
        lanes.append(_Lane(pid, tid, reference))
        return lanes[-1], True

    def _complete(self, span: Span, lane: _Lane, start_ns: int, end_ns: int) -> dict[str, Any]:
        args: dict[str, Any] = {}
        if span.number >= 0:
            args["batch"] = span.number
        if span.subject:
            args["of"] = span.subject
        if span.size_bytes:
            args["bytes"] = span.size_bytes
        return {
            "ph": "X",
            "pid": lane.pid,
            "tid": lane.tid,
            "ts": self._us(start_ns),
            "dur": (end_ns - start_ns) / 1000,
            "name": span.name,
            "cat": span.subject.partition(" ")[0] or "user",
            "args": args,
        }

    def _arrows_of(self, span: Span, lane: _Lane, at_ns: int) -> Iterator[dict[str, Any]]:
        """Return the ends of arrows that touch this span; the far one after its beginning, whoever comes first."""
        if span.number < 0 or not span.subject:
            return
        arrow = {"pid": lane.pid, "tid": lane.tid, "ts": self._us(at_ns), "name": "batch", "cat": "batch"}
        for target in _ARROWS.get(span.name, ()):
            ident = f"{span.subject}/{span.number}/{span.name}/{target}"
            if ident not in self._begun:  # of several workers that fill a batch the first
                _remember(self._begun, ident, None)
                yield {"ph": "s", "id": ident, **arrow}
                if ident in self._ends:
                    yield self._ends.pop(ident)
        for source in _SOURCES.get(span.name, ()):
            ident = f"{span.subject}/{span.number}/{source}/{span.name}"
            end = {"ph": "f", "bp": "e", "id": ident, **arrow}
            if ident in self._begun:
                yield end
            else:
                _remember(self._ends, ident, end)

    def _counter(self, name: str, pid: int, at_ns: int, value: float) -> dict[str, Any]:
        at_us = self._us(max(at_ns, self._origin_ns))
        return {"ph": "C", "pid": pid, "tid": 0, "ts": at_us, "name": name, "args": {"value": round(value, 3)}}

    @staticmethod
    def _name_process(name: str, pid: int) -> Iterator[dict[str, Any]]:
        yield _metadata("process_name", pid, 0, name=name)
        yield _metadata("process_sort_index", pid, 0, sort_index=pid if pid != _HOST_PID else 1000)  # devices first

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._origin_ns) / 1000


def _remember(known: dict[str, Any], key: str, value: Any) -> None:
    known[key] = value
    if len(known) > _MOST_OPEN_ARROWS:
        del known[next(iter(known))]


def _split(track: str) -> tuple[str, str]:
    """Return process and thread: `host:NAME` is a thread of ours, `DEVICE/STREAM` a stream."""
    kind, _, name = track.partition(":")
    if kind == HOST and name:
        return HOST, name
    device, slash, stream = track.partition("/")
    return (device, stream) if slash else (track, track)


def _place(thread: str, tid: int) -> int:
    """Return where a thread comes among the others: the loop, workers and writers by number, then as they report.

    Workers of stages come after those who read, as they report.
    """
    crew, _, number = thread.rpartition("-")
    if crew == "interlock-feed" and number.isdecimal():
        return 1 + int(number)
    if crew == "interlock-drain" and number.isdecimal():
        return _WRITER_PLACE + int(number)
    if crew.startswith("interlock-feed-"):
        return _STAGE_PLACE + tid
    return {"MainThread": 0, "interlock-drain": _WRITER_PLACE}.get(thread, _OTHER_PLACE + tid)


def _metadata(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": args}
