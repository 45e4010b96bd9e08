"""What iterators hand out, in NumPy or torch, and write again when they are asked for the next item.

Source: `__next__` and generators of the program, heard of when they return or yield.
"""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.check._watch._ledger import Loan
from interlock.check._watch._lines import site_at
from interlock.check._watch._memory import is_plain_tensor, keeper_of, leaves, span_of
from interlock.check._watch._producers import GENERATOR, is_held, is_wanted, possessions, producer_of, refers

if TYPE_CHECKING:
    from types import FrameType

    from interlock._core._events import Claim
    from interlock.check._watch._ledger import Ledger, Mutation
    from interlock.check._watch._lines import Lines
    from interlock.check._watch._memory import Memory

_MOST_LOANS = 64
"""Items that are remembered at once: more than any ring has slots."""
_MOST_BYTES = 32 << 20
"""Arrays above this are not remembered, since each costs a copy."""
_LEAVES_PER_ITEM = 8
_SURE_LOOKS = 4
"""Changes at one place after which who holds the item is asked at every second, fourth, eighth … change only."""
_CONTAINERS = (list, tuple, dict, set, deque)


@final
class ProducerWatch:
    """Opens loans for what generators and iterators of the program hand out of their own memory.

    Args:
        ledger: Where loans are kept.
        lines: Who follows lines.
    """

    def __init__(self, ledger: Ledger, lines: Lines) -> None:
        self._ledger = ledger
        self._lines = lines
        self._loans: OrderedDict[Memory, Loan] = OrderedDict()
        self._looks: dict[tuple[str, int], int] = {}

    def install(self) -> None:
        """Listen for what functions return and yield."""
        self._lines.on_return.append(self._returned)

    def _returned(self, frame: FrameType, value: Any) -> None:
        code = frame.f_code
        if value is None or not (code.co_flags & GENERATOR or code.co_name in {"__next__", "__anext__"}):
            return
        receiver = self._lines.user_frame(frame.f_back)
        if receiver is None:
            return
        for leaf in itertools.islice(leaves(value, _is_array, 2), _LEAVES_PER_ITEM):
            span = span_of(leaf)
            if span is not None and span.nbytes <= _MOST_BYTES:
                memory = self._ledger.memory(span, keeper_of(leaf))
                if any(refers(values, memory) for values in possessions(frame)):
                    self._lend(memory, leaf, receiver)

    def _lend(self, memory: Memory, leaf: Any, receiver: FrameType) -> None:
        known = self._loans.pop(memory, None)
        if known is not None:
            self._ledger.close(known)
        reference = weakref.ref(leaf)

        def judge(loan: Loan, mutation: Mutation) -> Claim | None:
            frame = mutation.frame
            producer = producer_of(frame, memory)
            if producer is None or _runs_elsewhere(producer) or not self._is_look_due(loan):
                return None
            return "recycle" if is_held(memory, object, frame) or _is_kept(reference(), producer) else None

        site = site_at(receiver, receiver.f_lineno)
        self._loans[memory] = self._ledger.open(Loan(memory, "consumer", "recycle", site, judge, is_vague=True))
        if len(self._loans) > _MOST_LOANS:
            self._ledger.close(self._loans.popitem(last=False)[1])

    def _is_look_due(self, loan: Loan) -> bool:
        place = loan.site[0][:2]
        count = self._looks[place] = self._looks.get(place, 0) + 1
        return count <= _SURE_LOOKS or not count & (count - 1)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_plain_tensor(sys.modules.get("torch"), value)


def _runs_elsewhere(producer: FrameType) -> bool:
    """Tell whether another thread is inside the producer now: what its calls hold for a moment cannot be told apart."""
    if producer.f_back is None:  # between two items
        return False
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as below
    while frame is not None and frame is not producer:
        frame = frame.f_back
    return frame is None


def _is_kept(value: Any, producer: FrameType) -> bool:
    """Tell whether a container that is wanted holds `value`, its producer's own apart."""
    if value is None:
        return False
    own = {id(values) for values in possessions(producer)}
    own |= {id(inner) for values in possessions(producer) for inner in values.values()}
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` uses, without its cost
    while frame is not None:
        own |= {id(frame.f_locals), id(frame.f_globals)}
        frame = frame.f_back
    holders = [one for one in gc.get_referrers(value) if type(one) in _CONTAINERS and id(one) not in own]
    holders = [one for one in holders if not _is_between_items(one)]
    return any(is_wanted(holders.pop(), 0) for _ in range(len(holders)))


def _is_between_items(container: Any) -> bool:
    """Tell whether this is the tuple that `enumerate` or `zip` fills again for each item."""
    return type(container) is tuple and any(isinstance(one, (enumerate, zip)) for one in gc.get_referrers(container))
