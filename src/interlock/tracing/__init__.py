"""A timeline of what feed, drain and devices do: recorded for Perfetto, and drawn as one picture."""

from __future__ import annotations

from interlock.tracing._lanes import Lane, Window, lanes_of, whole_of
from interlock.tracing._picture import Panel, draw
from interlock.tracing._reading import Bar, Recording, Track, read
from interlock.tracing._trace import Trace, trace

__all__ = [
    "Bar",
    "Lane",
    "Panel",
    "Recording",
    "Trace",
    "Track",
    "Window",
    "draw",
    "lanes_of",
    "read",
    "trace",
    "whole_of",
]
