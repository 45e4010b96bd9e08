"""From arrays to jobs: chunks within the budget, snapshots, slots."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._fence import Fence
from interlock._core._protocols import DeviceArray, Export
from interlock._waiting import wait
from interlock.devices import HostDevice
from interlock.drain._jobs import Landing, Rejected, RowsJob, Written
from interlock.drain._leaves import aligned, chunk_bytes, column_of, rows_that_fit
from interlock.drain._schema import check_same
from interlock.drain._staging import Staging
from interlock.errors import BoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from interlock._core._protocols import Device
    from interlock.drain._ids import IdArray, IdSet
    from interlock.drain._jobs import Link, Message
    from interlock.drain._leaves import Leaf
    from interlock.drain._schema import Schema
    from interlock.drain._staging import Claim

_MOST_JOBS = 1024
"""Puts between the caller and the writer: a bound for rows so small that their bytes bound nothing."""


@final
class Intake:
    """Takes the values of arrays and hands them to the writer. Belongs to whoever holds the drain's lock.

    Args:
        link: Shared with the writer.
        seen: Ids that were handed over in this run.
        sink: Shown in messages.
        schema: Columns of the rows so far, or None.
        budget_bytes: Most bytes in use.
        borrow: Whether to take no snapshots.
        timeout_s: Bound on every wait.

    Attributes:
        last_tick: Tick of the last job.
        wait_slot_s: Seconds waited for room.
        copy_s: Seconds spent copying host arrays.
        host_syncs: How often the host waited for a device.
    """

    def __init__(
        self,
        link: Link,
        seen: IdSet,
        sink: str,
        schema: Schema | None,
        *,
        budget_bytes: int,
        borrow: bool,
        timeout_s: float,
    ) -> None:
        self._link = link
        self._seen = seen
        self._sink = sink
        self._schema = schema
        self._budget_bytes = budget_bytes
        self._borrow = borrow
        self._timeout_s = timeout_s
        self._stagings: dict[int, Staging] = {}
        self._host: Device = HostDevice()
        self._jobs = 0
        self._stable_bytes = 0
        self.last_tick = 0
        self.wait_slot_s = 0.0
        self.copy_s = 0.0
        self.host_syncs = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget in use: slots with rows, and values held elsewhere."""
        return self._stable_bytes + sum(staging.used_bytes for staging in tuple(self._stagings.values()))

    def collect(self) -> None:
        """Hear what the writer has said so far. Never blocks."""
        while (message := self._link.owner.take_nowait()) is not None:
            self._hear(message)

    def check(self, leaves: list[Leaf]) -> None:
        """Refuse leaves that do not look like those before.

        Raises:
            UsageError: They differ, or sinks do not store a dtype.
        """
        taken = {leaf.name: leaf.take(0, min(1, leaf.rows), borrow=True) for leaf in leaves}
        self._check(taken)

    def take(self, ids: IdArray, leaves: list[Leaf]) -> list[Landing]:
        """Hand rows to the writer, in chunks that fit the budget; none of the ids came before.

        Raises:
            UsageError: The leaves do not look like those before.
            BoundError: A row is larger than the budget, or the wait for room too long.
        """
        rows = self._chunk_rows(leaves)
        landings = []
        for start in range(0, len(ids), rows):
            stop = min(start + rows, len(ids))
            landings.append(self._take_chunk(ids[start:stop], leaves, start, stop))
        return landings

    def _chunk_rows(self, leaves: list[Leaf]) -> int:
        """Return the rows of a chunk: half the budget, so that one can be written while the next is filled."""
        rows = rows_that_fit(leaves, self._budget_bytes // 2) or rows_that_fit(leaves, self._budget_bytes)
        if not rows:
            size_bytes = chunk_bytes(leaves, 1)
            raise BoundError(
                f"one row takes {size_bytes:,} bytes",
                why=f"the drain of {self._sink} may hold {self._budget_bytes:,}",
                hint=f"raise budget_bytes to {2 * size_bytes} or more",
            )
        return rows

    def _take_chunk(self, ids: IdArray, leaves: list[Leaf], start: int, stop: int) -> Landing:
        size_bytes = chunk_bytes(leaves, stop - start)
        self._wait_for_room(lambda: self.held_bytes + size_bytes <= self._budget_bytes and self._jobs < _MOST_JOBS)
        taken = {leaf.name: leaf.take(start, stop, borrow=self._borrow) for leaf in leaves}
        schema = self._check(taken)
        stable = {name: one for name, one in taken.items() if isinstance(one, Export) and one.stable}
        needs = self._needs({name: one for name, one in taken.items() if name not in stable})
        held_bytes = sum(leaf.row_bytes * (stop - start) for leaf in leaves if leaf.name in stable)
        self._stable_bytes += held_bytes
        claims: list[Claim] = []
        try:
            claims += self._claim(needs)
            readers, fence = self._fill(claims, needs)
        except BaseException:
            self._stable_bytes -= held_bytes
            for claim in claims:
                claim.cancel(claim.staging.fence_of_copies())
            raise
        for name, export in stable.items():
            readers[name] = export.read
            fence = fence.join(export.ready)
        ordered = {column.name: readers[column.name] for column in schema}
        return self._hand_over(ids, ordered, claims, fence, held_bytes)

    def _check(self, taken: Mapping[str, Export | DeviceArray]) -> Schema:
        """Return the columns of this sink, in their order, if the taken leaves fit them."""
        given = tuple(column_of(name, one) for name, one in taken.items())
        if self._schema is None:
            self._schema = given
        check_same(self._schema, given)
        return self._schema

    def _needs(self, taken: Mapping[str, Export | DeviceArray]) -> list[tuple[Staging, dict[str, Any], int]]:
        """Sort what needs a slot by device: staging, leaves, bytes."""
        groups: dict[int, tuple[Staging, dict[str, Any]]] = {}
        sizes: dict[int, int] = {}
        for name, one in taken.items():
            device = one.device if isinstance(one, DeviceArray) else self._host
            staging = self._staging(device)
            groups.setdefault(id(staging), (staging, {}))[1][name] = one
            sizes[id(staging)] = sizes.get(id(staging), 0) + aligned(_size_of(one))
        return [(staging, members, sizes[key]) for key, (staging, members) in groups.items()]

    def _staging(self, device: Device) -> Staging:
        key = id(device)
        if key not in self._stagings:
            self._stagings[key] = Staging(device, self._budget_bytes, snapshot=not self._borrow)
        return self._stagings[key]

    def _claim(self, needs: list[tuple[Staging, dict[str, Any], int]]) -> list[Claim]:
        """Take all slots that a chunk needs, or none while one is lacking.

        Blocks: until the writer has given enough back.
        """
        claims: list[Claim] = []
        self._wait_for_room(lambda: self._try_claim(needs, claims))
        return claims

    def _try_claim(self, needs: list[tuple[Staging, dict[str, Any], int]], claims: list[Claim]) -> bool:
        for attempt in range(2):
            if attempt:  # what lies idle may be what is lacking
                for staging in self._stagings.values():
                    staging.drop_idle()
            for staging, _, size_bytes in needs:
                others = sum(other.pool.allocated_bytes for other in self._stagings.values() if other is not staging)
                claim = staging.claim(size_bytes, self._budget_bytes - self._stable_bytes - others)
                if claim is None:
                    break
                claims.append(claim)
            else:
                return True
            for claim in claims:
                claim.cancel()
            claims.clear()
        return False

    def _fill(
        self, claims: list[Claim], needs: list[tuple[Staging, dict[str, Any], int]]
    ) -> tuple[dict[str, Callable[[], npt.NDArray[Any]]], Fence]:
        readers: dict[str, Callable[[], npt.NDArray[Any]]] = {}
        landed = Fence.EMPTY
        for claim, (staging, members, _) in zip(claims, needs, strict=True):
            exports = {name: one for name, one in members.items() if isinstance(one, Export)}
            arrays = {name: one for name, one in members.items() if isinstance(one, DeviceArray)}
            fence = Fence.EMPTY
            if exports:
                self._settle(Fence.EMPTY.join(*(export.ready for export in exports.values())))
                start_s = time.perf_counter()
                readers.update(staging.fill_from_host(claim, exports))
                self.copy_s += time.perf_counter() - start_s
            if arrays:
                more, fence, unordered = staging.fill_from_device(claim, arrays)
                readers.update(more)
                self._settle(unordered)
            landed = landed.join(fence)
        return readers, landed

    def _settle(self, fence: Fence) -> None:
        """Wait until a value is taken that nothing else orders before the caller's next write."""
        if not fence.poll():
            self.host_syncs += 1
        wait(fence, timeout_s=self._timeout_s, what="the snapshot of a put")

    def _hand_over(
        self,
        ids: IdArray,
        readers: dict[str, Callable[[], npt.NDArray[Any]]],
        claims: list[Claim],
        fence: Fence,
        held_bytes: int,
    ) -> Landing:
        landing = Landing(fence)
        regions = tuple(claim.memory.staging.region for claim in claims)
        tick = self._link.next_tick()
        for claim in claims:
            claim.lend(fence)
        self._seen.add_many(ids)
        self._link.accepted_rows += len(ids)
        self._jobs += 1
        self._link.jobs.post(RowsJob(tick, ids, landing, readers, claims, held_bytes, regions))
        self.last_tick = tick
        return landing

    def _hear(self, message: Message) -> None:
        if isinstance(message, Written):
            for claim in message.job.claims:
                claim.retire()
            self._stable_bytes -= message.job.held_bytes
            self._jobs -= 1
        elif isinstance(message, Rejected):
            self._seen.discard_many(message.ids)

    def _wait_for_room(self, has_room: Callable[[], bool]) -> None:
        """Block until `has_room`, hearing the writer meanwhile."""
        self.collect()
        if has_room():
            return
        start_s = time.perf_counter()
        deadline_s = time.monotonic() + self._timeout_s
        try:
            while not has_room():
                message = self._link.owner.wait_take(max(0.0, deadline_s - time.monotonic()))
                self._link.raise_failure()
                if message is None:
                    raise BoundError(
                        f"put found no room in {self._budget_bytes:,} bytes for {self._timeout_s:g} s",
                        why=f"{self.held_bytes:,} are in use, and the writer of {self._sink} is {self._link.doing}",
                        hint="raise budget_bytes or timeout_s, or look at the storage",
                    )
                self._hear(message)
        finally:
            self.wait_slot_s += time.perf_counter() - start_s


def _size_of(one: Export | DeviceArray) -> int:
    return math.prod(one.shape) * np.dtype(one.dtype).itemsize
