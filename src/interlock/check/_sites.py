"""Which frames of a stack are the program's own, so that a report points at lines that a user can change."""

from __future__ import annotations

import os
import sysconfig
from functools import lru_cache
from typing import TYPE_CHECKING

from interlock._core._sites import OURS, here

if TYPE_CHECKING:
    from interlock._core._events import Frame, Site

__all__ = ["here", "is_library", "user_frame"]

_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Tell whether a frame in `file` is a library's and not the program's own."""
    if file.startswith("<"):
        return True
    path = os.path.realpath(file)
    if path.startswith(OURS + os.sep):
        return True
    return path.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in path


def user_frame(site: Site) -> Frame:
    """Return the innermost frame that is the program's own; the innermost of all if none is."""
    for frame in site:
        if not is_library(frame[0]):
            return frame
    return site[0] if site else ("<unknown>", 0, "<unknown>")
