"""Vector clocks over timelines: what is ordered before what.

Each timeline counts its own accesses. Its clock says, for every timeline, up to which count it comes after. Queuing
on a stream orders the operation after everything that the queuing host thread has seen; a recorded point remembers a
clock; a wait joins it.

Source: Mattern's vector clocks; FastTrack's epochs (an access is one count on one timeline); PyTorch's CUDA sanitizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from interlock._core._events import Points

HOST = "host"
"""All host threads, folded into one timeline: what one has seen the others take as seen, as they do under the GIL."""


class Epoch(NamedTuple):
    """One access: number `number` of `timeline`."""

    timeline: str
    number: int


_folded: dict[str, str] = {}


def folded(timeline: str) -> str:
    """Return the timeline under which `timeline` is counted."""
    known = _folded.get(timeline)
    if known is None:
        known = _folded[timeline] = HOST if timeline.startswith("host:") else timeline
    return known


@final
class Clocks:
    """The clocks of all timelines. Pure: no time, no threads, no randomness."""

    def __init__(self) -> None:
        self._clocks: dict[str, dict[str, int]] = {}
        self._versions: dict[str, int] = {}
        self._joined: dict[tuple[str, str], int] = {}
        self._points: dict[str, dict[int, dict[str, int]]] = {}

    def of(self, timeline: str) -> dict[str, int]:
        """Return the clock of a timeline, to read only."""
        return self._clocks.setdefault(timeline, {})

    def timelines(self) -> tuple[str, ...]:
        """Return the timelines that have a clock, in the order in which they came."""
        return tuple(self._clocks)

    def tick(self, timeline: str, issuer: str = "") -> Epoch:
        """Count an access on `timeline`, queued by the host timeline `issuer` if that is another."""
        clock = self._clocks.setdefault(timeline, {})
        if issuer and issuer != timeline:
            version = self._versions.get(issuer, 0)
            if self._joined.get((timeline, issuer)) != version:  # else the issuer has seen nothing new since
                self._joined[timeline, issuer] = version
                _join(clock, self._clocks.setdefault(issuer, {}))
        clock[timeline] = number = clock.get(timeline, 0) + 1
        self._versions[timeline] = self._versions.get(timeline, 0) + 1
        return Epoch(timeline, number)

    def now(self, timeline: str) -> Epoch:
        """Return the last access that was counted on `timeline`."""
        return Epoch(timeline, self._clocks.setdefault(timeline, {}).get(timeline, 0))

    def record(self, timeline: str, tick: int) -> None:
        """Remember the clock of `timeline` as its point `tick`."""
        self._points.setdefault(timeline, {})[tick] = dict(self._clocks.setdefault(timeline, {}))

    def wait(self, timeline: str, points: Points) -> None:
        """Order what comes next on `timeline` after `points`; a point that was never recorded orders nothing."""
        clock = self._clocks.setdefault(timeline, {})
        for other, tick in points:
            known = self._points.get(folded(other), {}).get(tick)
            if known is not None:
                _join(clock, known)
                self._versions[timeline] = self._versions.get(timeline, 0) + 1

    def is_before(self, epoch: Epoch, timeline: str) -> bool:
        """Tell whether the access is ordered before what comes next on `timeline`."""
        return self._clocks.setdefault(timeline, {}).get(epoch.timeline, 0) >= epoch.number

    def seen_by_host(self, epoch: Epoch) -> bool:
        """Tell whether the host has seen the access done: then everything that is queued from now on comes after it."""
        return self.is_before(epoch, HOST)

    def prune(self) -> None:
        """Forget points that can add no order any more, since the host has seen all that they say."""
        host = self._clocks.get(HOST, {})
        for points in self._points.values():
            for tick in [tick for tick, clock in points.items() if _covers(host, clock)]:
                del points[tick]


def _join(clock: dict[str, int], other: dict[str, int]) -> None:
    for timeline, count in other.items():
        if clock.get(timeline, 0) < count:
            clock[timeline] = count


def _covers(clock: dict[str, int], items: dict[str, int]) -> bool:
    pairs: Iterable[tuple[str, int]] = items.items()
    return all(clock.get(timeline, 0) >= count for timeline, count in pairs)
