"""Tickets: how far the rows of one put have come. No value can be read from one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from interlock._core._fence import Fence
from interlock._waiting import wait
from interlock.errors import DeviceError, InterlockError, UsageError

if TYPE_CHECKING:
    from interlock.drain._jobs import Landing
    from interlock.drain._link import Link


@final
class Ticket:
    """How far the rows of one put have come: *landed*, then *written*, then *committed*. Only a `Drain` makes them."""

    __slots__ = ("_landings", "_link", "_tick")

    def __init__(self, link: Link, landings: tuple[Landing, ...], tick: int) -> None:
        self._link = link
        self._landings = landings
        self._tick = tick

    def __repr__(self) -> str:
        state = next((name for name in ("committed", "written", "landed") if getattr(self, name)), "put")
        return f"Ticket({state})"

    @property
    def landed(self) -> bool:
        """Whether the values are on the host, so that borrowed device memory may be written again. Never blocks."""
        return _is_reached(self._fence("landed"))

    @property
    def written(self) -> bool:
        """Whether the rows are with the sink, so that borrowed arrays may change. A crash may still lose them."""
        return _is_reached(self._fence("written"))

    @property
    def committed(self) -> bool:
        """Whether the rows are on the storage and in the manifest: no crash loses them. Never blocks."""
        return _is_reached(self._fence("committed"))

    def wait(self, state: Literal["landed", "written", "committed"] = "committed", *, timeout_s: float = 600.0) -> None:
        """Block until the rows have come that far.

        Waiting for `committed` does not hurry it: `Drain.flush` does.

        Raises:
            SinkError: Writing failed, now or before.
            DeviceError: A device lost the values.
            BoundError: `timeout_s` passed.
            UsageError: There is no such state.

        Blocks: until the state is reached, the drain failed, or the bound is.
        """
        if state not in {"landed", "written", "committed"}:
            raise UsageError(f"no ticket is ever {state!r}", hint="wait for landed, written or committed")
        try:
            wait(self._fence(state), timeout_s=timeout_s, what=f"the put, to be {state},")
        except DeviceError as error:
            if isinstance(error.__cause__, InterlockError):  # the drain's own failure says more
                raise error.__cause__.with_traceback(None) from None
            raise

    def _fence(self, state: str) -> Fence:
        if state == "landed":
            return Fence.EMPTY.join(*(landing.fence for landing in self._landings))
        if not self._tick:
            return Fence.EMPTY
        return Fence([(self._link.written if state == "written" else self._link.committed, self._tick)])


def _is_reached(fence: Fence) -> bool:
    return fence.poll() and fence.failure() is None
