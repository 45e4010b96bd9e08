"""How to wait. The only code of Interlock that blocks.

`wait` waits for a fence; `Inbox` is where finalisers, workers and devices leave messages for the thread that owns a
ring.
"""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Generic, TypeVar, final

from interlock.errors import BoundError, DeviceError

if TYPE_CHECKING:
    from interlock._core._fence import Fence, Timeline

T = TypeVar("T")

_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 1e-3
"""Polling starts well below the time of a small copy and backs off to a load that no profile shows."""

_LONGEST_SLEEP_S = 0.5
"""A signal that comes when the interpreter has looked for signals, and its thread does not sleep yet, does not end the
sleep: Ctrl-C would do nothing until something else does. Where processors are taken that is not rare."""


@final
class Inbox(Generic[T]):
    """Messages for one owner, left by anybody.

    `post` may be called on any thread, from a finaliser or a deleter, and while the owner holds any lock: it appends
    and does nothing else.

    Source: `queue.SimpleQueue` is documented as re-entrant for exactly this use.
    """

    __slots__ = ("_queue", "post")

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[T] = queue.SimpleQueue()
        self.post = self._queue.put
        """Leave a message. Never blocks."""

    def take_nowait(self) -> T | None:
        """Return the oldest message, or None."""
        if self._queue.empty():  # nearly always; one exception costs as much as ten of these
            return None
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def wait_take(self, timeout_s: float) -> T | None:
        """Return the oldest message, or None after `timeout_s` seconds (at once if it is not positive). Blocks."""
        left_s, deadline = max(0.0, timeout_s), 0.0
        while True:
            try:
                return self._queue.get(timeout=min(left_s, _LONGEST_SLEEP_S))
            except queue.Empty:
                deadline = deadline or time.monotonic() + left_s - min(left_s, _LONGEST_SLEEP_S)
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None


def wait(fence: Fence, *, timeout_s: float, what: str) -> None:
    """Block the calling thread until `fence` is reached.

    Args:
        fence: What to wait for.
        timeout_s: Bound in seconds.
        what: What the fence stands for, for messages: "the copy of batch 3".

    Raises:
        DeviceError: The fence failed; its cause is chained.
        BoundError: `timeout_s` passed.

    Blocks: until the fence is reached, failed, or the bound is.
    """
    if not fence.poll(waiting=True):
        _wait_slowly(fence, timeout_s, what)
    cause = fence.failure()
    if cause is not None:
        raise DeviceError(f"{what} failed", why=f"{type(cause).__name__}: {cause}") from cause


def _wait_slowly(fence: Fence, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    bell: queue.SimpleQueue[Timeline] = queue.SimpleQueue()
    pause_s = _FIRST_PAUSE_S
    # Each is asked once, and again only when it rang: a timeline keeps every wish until its next change.
    pending = [timeline for timeline, tick in fence.points if not timeline.reached(tick)]
    answers = [_ask_for_call(timeline, bell) for timeline in pending]
    must_poll = not all(answers)
    while not fence.poll(waiting=True):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise BoundError(
                f"{what} is not done after {timeout_s:g} s",
                why=f"still waiting for {fence!r}",
                hint="the work before it hangs, or is longer than the bound",
            )
        try:
            rang = bell.get(timeout=min(left_s, pause_s if must_poll else _LONGEST_SLEEP_S))
        except queue.Empty:
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            _ask_for_call(rang, bell)


def _ask_for_call(timeline: Timeline, bell: queue.SimpleQueue[Timeline]) -> bool:
    """Ask a timeline to ring at its next change; return False if it cannot and must be polled."""
    return timeline.notify(lambda: bell.put(timeline))
