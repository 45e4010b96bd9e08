"""`verify=True`: every batch is compared with what was written into its slot, and slots that came back are poisoned."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._lease import LeaseState
from interlock._core._sums import Poison, Sums, difference, sums_of
from interlock._waiting import wait
from interlock.errors import CorruptionError, InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock._core._fence import Timeline
    from interlock._core._handover import Leaf
    from interlock._core._lease import Lease
    from interlock._core._pool import SlotMemory
    from interlock._core._protocols import Device, Framework, Memory
    from interlock.feed._work import Work

_REMEMBERED = 64
"""Batches whose checksums are kept, to tell whose bytes a wrong one holds."""

_NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
"""What a framework without 64-bit types makes of them (JAX, by default)."""


@final
@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a leaf must hold: its checksums, and those of its values in the narrower type."""

    leaf: Leaf
    sums: Sums
    narrowed: Sums | None


@final
@dataclass(frozen=True, slots=True)
class _Filled:
    """A batch between its writing and the end of its lease."""

    lease: Lease
    slot: SlotMemory
    leaves: tuple[_Wanted, ...]


@final
class Verifier:
    """Compares batches with what was written, and poisons the slots of those that ended.

    `filled` is called by workers, all else by the thread that owns the ring.

    Args:
        device: Where batches go.
        framework: Who reads them.
        stream: Stream on which slots are written.
        timeout_s: Bound on every wait.
    """

    def __init__(self, device: Device, framework: Framework, stream: Timeline, timeout_s: float) -> None:
        self._device = device
        self._framework = framework
        self._stream = stream
        self._timeout_s = timeout_s
        self._area: Memory | None = None
        self._poison = Poison(device, stream)
        self._filled: dict[int, _Filled] = {}
        self._recent: deque[tuple[int, tuple[_Wanted, ...]]] = deque(maxlen=_REMEMBERED)
        self._lent: tuple[int, list[tuple[weakref.ref[Any], _Wanted]]] = (-1, [])

    def filled(self, work: Work, slot: SlotMemory) -> None:
        """Note what a slot holds, or what is to be copied in its place, before it is sent to the device.

        Blocks: until those bytes are on the host that are not in the slot.
        """
        layout = work.layout
        if layout is None:
            raise InternalError(f"batch {work.number} has no layout")
        root = self._gathered(work, layout.size_bytes) if work.parts else slot.staging.view()
        shapes = layout.shapes(work.trim)
        leaves = tuple(self._wanted(leaf, root, shape) for leaf, shape in zip(layout.leaves, shapes, strict=True))
        self._filled[work.lease.sequence] = _Filled(work.lease, slot, leaves)

    def _gathered(self, work: Work, size_bytes: int) -> memoryview:
        """Return a copy of the bytes of a batch that a loader has on a device, or pinned. Only one worker has those."""
        if self._area is None or self._area.size_bytes < size_bytes:
            self._area = self._device.allocate_host(size_bytes)
        for part in work.parts:
            target = self._area.slice(part.offset_bytes, part.memory.size_bytes)
            self._device.copy(target, part.memory, self._stream)
        what = f"the copy that verifies batch {work.number}"
        wait(self._device.record(self._stream), timeout_s=self._timeout_s, what=what)
        return self._area.view()

    def _wanted(self, leaf: Leaf, root: memoryview, shape: tuple[int, ...]) -> _Wanted:
        held: np.ndarray[Any, Any] = np.ndarray(shape, leaf.dtype, buffer=root, offset=leaf.offset_bytes)
        narrow = _NARROWED.get(leaf.dtype.name) if self._framework.immutable else None
        if narrow is None:
            return _Wanted(leaf, sums_of(_bytes_of(held)), None)
        with np.errstate(all="ignore"):
            return _Wanted(leaf, sums_of(_bytes_of(held)), sums_of(_bytes_of(held.astype(narrow))))

    def check(self, work: Work, arrays: Sequence[Any]) -> None:
        """Compare what the consumer is about to get, and once more what it got before.

        The second look is for frameworks whose arrays programs cannot write to, and only at the batch before this one,
        if it is still alive: with torch and NumPy a program may have changed it, and rightly.

        Args:
            work: The batch.
            arrays: One per leaf of its layout.

        Ordering: reads in the order of the consumer's stream, as the consumer would.

        Blocks: until both batches are on the host.

        Raises:
            CorruptionError: A leaf is not what was written.
        """
        leaves = self._filled[work.lease.sequence].leaves
        for wanted, array in zip(leaves, arrays, strict=True):
            self._compare(work.number, wanted, array, "when it was handed over")
        number, lent = self._lent  # now, because whatever wrote this batch has been at work by now
        for reference, wanted in lent:
            earlier = reference()
            if earlier is not None:
                self._compare(number, wanted, earlier, f"when batch {work.number} was handed over")
        self._recent.append((work.number, leaves))
        if self._framework.immutable:
            self._lent = work.number, [(weakref.ref(array), one) for array, one in zip(arrays, leaves, strict=True)]

    def sweep(self) -> None:
        """Poison the slots that the ring has proof for. Called after each time the ring may have freed some."""
        for sequence, filled in self._filled.copy().items():  # workers add to it meanwhile
            if filled.lease.state in {LeaseState.ENDED, LeaseState.QUARANTINED}:
                del self._filled[sequence]
                if filled.lease.state is LeaseState.ENDED:
                    self._poison.spread(filled.slot)

    def _compare(self, number: int, wanted: _Wanted, array: Any, when: str) -> None:
        held = self._framework.read_back(array)
        if held is None:
            return
        data = _bytes_of(held)
        found = sums_of(data)
        if found in (wanted.sums, wanted.narrowed):
            return
        raise CorruptionError(
            f"{wanted.leaf.label} of batch {number} was wrong {when}",
            number=number,
            leaf=wanted.leaf.name,
            why=difference(wanted.sums, found, data, "what its source gave") + self._owner(number, wanted.leaf, found),
            hint="nobody may write to a batch but a torch or NumPy program to its own: `interlock check` shows who did",
        )

    def _owner(self, number: int, leaf: Leaf, found: Sums) -> str:
        """Tell which other batch has the bytes that were found, if one has."""
        running = [(filled.lease.sequence, filled.leaves) for filled in self._filled.copy().values()]
        for other, leaves in (*self._recent, *running):
            if other != number and any(one.leaf.name == leaf.name and found == one.sums for one in leaves):
                return f"; they are those of batch {other}"
        return ""


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
