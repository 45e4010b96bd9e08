"""Which line of the program changed watched bytes: they are compared at each line that the program's own code runs.

A line's change is seen when the next line begins, in whatever frame of the same thread. Code of libraries is not
followed, so what a library changes belongs to the line that called it.

Source: `sys.settrace`. One that is in use already, as by a debugger, is left alone, and lines are then less exact.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from interlock._core._sites import OURS
from interlock.check._sites import is_library
from interlock.check._watch._liveness import names_in_line, strength_of_line
from interlock.check._watch._producers import refers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from interlock._core._events import Site
    from interlock.check._watch._ledger import Ledger
    from interlock.check._watch._memory import Memory

_DEEPEST = 40
_UNKNOWN = True
_CHECK = os.path.join(OURS, "check") + os.sep  # noqa: PTH118 - compared as text


@final
class Lines:
    """Follows the lines of all threads that start while it is active, and of the thread that starts it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: dict[int, tuple[FrameType, int]] = {}
        self._serials: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._own: dict[CodeType, bool] = {}
        self._busy = threading.local()
        self.on_return: list[Callable[[FrameType, Any], None]] = []
        self.on_line: list[Callable[[FrameType, int], None]] = []
        self.on_failure: Callable[[Exception], None] = lambda _: None
        ledger.settle, ledger.begin = self.settle, self._begin

    @contextmanager
    def active(self) -> Iterator[bool]:
        """Follow lines; tell whether that is possible."""
        if sys.gettrace() is not None:
            yield False
            return
        trace = self._tracer()
        threading.settrace(trace)
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` uses, without its cost
        followed: list[FrameType] = []
        while frame is not None:
            if self._is_own(frame.f_code):
                frame.f_trace = self._local
                followed.append(frame)
            frame = frame.f_back
        sys.settrace(trace)
        try:
            yield True
        finally:
            sys.settrace(None)
            threading.settrace(None)
            while followed:
                followed.pop().f_trace = None
            self.settle()
            self._last.clear()
            self._serials.clear()

    def serial(self, frame: FrameType | None) -> int:
        """Return the number of the call that `frame` is; 0 if it began before."""
        return self._serials.get(id(frame), 0)

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame from `frame` outwards that is the program's own."""
        while frame is not None and not self._is_own(frame.f_code):
            frame = frame.f_back
        return frame

    def caller(self) -> FrameType | None:
        """Return the program's frame that this call comes from; None if it comes from Interlock itself."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` uses, without its cost
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(OURS) and not name.startswith(_CHECK):
                return None
            if self._is_own(frame.f_code):
                return frame
            frame = frame.f_back
        return None

    def settle(self) -> None:
        """Attribute what has changed so far to the line that this thread is in."""
        if len(self._ledger) and not getattr(self._busy, "yes", False):
            self._check()

    def _is_own(self, code: CodeType) -> bool:
        own = self._own.get(code)
        if own is None:
            own = self._own[code] = not is_library(code.co_filename)
        return own

    def _begin(self) -> None:
        """The first loan is open: from now on lines count, also those that run already."""
        self._last.clear()
        frame = self.caller()
        if frame is not None:
            self._last[threading.get_ident()] = (frame, frame.f_lineno)
            _follow_lines(frame)
        frames = sys._current_frames()  # noqa: SLF001 - the only way to the frames of other threads
        frames.pop(threading.get_ident())  # refers to itself by this variable, and would keep all that its callers hold
        for running in frames.values():
            _follow_lines(running)

    def _tracer(self) -> Callable[[FrameType, str, Any], Any]:
        """Return what is called at every call of a function; those of libraries cost one look-up."""
        known, ledger, local = self._own.get, self._ledger, self._local

        def trace(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001 - as sys.settrace calls it
            if not known(frame.f_code, _UNKNOWN) or not self._is_own(frame.f_code):
                return None
            self._serials[id(frame)] = next(self._numbers)
            if len(ledger):
                self.settle()
                self._last[threading.get_ident()] = (frame, frame.f_lineno)
            elif not self.on_line:
                frame.f_trace_lines = False
            return local

        return trace

    def _local(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            if event == "line":
                if len(self._ledger):
                    self._line_ended()
                    self._last[threading.get_ident()] = (frame, frame.f_lineno)
                for listener in self.on_line:
                    listener(frame, frame.f_lineno)
            elif event == "return":
                self._line_ended()
                self._serials.pop(id(frame), None)
                for hear in self.on_return:
                    hear(frame, argument)
                self._go_back(frame.f_back)
        except Exception as error:  # noqa: BLE001 - a watcher never breaks the program
            self.on_failure(error)
        return self._local

    def _line_ended(self) -> None:
        """Look whether the line that this thread was in has changed anything, if it can have."""
        if len(self._ledger) and _strength(self._last.get(threading.get_ident())):
            self.settle()

    def _go_back(self, frame: FrameType | None) -> None:
        back = self.user_frame(frame) if len(self._ledger) else None
        if back is None:  # also once no loan is open: a frame that ended must not keep what it held
            self._last.pop(threading.get_ident(), None)
        else:
            self._last[threading.get_ident()] = (back, back.f_lineno)

    def _check(self) -> None:
        self._busy.yes = True
        try:
            self._ledger.check(self._attribute)
        except Exception as error:  # noqa: BLE001 - a watcher never breaks the program
            self.on_failure(error)
        finally:
            self._busy.yes = False

    def _attribute(self, memory: Memory) -> tuple[int, FrameType | None, Site]:
        """Return whose line it was: this thread's, unless another's is more likely to have written `memory`."""
        ident = threading.get_ident()
        own = self._last.get(ident)
        if own is None:
            frame = self.caller()
            own = (frame, frame.f_lineno) if frame is not None else None
        best, thread, place = _likelihood(own, memory), ident, own
        for other, last in list(self._last.items()):
            if other != ident and _likelihood(last, memory) > best:
                best, thread, place = _likelihood(last, memory), other, last
        if place is None:
            return thread, None, ()
        return thread, place[0], site_at(*place)


def _follow_lines(frame: FrameType | None) -> None:
    """Hear of the lines of `frame` and its callers, as far as they are the program's own."""
    while frame is not None:
        if frame.f_trace is not None:
            frame.f_trace_lines = True
        frame = frame.f_back


def _likelihood(place: tuple[FrameType, int] | None, memory: Memory) -> tuple[int, bool]:
    """Order lines by how likely they wrote `memory`: by what they do, then by whether they name it."""
    if place is None:
        return 0, False
    frame, line = place
    names = names_in_line(frame.f_code, line)
    return _strength(place), refers([frame.f_locals.get(name) for name in names], memory)


def _strength(place: tuple[FrameType, int] | None) -> int:
    """Tell how likely a line is to have changed anything; one that is not known may have."""
    return strength_of_line(place[0].f_code, place[1]) if place is not None else 1


def site_at(frame: FrameType, line: int) -> Site:
    """Return the stack of `frame` at `line`, innermost first."""
    found = [(frame.f_code.co_filename, line, frame.f_code.co_qualname)]
    back = frame.f_back
    while back is not None and len(found) < _DEEPEST:
        found.append((back.f_code.co_filename, back.f_lineno, back.f_code.co_qualname))
        back = back.f_back
    return tuple(found)
