"""The fold: frozen events in, hazards out. Pure: no framework, no I/O, no time.

Order and lifetime are separate faults. *Order*: two accesses to the same bytes, at least one a write, with no path of
fences between them. *Lifetime*: bytes given away, reused or changed while a party still holds them.

No false alarm as far as the events say the truth, and no miss in what they say; what nobody emits nobody sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from interlock._core._events import Access, Alloc, Event, Free, Handoff, HostWait, Record, Wait
from interlock.check._clocks import HOST, Clocks, folded
from interlock.check._shadow import Entry, Shadow
from interlock.check._sites import user_frame

if TYPE_CHECKING:
    from interlock._core._events import AllocationId, Claim, Region
    from interlock.check._model import Verdict

_PRUNE_EVERY = 4096
"""Accesses between two prunings: rare enough to cost nothing, often enough to bound memory."""

_MOST_FREED = 1 << 12
"""Freed allocations remembered, so that a use after the end is known for what it is."""

_KIND_OF_CLAIM: dict[Claim, str] = {
    "slot": "recycled",
    "recycle": "recycled",
    "alias": "aliased-mutation",
    "snapshot": "moving-snapshot",
    "donate": "use-after-donate",
}


@final
@dataclass(slots=True)
class Finding:
    """A hazard as the fold sees it.

    Attributes:
        kind: As in `CODES`.
        verdict: `race`, or `may-race` where one access may not have happened.
        earlier: The access or loan that came first.
        later: The access that has no order with it.
        count: How often this pair of places was found.
    """

    kind: str
    verdict: Verdict
    earlier: Entry | Handoff
    later: Entry
    count: int = 1

    def shares_bytes(self, region: Region) -> bool:
        """Tell whether the hazard is about bytes of `region`."""
        return self.later.region.overlaps(region) or self.earlier.region.overlaps(region)


@final
class Fold:
    """Takes events in the order in which they were emitted.

    Attributes:
        findings: What was found so far; each pair of places and kind once.
        steps: Accesses so far.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.steps = 0
        self._clocks = Clocks()
        self._shadows: dict[AllocationId, Shadow] = {}
        self._loans: dict[AllocationId, dict[tuple[str, int], Handoff]] = {}
        self._freed: dict[AllocationId, Entry] = {}
        self._known: dict[tuple[object, ...], Finding] = {}

    def timelines(self) -> tuple[str, ...]:
        """Return the timelines that acted, in the order in which they first did."""
        return self._clocks.timelines()

    def add(self, event: Event) -> None:
        """Take one event in."""
        if type(event) is Access:  # nearly all of them
            self._access(event, event.region)
        elif isinstance(event, Record):
            self._clocks.record(folded(event.timeline), event.tick)
        elif isinstance(event, (Wait, HostWait)):
            self._clocks.wait(folded(event.timeline), event.points)
        elif isinstance(event, Free):
            self._free(event)
        elif isinstance(event, Handoff):
            self._hand_off(event)
        elif isinstance(event, Alloc):
            self._shadows.pop(event.allocation, None)

    def _access(self, event: Access | Free, region: Region) -> None:
        timeline = folded(event.timeline)
        epoch = self._clocks.tick(timeline, folded(event.issuer) if event.issuer else "")
        entry = Entry(epoch, event, region, is_write=isinstance(event, Free) or event.mode == "write")
        shadow = self._shadows.get(region.allocation)
        if shadow is None:
            shadow = self._shadows[region.allocation] = Shadow()
        conflicts = shadow.access(entry)
        if conflicts:
            for earlier in conflicts:
                if not self._clocks.is_before(earlier.epoch, timeline):
                    self._report(_kind_of(earlier, entry), earlier, entry)
        freed = self._freed.get(region.allocation)
        if freed is not None:  # too late, in whatever order
            self._report(_kind_of(freed, entry), freed, entry)
        if region.allocation in self._loans:
            self._check_loans(entry)
        self.steps += 1
        if self.steps % _PRUNE_EVERY == 0:
            self.prune()

    def _free(self, event: Free) -> None:
        span = self._shadows.setdefault(event.allocation, Shadow()).span(event.allocation)
        timeline = folded(event.timeline)
        self._access(event, span)
        self._freed[event.allocation] = Entry(self._clocks.now(timeline), event, span, is_write=True)
        self._loans.pop(event.allocation, None)
        del self._shadows[event.allocation]
        while len(self._freed) > _MOST_FREED:
            del self._freed[next(iter(self._freed))]

    def _hand_off(self, event: Handoff) -> None:
        loans = self._loans.setdefault(event.region.allocation, {})
        if event.what == "lent":
            loans[event.party, event.sequence] = event
        else:
            loans.pop((event.party, event.sequence), None)

    def _check_loans(self, entry: Entry) -> None:
        for loan in tuple(self._loans.get(entry.region.allocation, {}).values()):
            forbidden = entry.is_write or loan.claim == "donate"
            by_party = getattr(entry.event, "operation", "").startswith(loan.party)
            if forbidden and not by_party and loan.region.overlaps(entry.region):
                self._report(_KIND_OF_CLAIM[loan.claim], loan, entry)

    def _report(self, kind: str, earlier: Entry | Handoff, later: Entry) -> None:
        first = earlier.event if isinstance(earlier, Entry) else earlier
        key = (kind, user_frame(first.site), user_frame(later.event.site))
        known = self._known.get(key)
        if known is not None:
            known.count += 1
            return
        exact = _is_exact(first) and _is_exact(later.event)
        finding = self._known[key] = Finding(kind, "race" if exact else "may-race", earlier, later)
        self.findings.append(finding)

    def prune(self) -> None:
        """Forget what nothing to come can conflict with: what the host has seen done."""
        for allocation, shadow in list(self._shadows.items()):
            shadow.prune(lambda entry: self._clocks.seen_by_host(entry.epoch))
            if not len(shadow):
                del self._shadows[allocation]
        self._clocks.prune()


def _is_exact(event: object) -> bool:
    return bool(getattr(event, "exact", True))


def _kind_of(earlier: Entry, later: Entry) -> str:
    """Name the hazard of two accesses without order."""
    timelines = (earlier.epoch.timeline, later.epoch.timeline)
    if any("graph" in timeline for timeline in timelines):
        return "stale-graph-input"
    if isinstance(later.event, Free) or isinstance(earlier.event, Free):
        return "freed-in-flight"
    if any("collective" in timeline for timeline in timelines):
        return "unawaited-collective"
    if later.epoch.timeline == HOST:
        if not earlier.is_write:
            return "early-overwrite"
        return "late-landing" if later.is_write else "early-read"
    return "unordered-write" if later.is_write else "unordered-read"
