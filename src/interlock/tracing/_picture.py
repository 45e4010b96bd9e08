"""One picture of a trace: an SVG file that reads in light and dark, with nothing from anywhere else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final
from xml.sax.saxutils import escape

from interlock.errors import UsageError
from interlock.tracing._lanes import IDLE, Window, lanes_of, middle_of, with_crew

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from interlock.tracing._lanes import Lane
    from interlock.tracing._reading import Bar, Recording

_WIDTH = 1200
_LEFT, _RIGHT = 152, 1088
_TALL, _THIN = 34, 13
_BAR, _THIN_BAR = 26, 10
_HEAD = 40
_PANEL_GAP = 22
_AXIS = 44
_HUES = 6
_CHARACTER = 6.6
"""Width of a character of a label, about."""
_SMALLEST = 0.6
_MOST_TITLE = 20
"""Characters beside a row."""

_LIGHT = {
    "hues": ("#2f6fd0", "#0b7f83", "#7a55c8", "#b0560d", "#b83a78", "#35782f"),
    "page": "#ffffff", "border": "#d9dee6", "ink": "#1b2330", "soft": "#5b6675", "line": "#e8ecf1",
    "lane": "#f4f6f9", "idle": "#c9d1dc", "on": "#ffffff",
}  # fmt: skip
_DARK = {
    "hues": ("#78aaff", "#4fc7c9", "#b79df5", "#f0a35c", "#f08ab8", "#83cf7c"),
    "page": "#12171e", "border": "#2c3541", "ink": "#e6eaf0", "soft": "#9aa6b5", "line": "#222a34",
    "lane": "#181f28", "idle": "#475262", "on": "#0d1218",
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Panel:
    """A recording as a part of a picture.

    Attributes:
        title: Shown above it.
        recording: From `read`.
    """

    title: str
    recording: Recording


def draw(
    panels: Sequence[Panel],
    path: str | os.PathLike[str],
    *,
    start_ms: float | None = None,
    end_ms: float | None = None,
) -> None:
    """Write a picture of recordings, one below the other on the same scale of time.

    Args:
        panels: The recordings.
        path: The SVG file.
        start_ms: Where the part that is shown begins, in each. Default: in the middle.
        end_ms: Where it ends. Default: after some batches of the fastest.

    Raises:
        UsageError: A recording has nothing in that part, or the file cannot be written.
    """
    windows = _windows([panel.recording for panel in panels], start_ms, end_ms)
    parts: list[str] = []
    y = 0.0
    for panel, window in zip(panels, windows, strict=True):
        y = _draw_panel(parts, panel, window, y)
    height = y + _AXIS
    parts.insert(0, _axis(windows[0].length_ms, y))
    try:
        Path(path).write_text(_document(parts, panels, windows, height), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the picture {str(path)!r} cannot be written", why=f"{error.strerror or error}") from error


def _windows(recordings: list[Recording], start_ms: float | None, end_ms: float | None) -> list[Window]:
    middles = [middle_of(recording) for recording in recordings]
    starts = [window.start_ms if start_ms is None else start_ms for window in middles]
    length_ms = min(window.length_ms for window in middles)
    if end_ms is not None:
        length_ms = end_ms - max(starts)
    if length_ms <= 0:
        end = f" to {end_ms:g} ms" if end_ms is not None else ""
        raise UsageError(f"the part from {max(starts):g}{end} is empty", hint="end it after its beginning")
    return [Window(start, start + length_ms) for start in starts]


def _draw_panel(parts: list[str], panel: Panel, window: Window, y: float) -> float:
    """Add a panel that begins at `y`; return where it ends."""
    lanes = with_crew(lanes_of(panel.recording, window))
    if not lanes:
        raise UsageError(
            f"no span lies between {window.start_ms:g} and {window.end_ms:g} ms", hint="choose other times"
        )
    y += _HEAD if panel.title else _PANEL_GAP
    if panel.title:
        parts.append(f'<text class="title" x="24" y="{y - 14:g}">{escape(panel.title)}</text>')
    for lane in lanes:
        height = _TALL if lane.tall else _THIN
        parts.append(_lane(lane, window, y, height))
        y += height
    return y + _PANEL_GAP / 2


def _lane(lane: Lane, window: Window, y: float, height: float) -> str:
    thickness = _BAR if lane.tall else _THIN_BAR
    top = y + (height - thickness) / 2
    middle = y + height / 2
    title = _cut(lane.title, _MOST_TITLE - len(lane.detail))
    weight = "note main" if lane.main else "note"
    where = f'<tspan class="soft">{escape(lane.detail)}</tspan> ' if lane.detail else ""
    parts = [
        f'<rect class="lane" x="{_LEFT}" y="{top:g}" width="{_RIGHT - _LEFT}" height="{thickness}" rx="3"/>',
        f'<text class="who" x="{_LEFT - 12}" y="{middle + 4:g}">{where}{escape(title)}</text>',
        f'<text class="{weight}" x="{_RIGHT + 12}" y="{middle + 4:g}">{escape(lane.note)}</text>',
    ]
    parts += [_bar(bar, window, top, thickness, tall=lane.tall) for bar in lane.bars]
    return "".join(parts)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(1, most - 1)]}…"


def _bar(bar: Bar, window: Window, top: float, thickness: float, *, tall: bool) -> str:
    scale = (_RIGHT - _LEFT) / window.length_ms
    left = _LEFT + (max(bar.start_ms, window.start_ms) - window.start_ms) * scale
    width = max(_SMALLEST, window.overlap_ms(bar) * scale)
    kind = "idle" if bar.name in IDLE else f"n{bar.number % _HUES}" if bar.number >= 0 else "other"
    shape = (
        f'<rect class="bar {kind}" x="{left:.2f}" y="{top:g}" width="{width:.2f}" height="{thickness}" '
        f'rx="{min(3.0, width / 3):.2g}"/>'
    )
    label = _label(bar, width) if tall else ""
    if label:
        side = "soft" if kind == "idle" else "on"
        shape += f'<text class="label {side}" x="{left + width / 2:.2f}" y="{top + thickness / 2 + 4:g}">{label}</text>'
    return f"<g><title>{escape(_tip(bar))}</title>{shape}</g>"


def _label(bar: Bar, width: float) -> str:
    number = str(bar.number) if bar.number >= 0 and bar.name not in IDLE else ""
    for text in (f"{bar.name} {number}".strip(), number):
        if text and len(text) * _CHARACTER + 6 <= width:
            return escape(text)
    return ""


def _tip(bar: Bar) -> str:
    duration_ms = bar.end_ms - bar.start_ms
    text = f"{bar.name} {bar.number}" if bar.number >= 0 else bar.name
    text += f": {duration_ms:.3g} ms"
    if bar.size_bytes:
        text += f", {bar.size_bytes / 1e6:.4g} MB"
        if duration_ms > 0:
            text += f", {bar.size_bytes / duration_ms / 1e6:.3g} GB/s"
    return f"{text} ({bar.subject})" if bar.subject else text


def _axis(length_ms: float, y: float) -> str:
    step = _tick(length_ms)
    scale = (_RIGHT - _LEFT) / length_ms
    parts = []
    for count in range(int(length_ms / step) + 1):
        x = _LEFT + count * step * scale
        parts.append(f'<line class="grid" x1="{x:.2f}" y1="{_PANEL_GAP}" x2="{x:.2f}" y2="{y:g}"/>')
        text = f"{count * step:g}" + (" ms" if count == 0 else "")
        parts.append(f'<text class="time" x="{x:.2f}" y="{y + 18:g}">{text}</text>')
    return "".join(parts)


def _tick(length_ms: float) -> float:
    """Return a round distance for about ten ticks."""
    rough = length_ms / 10
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _document(parts: list[str], panels: Sequence[Panel], windows: list[Window], height: float) -> str:
    last = with_crew(lanes_of(panels[-1].recording, windows[-1]))
    names = "; ".join(panel.title for panel in panels if panel.title) or "A timeline"
    lanes = ", ".join(dict.fromkeys(lane.title for lane in last if lane.title))
    description = f"{windows[0].length_ms:.3g} ms of a recording; rows: {lanes}. A colour and a number are a batch."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" '
        f'height="{height:g}" role="img" aria-labelledby="title desc">'
        f'<title id="title">{escape(names)}</title><desc id="desc">{escape(description)}</desc>'
        f"<style>{_STYLE}{_colours(_LIGHT)}@media (prefers-color-scheme: dark){{{_colours(_DARK)}}}</style>"
        f'<rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:g}" rx="10"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


_STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
    ".title{font-size:15px;font-weight:650}.who{text-anchor:end;font-weight:600}.who .soft{font-weight:400}"
    ".note.main{font-weight:650}"
    ".label{text-anchor:middle;font-size:11px;font-weight:600}.time{text-anchor:middle}"
    ".grid{stroke-width:1}.page{stroke-width:1}.bar{stroke-width:.75}"
)


def _colours(theme: Mapping[str, Sequence[str]]) -> str:
    bars = "".join(f".n{number}{{fill:{hue}}}" for number, hue in enumerate(theme["hues"]))
    return (
        f".page{{fill:{theme['page']};stroke:{theme['border']}}}.title,.who,.note.main{{fill:{theme['ink']}}}"
        f".note,.time,.soft{{fill:{theme['soft']}}}.lane{{fill:{theme['lane']}}}.grid{{stroke:{theme['line']}}}"
        f".bar{{stroke:{theme['page']}}}.idle{{fill:{theme['idle']}}}.other{{fill:{theme['soft']}}}"
        f".on{{fill:{theme['on']}}}{bars}"
    )
