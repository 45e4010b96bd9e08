"""Where in a program something happens: stacks that are cheap to take."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from interlock._core._events import Frame, Site

_DEEPEST = 40
"""Frames looked at; deeper ones are not the program's own any more, or a recursion."""

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - compared as text
"""Folder of this package."""


_frames: dict[Frame, Frame] = {}
"""Each place of the program once, so that a million stacks take little more memory than their pointers."""


def here(skip: int = 1) -> Site:
    """Return the stack of the caller, innermost frame first, without Interlock's own frames at its inner end.

    Args:
        skip: Frames to leave out at the inner end, this function's own not counted.
    """
    frame: FrameType | None = sys._getframe(skip)  # noqa: SLF001 - what `inspect` uses, without its cost
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    found: list[Frame] = []
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code  # no key: equal code in two files is equal, whatever its file
        place = (code.co_filename, frame.f_lineno, code.co_qualname)
        found.append(_frames.setdefault(place, place))
        frame = frame.f_back
    return tuple(found)
