"""Loans that are open, and what becomes of a change of their bytes."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from interlock._core import _events
from interlock._core._events import Access, Handoff
from interlock.check._sites import user_frame
from interlock.check._watch._memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from interlock._core._events import Claim, Region, Site
    from interlock.check._watch._memory import Keeper, Span


@final
@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of watched bytes.

    Attributes:
        thread: Ident of the thread whose line it was.
        frame: The frame of that line, or None where it is not known.
        site: Its stack.
        region: The bytes.
    """

    thread: int
    frame: FrameType | None
    site: Site
    region: Region


@final
@dataclass(slots=True, eq=False)
class Loan:
    """Bytes that a party holds.

    Attributes:
        memory: The bytes.
        party: Who holds them.
        claim: By what right; what `judge` says at a change comes first.
        site: Where they were handed over.
        judge: Asked at each change: the claim that it breaks, or None if it is innocent.
        serial: Number of the call that handed them over, to tell it from a later call of the same function.
        thread: Ident of the thread that did.
        is_open: Whether it has not ended.
        exact: Whether the bytes are shared for certain.
        ends_with: Asked at each look: whether the loan has ended by itself.
        is_shared: Whether a second one from the same place is the same loan, so that a loop does not pile them up.
        is_vague: Whether a loan with a better place is to be reported instead, if the same change breaks one.
        count: How often it was opened, and is to be closed.
    """

    memory: Memory
    party: str
    claim: Claim
    site: Site
    judge: Callable[[Loan, Mutation], Claim | None]
    serial: int = 0
    thread: int = field(default_factory=threading.get_ident)
    is_open: bool = True
    exact: bool = True
    ends_with: Callable[[], bool] | None = None
    is_shared: bool = False
    is_vague: bool = False
    count: int = 1


@final
class Ledger:
    """All open loans of a session. Its methods may be called on any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loans: dict[Memory, list[Loan]] = {}
        self._sequence = itertools.count(1)
        self._said: set[tuple[object, ...]] = set()
        self.settle: Callable[[], None] = lambda: None
        """Attributes what has changed so far to the line that runs; set by whoever follows lines."""
        self.before_check: list[Callable[[], None]] = []
        """Called before bytes are compared, to close what has ended in the meantime."""
        self.begin: Callable[[], None] = lambda: None
        """Called when the first loan is opened; set as above."""

    def __len__(self) -> int:
        return len(self._loans)

    def memory(self, span: Span, *keepers: Keeper) -> Memory:
        """Return the watched memory at `span`, shared with the loans that are open on it."""
        self.settle()
        with self._lock:
            for memory in self._loans:
                if memory.span == span and memory.holder() is not None:
                    for keeper in keepers:
                        memory.keep(keeper)
                    return memory
            return Memory(span, *keepers)

    def open(self, loan: Loan) -> Loan:
        """Begin a loan, or return the one that is open from the same place on the same bytes by the same rule."""
        if not self._loans:
            self.begin()
        with self._lock:
            loans = self._loans.setdefault(loan.memory, [])
            for known in loans:
                if known.is_shared and loan.is_shared and (known.party, known.site) == (loan.party, loan.site):
                    known.count += 1
                    known.serial = loan.serial
                    return known
            loans.append(loan)
        return loan

    def close(self, loan: Loan) -> None:
        """End a loan; what has changed until now was still under it."""
        if not loan.is_open:
            return
        self.settle()
        with self._lock:
            loan.count -= 1
            if loan.count <= 0:
                self._drop(loan)

    def _drop(self, loan: Loan) -> None:
        loan.is_open = False
        loans = self._loans.get(loan.memory, [])
        if loan in loans:
            loans.remove(loan)
        if not loans:
            self._loans.pop(loan.memory, None)

    @contextmanager
    def nobody_looks(self) -> Iterator[None]:
        """Keep other threads from looking at watched bytes, while they change in a way that is nobody's line."""
        with self._lock:
            yield

    def absorb(self) -> None:
        """Take what the watched bytes hold now as what they held before: a change that is nobody's line."""
        with self._lock:
            for memory in self._loans:
                memory.changed()

    def check(self, attribute: Callable[[Memory], tuple[int, FrameType | None, Site]]) -> None:
        """Look at all watched bytes; what has changed is judged.

        Args:
            attribute: Asked for each memory that has: thread, frame and stack of the line that did it.
        """
        for prepare in self.before_check:
            prepare()
        found: list[tuple[Loan, Mutation]] = []
        with self._lock:
            for memory, loans in list(self._loans.items()):
                if memory.holder() is None:
                    del self._loans[memory]
                    continue
                region = memory.changed()
                if region is not None:
                    who = attribute(memory)
                    found += [(loan, Mutation(*who, region)) for loan in tuple(loans)]
                for loan in [loan for loan in loans if loan.ends_with is not None and loan.ends_with()]:
                    self._drop(loan)
        broken = [(loan, claim, one) for loan, one in found if (claim := loan.judge(loan, one)) is not None]
        told = [entry for entry in broken if not entry[0].is_vague] or broken
        for loan, claim, mutation in told:
            self.report_mutation(loan, claim, mutation)

    def report_mutation(self, loan: Loan, claim: Claim, mutation: Mutation) -> None:
        """Say that a change breaks `claim`."""
        timeline = f"host:{mutation.thread}"
        site, exact = mutation.site, loan.exact
        self.report(loan, claim, Access(timeline, mutation.region, "write", "changed", site=site, exact=exact))

    def report(self, loan: Loan, claim: Claim, access: Access) -> None:
        """Say that `access` breaks `claim`."""
        key = (claim, user_frame(loan.site), user_frame(access.site), access.mode)
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        sequence = next(self._sequence)
        span = loan.memory.span
        whole = _events.Region(loan.memory.allocation, 0, span.nbytes, span.pattern)
        timeline = f"host:{loan.thread}"
        _events.emit(Handoff(timeline, whole, "lent", loan.party, sequence, claim, loan.site))
        _events.emit(access)
        _events.emit(Handoff(timeline, whole, "returned", loan.party, sequence, claim, loan.site))


def always(loan: Loan, mutation: Mutation) -> Any:  # noqa: ARG001 - a rule
    """Judge every change as breaking the loan."""
    return loan.claim
