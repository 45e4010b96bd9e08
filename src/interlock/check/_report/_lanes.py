"""Two small drawings of a hazard: timelines as lanes, first without the missing order, then with it.

The drawings explain; they are not measured. In the first, the earlier access is still under way when the later one
begins, and a dashed arrow is the order that nothing enforces. In the second, the fix's arrow holds the later one back.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, final

from interlock.check._report._words import who

if TYPE_CHECKING:
    from interlock.check._model import Hazard, Place

EDGES = {
    "early-read": "event.synchronize()",
    "early-overwrite": "event.synchronize()",
    "late-landing": "event.synchronize()",
    "unordered-read": "wait_event(event)",
    "unordered-write": "wait_event(event)",
    "freed-in-flight": "record_stream(stream)",
    "recycled": "only when given back",
    "aliased-mutation": "a copy, or wait",
    "use-after-donate": "a copy, or wait",
    "moving-snapshot": "a copy, or wait",
    "stale-graph-input": "wait_event(event)",
    "unawaited-collective": "work.wait()",
    "cross-process": "wait for the other",
    "completion-lie": "wait for the bytes",
}
"""Kind of hazard to the few words on the fix's arrow."""

_WIDTH = 560
_LEFT = 128
_RIGHT = 548
_TOP = 44
_LANE = 74
_BAR = 34
_MOST_LABEL = 17
_VERBS = {"read": "reads", "write": "writes", "free": "gives away", "lent": "holds"}
_STILL = {"read": "may still read", "write": "may still write", "free": "gone", "lent": "may still hold"}


@final
@dataclass(frozen=True, slots=True)
class _Bar:
    """One access as it is drawn: its lane's number, and from where to where."""

    number: int
    place: Place
    lane: int
    start: int
    end: int

    @property
    def y(self) -> int:
        return _TOP + self.lane * _LANE


def drawings(hazard: Hazard, ident: str) -> tuple[str, str]:
    """Return two SVG elements: as written, and with the fix.

    Args:
        hazard: What to draw.
        ident: Unique in the page; names the drawings' own patterns.
    """
    lanes = _lanes(hazard)
    earlier, later = (_lane_of(place, lanes) for place in hazard.accesses)
    if earlier == later:  # one timeline twice: the loan and the change are still two parties
        lanes = (*lanes, f"{lanes[earlier]} (later)")
        later = len(lanes) - 1
    return _as_written(hazard, lanes, (earlier, later), ident), _with_fix(hazard, lanes, (earlier, later), ident)


def _lanes(hazard: Hazard) -> tuple[str, ...]:
    """Return the timelines from top to bottom: the host, which queues everything, then the others as they come in."""
    names = [place.timeline for place in hazard.accesses]
    hosts = [name for name in names if _is_host(name)] or ["host"]
    return tuple(dict.fromkeys([*hosts, *names]))


def _is_host(timeline: str) -> bool:
    return timeline.partition(":")[0] == "host"


def _lane_of(place: Place, lanes: tuple[str, ...]) -> int:
    return lanes.index(place.timeline)


def _as_written(hazard: Hazard, lanes: tuple[str, ...], at: tuple[int, int], ident: str) -> str:
    first, second = hazard.accesses
    earlier = _Bar(1, first, at[0], 168, 470)
    later = _Bar(2, second, at[1], 278, 396)
    top, bottom = sorted((earlier.y, later.y))
    clash = f'x="{later.start}" width="{later.end - later.start}" y="{top - _BAR // 2 - 8}"'
    parts = [
        f'<rect class="clash" {clash} height="{bottom - top + _BAR + 16}" rx="6"/>',
        *_frame(lanes),
        *_queued(earlier, lanes),
        *_queued(later, lanes),
        _bar(earlier, ident, unfinished_from=262),
        _bar(later, ident),
        _missing(earlier, later),
    ]
    title = "As written: the second access begins while the first may still be under way"
    return _svg(parts, lanes, title, ident)


def _with_fix(hazard: Hazard, lanes: tuple[str, ...], at: tuple[int, int], ident: str) -> str:
    first, second = hazard.accesses
    earlier = _Bar(1, first, at[0], 168, 286)
    later = _Bar(2, second, at[1], 414, 532)
    parts = [
        *_frame(lanes),
        *_queued(earlier, lanes),
        *_queued(later, lanes),
        _bar(earlier, f"{ident}-fixed"),
        _bar(later, f"{ident}-fixed"),
        _fixed(earlier, later, EDGES.get(hazard.kind, "wait")),
    ]
    return _svg(parts, lanes, "With the fix: the second access waits for the first", f"{ident}-fixed")


def _frame(lanes: tuple[str, ...]) -> list[str]:
    parts = []
    for number, name in enumerate(lanes):
        y = _TOP + number * _LANE
        kind, text = _label(name)
        parts.append(f'<line class="lane" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>')
        parts.append(f'<text class="who" x="{_LEFT - 14}" y="{y - 1 if kind else y + 4}">{escape(text)}</text>')
        if kind:
            parts.append(f'<text class="kind" x="{_LEFT - 14}" y="{y + 14}">{kind}</text>')
    y = _TOP + len(lanes) * _LANE - 22
    parts.append(f'<text class="time" x="{_LEFT}" y="{y}">time →</text>')
    return parts


def _label(timeline: str) -> tuple[str, str]:
    """Return what sort of timeline this is, and its name cut to its column."""
    name = who(timeline)
    if _is_host(timeline):
        return "Python", name
    kind, _, rest = name.rpartition("stream ")
    device, slash, stream = rest.rpartition("/")
    text, below = (stream, f"stream on {device}") if slash else (rest, kind)
    return escape(below), text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 1]}…"


def _bar(bar: _Bar, ident: str, unfinished_from: int | None = None) -> str:
    y = bar.y - _BAR // 2
    box = f'y="{y}" height="{_BAR}" rx="6"'
    shapes = f'<rect class="bar n{bar.number}" x="{bar.start}" width="{bar.end - bar.start}" {box}/>'
    if unfinished_from is not None:
        width = bar.end - unfinished_from
        shapes += f'<rect fill="url(#{ident}-hatch)" x="{unfinished_from}" width="{width}" {box}/>'
        shapes += f'<text class="still" x="{bar.end - 8}" y="{bar.y + 4}">{_STILL[bar.place.mode]}</text>'
    x = bar.start + 20
    return (
        f"<g><title>{escape(bar.place.operation)}: bytes {escape(bar.place.bytes)}</title>{shapes}"
        f'<circle class="dot" cx="{x}" cy="{bar.y}" r="10"/>'
        f'<text class="number n{bar.number}" x="{x}" y="{bar.y + 4}">{bar.number}</text>'
        f'<text class="verb" x="{x + 17}" y="{bar.y + 4}">{_VERBS[bar.place.mode]}</text></g>'
    )


def _queued(bar: _Bar, lanes: tuple[str, ...]) -> list[str]:
    """Return the line of the program that queued a stream's work, and the arrow to the work."""
    if _is_host(lanes[bar.lane]):
        return []
    y = _TOP
    x = bar.start - (0 if bar.number == 1 else 14)
    word = "handed over" if bar.place.mode == "lent" else "queued"
    return [
        f'<path class="queue" d="M{x} {y} L{bar.start + 2} {bar.y - _BAR // 2 - 2}" marker-end="url(#queue)"/>',
        f'<circle class="tick n{bar.number}" cx="{x}" cy="{y}" r="5"/>',
        f'<text class="small" x="{x - 6}" y="{y - 13}">line {bar.place.line}: {word}</text>',
    ]


def _missing(earlier: _Bar, later: _Bar) -> str:
    """Return the order that nothing enforces: from the end of the first to the beginning of the second."""
    down = later.y > earlier.y
    edge = _BAR // 2
    begin = (earlier.end, earlier.y + (edge if down else -edge))
    end = (later.end + 5, later.y)
    bend = (begin[0] + 4, end[1])
    text_y = (begin[1] + end[1]) // 2 + (10 if down else -2)
    return (
        f'<path class="missing" d="M{begin[0] - 12} {begin[1]} Q{bend[0]} {bend[1]} {end[0]} {end[1]}" '
        'marker-end="url(#missing)"/>'
        f'<text class="missing-text" x="{begin[0] + 4}" y="{text_y}">no order</text>'
    )


def _fixed(earlier: _Bar, later: _Bar, text: str) -> str:
    begin, end = (earlier.end, earlier.y), (later.start - 5, later.y)
    middle = (begin[0] + end[0]) // 2
    y = later.y + (_BAR // 2 + 18 if later.y > earlier.y else -_BAR // 2 - 9)
    return (
        f'<path class="fixed" d="M{begin[0]} {begin[1]} C{middle} {begin[1]} {middle} {end[1]} {end[0]} {end[1]}" '
        'marker-end="url(#fixed)"/>'
        f'<text class="fixed-text" x="{_RIGHT}" y="{y}">{escape(text)}</text>'
    )


def _svg(parts: list[str], lanes: tuple[str, ...], title: str, ident: str) -> str:
    height = _TOP + len(lanes) * _LANE - 12
    hatch = (
        f'<defs><pattern id="{ident}-hatch" width="8" height="8" patternTransform="rotate(45)" '
        'patternUnits="userSpaceOnUse"><rect class="hatch" width="3" height="8"/></pattern></defs>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{hatch}{"".join(parts)}</svg>'


MARKERS = (
    '<svg class="markers" aria-hidden="true"><defs>'
    + "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="{size}" markerHeight="{size}" '
        f'orient="auto"><path class="head {name}-head" d="M0 0 L10 5 L0 10 z"/></marker>'
        for name, size in (("queue", 6), ("missing", 7), ("fixed", 7))
    )
    + "</defs></svg>"
)
"""Arrow heads, once a page."""
