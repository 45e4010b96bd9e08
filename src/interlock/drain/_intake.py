"""From arrays to jobs: chunks within the budget, snapshots, slots."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from interlock._core._fence import Fence
from interlock._core._protocols import Export
from interlock._core._spans import about
from interlock._waiting import wait
from interlock.devices import HostDevice
from interlock.drain._blocks import blocks_of, landed_of, size_of
from interlock.drain._duplicates import Fetcher
from interlock.drain._jobs import Landing, Rejected, RowsJob, Written
from interlock.drain._leaves import aligned, empty_of
from interlock.drain._outputs import chunk_bytes, chunks_of
from interlock.drain._schema import Limits, check_same
from interlock.drain._spans import jobs_waiting, span
from interlock.drain._staging import Staging, cancel_all
from interlock.drain._times import LOOP_PHASES, Stopwatch
from interlock.drain._verify import Poisoner, sums_at_put
from interlock.errors import BoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from interlock._core._protocols import Device, DeviceArray, Pieces
    from interlock._core._rows import Rows
    from interlock._core._sums import Sums
    from interlock.drain._ids import IdArray
    from interlock.drain._idsets import IdSet
    from interlock.drain._jobs import Message
    from interlock.drain._leaves import Key, Reader, Taken
    from interlock.drain._link import Link
    from interlock.drain._outputs import AnyLeaf
    from interlock.drain._schema import Schema
    from interlock.drain._staging import Claim

_MADE_BYTES_PER_S = 4e9
"""How fast slots are made (pinned, or touched for the first time). So long a put waits for one that comes back, before
another is made: waiting costs at most as much again, and a link that is busy anyway needs no more slots.
"""

Need: TypeAlias = "tuple[Staging, dict[Key, Any], int]"
"""What goes into one slot: of which device, what, and how many bytes."""

_LOOK_S = 0.1
"""How often lanes are looked after while nobody puts."""

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
        verify: Whether to take checksums of what is put, and to poison slots that come back.
        limits: What the sink holds; all that is known, if that is not given.

    Attributes:
        last_tick: Tick of the last job.
        budget_bytes: As given.
        times: Where the time of the producer goes. Whoever holds the drain's lock begins and ends it.
        size_bytes: Bytes of the rows that were taken.
        wait_writer_s: Seconds waited for room while rows that had landed waited for a lane.
        fetch: Brings arrays to the host, and counts the waiting for that.
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
        verify: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._link = link
        self._seen = seen
        self._sink = sink
        self._schema = schema
        self.budget_bytes = budget_bytes
        self._borrow = borrow
        self._timeout_s = timeout_s
        self._verify = verify
        self._limits = limits or Limits()
        self._number = -1
        self._stagings: dict[int, Staging] = {}
        self._host: Device = HostDevice()
        self._large: dict[Key, npt.NDArray[np.uint8]] = {}
        self._jobs = 0
        self._stable_bytes = 0
        self.last_tick = 0
        self.times = Stopwatch(LOOP_PHASES)
        self.size_bytes = 0
        self.wait_writer_s = 0.0
        self._behind_s = 0.0
        self._behind_since: tuple[float, float] | None = None
        self.fetch = Fetcher(timeout_s)
        self._host_syncs = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget in use: slots with rows, and values held elsewhere."""
        return self._stable_bytes + sum(staging.used_bytes for staging in self._stagings.copy().values())

    @property
    def host_syncs(self) -> int:
        """How often the host waited for a device."""
        return self._host_syncs + self.fetch.host_syncs

    def collect(self) -> None:
        """Hear what the writer has said so far. Never blocks."""
        while (message := self._link.owner.take_nowait()) is not None:
            self._hear(message)

    def check(self, leaves: list[AnyLeaf]) -> None:
        """Refuse leaves that do not look like those before.

        Raises:
            UsageError: They differ, or sinks do not store a dtype.
        """
        leaves = [leaf.found(borrow=True).settled(self.fetch) for leaf in leaves]
        self._check(leaves, self._taken(leaves, 0, 1, borrow=True))

    def take(self, ids: IdArray, leaves: list[AnyLeaf]) -> list[Landing]:
        """Hand rows to the writer, in chunks that fit the budget; none of the ids came before.

        Raises:
            UsageError: The leaves do not look like those before.
            BoundError: The wait for room was too long.
        """
        self._number += 1
        self.size_bytes += sum(leaf.payload_bytes for leaf in leaves)
        lanes = self._link.jobs.limit
        if chunk_bytes(leaves, 0, len(ids)) > self.budget_bytes // (1 + lanes):
            leaves = [leaf.settled(self.fetch) for leaf in leaves]
        landings = []
        for start, stop in chunks_of(leaves, len(ids), self.budget_bytes, lanes):
            size_bytes = chunk_bytes(leaves, start, stop)
            is_large = size_bytes > self.budget_bytes
            if is_large or not self._has_room(size_bytes, alone=False):
                self._wait_for_room(partial(self._has_room, 0 if is_large else size_bytes, alone=is_large))
            with span("put", self._link.subject, self._number, size_bytes), about(self._link.subject, self._number):
                if is_large:
                    borrowed = [leaf.found(borrow=True) for leaf in leaves]
                    landings.append(self._take_large(ids[start:stop], borrowed, start, stop))
                    continue
                leaves = [leaf.found(borrow=self._borrow) for leaf in leaves]  # now, so that few snapshots wait
                landings.append(self._take_chunk(ids[start:stop], leaves, start, stop, size_bytes))
        return landings

    def _has_room(self, size_bytes: int, *, alone: bool) -> bool:
        held_bytes = self.held_bytes
        has_bytes = not held_bytes if alone else held_bytes + size_bytes <= self.budget_bytes
        return has_bytes and self._jobs < _MOST_JOBS

    @staticmethod
    def _taken(leaves: list[AnyLeaf], start: int, stop: int, *, borrow: bool) -> dict[Key, Taken]:
        return {part.key: part.take(borrow=borrow) for leaf in leaves for part in leaf.parts(start, stop)}

    def _take_chunk(self, ids: IdArray, leaves: list[AnyLeaf], start: int, stop: int, size_bytes: int) -> Landing:
        taken = self._taken(leaves, start, stop, borrow=self._borrow)
        schema = self._check(leaves, taken)
        readers: dict[Key, Reader] = {key: empty_of(one) for key, one in taken.items() if not _bytes_of(one)}
        stable = {key: one for key, one in taken.items() if isinstance(one, Export) and one.stable}
        stable = {key: one for key, one in stable.items() if key not in readers}
        needs = self._needs({key: one for key, one in taken.items() if key not in stable and key not in readers})
        held_bytes = sum(map(_bytes_of, stable.values()))
        self._stable_bytes += held_bytes
        claims: list[Claim] = []
        filled: dict[Key, Reader] = {}
        fence = Fence.EMPTY
        try:
            if needs:
                claims += self._claim(needs)
                filled, fence = self._fill(claims, needs)
            sums = sums_at_put(leaves, start, stop, self._timeout_s) if self._verify else {}
        except BaseException:
            self._stable_bytes -= held_bytes
            cancel_all(claims)
            raise
        readers.update(filled)
        for key, export in stable.items():
            readers[key] = export.read
            fence = fence.join(export.ready)
        columns = _columns(schema, leaves, {key: readers[key] for key in taken}, start, stop)
        return self._hand_over(ids, columns, claims, fence, held_bytes, sums, ids.nbytes + size_bytes)

    def _take_large(self, ids: IdArray, leaves: list[AnyLeaf], start: int, stop: int) -> Landing:
        """Take a row that no slot can hold: it travels alone, in slabs, into host memory of its own.

        Blocks: until its values on devices have landed; everything before it is written by now. So those need no
            snapshot.
        """
        taken = self._taken(leaves, start, stop, borrow=self._borrow)
        schema = self._check(leaves, taken)
        readers: dict[Key, Reader] = {}
        fence = Fence.EMPTY
        for key, one in taken.items():
            if not _bytes_of(one):
                readers[key] = empty_of(one)
            elif not isinstance(one, Export):
                readers[key] = self._carry(key, one)
            elif one.stable:
                readers[key] = one.read
                fence = fence.join(one.ready)
            else:
                self._settle(one.ready)
                value = one.read()
                held = self._own_host(key, value.nbytes).view(value.dtype.newbyteorder("=")).reshape(value.shape)
                with self.times.on("copy"):
                    np.copyto(held, value)
                readers[key] = partial(np.asarray, held)
        sums = sums_at_put(leaves, start, stop, self._timeout_s) if self._verify else {}
        held_bytes = chunk_bytes(leaves, start, stop)
        self._stable_bytes += held_bytes
        columns = _columns(schema, leaves, readers, start, stop)
        return self._hand_over(ids, columns, [], fence, held_bytes, sums, ids.nbytes + held_bytes)

    def _own_host(self, key: Key, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return host memory for a large row: the same for each, because the one before is written by then."""
        if key not in self._large or self._large[key].size < size_bytes:
            self._large[key] = np.empty(size_bytes, np.uint8)
        return self._large[key][:size_bytes]

    def _carry(self, key: Key, value: DeviceArray | Pieces) -> Reader:
        """Copy a device value to host memory of its own, through two slots of half the budget; return its reader."""
        host = self._own_host(key, size_of(value))
        slab_bytes = max(1, self.budget_bytes // 2)
        for block in blocks_of(value):
            staging = self._staging(block.array.device)
            claims = self._claim([(staging, {}, slab_bytes)] * 2)
            try:
                part = host[block.offset_bytes : block.offset_bytes + block.size_bytes]
                with self.times.on("copy"):
                    staging.carry(claims, block.array, part, self._settle)
            finally:
                cancel_all(claims)
        return partial(landed_of(value).read, host.data, 0)

    def _check(self, leaves: list[AnyLeaf], taken: Mapping[Key, Taken]) -> Schema:
        """Return the columns of this sink, in their order, if what was taken of leaves fits them."""
        given = tuple(leaf.column(taken, self._limits) for leaf in leaves)
        if self._schema is None:
            self._schema = given
        check_same(self._schema, given)
        return self._schema

    def _needs(self, taken: Mapping[Key, Taken]) -> list[Need]:
        """Sort what needs a slot by device."""
        groups: dict[int, tuple[Staging, dict[Key, Any]]] = {}
        sizes: dict[int, int] = {}
        for key, one in taken.items():
            staging = self._staging(self._host if isinstance(one, Export) else blocks_of(one)[0].array.device)
            groups.setdefault(id(staging), (staging, {}))[1][key] = one
            sizes[id(staging)] = sizes.get(id(staging), 0) + aligned(_bytes_of(one))
        return [(staging, members, sizes[group]) for group, (staging, members) in groups.items()]

    def _staging(self, device: Device) -> Staging:
        key = id(device)
        if key not in self._stagings:
            poisoner = Poisoner(device, self._timeout_s) if self._verify else None
            self._stagings[key] = Staging(device, self.budget_bytes, snapshot=not self._borrow, poisoner=poisoner)
        return self._stagings[key]

    def _claim(self, needs: list[Need]) -> list[Claim]:
        """Take all slots that a chunk needs, or none while one is lacking.

        Blocks: until the writer has given enough back.
        """
        claims: list[Claim] = []
        making_s = sum(size_bytes for _, _, size_bytes in needs) / _MADE_BYTES_PER_S
        try:
            if not self._jobs or not self._wait(lambda: self._try_claim(needs, claims, patient=True), making_s):
                self._wait_for_room(lambda: self._try_claim(needs, claims, patient=False))
        except BaseException:
            cancel_all(claims)
            raise
        return claims

    def _try_claim(self, needs: list[Need], claims: list[Claim], *, patient: bool) -> bool:
        for attempt in range(1 if patient else 2):
            if attempt:  # what lies idle may be what is lacking
                for staging in self._stagings.values():
                    staging.drop_idle()
            for staging, members, size_bytes in needs:
                others = sum(other.pool.allocated_bytes for other in self._stagings.values() if other is not staging)
                room_bytes = self.budget_bytes - self._stable_bytes - others
                enough = 2 + self._link.jobs.limit if patient else None
                claim = staging.claim(size_bytes, room_bytes, members.values(), enough=enough)
                if claim is None:
                    break
                claims.append(claim)
            else:
                return True
            for claim in claims:
                claim.cancel()
            claims.clear()
        return False

    def _fill(self, claims: list[Claim], needs: list[Need]) -> tuple[dict[Key, Reader], Fence]:
        readers: dict[Key, Reader] = {}
        landed = Fence.EMPTY
        for claim, (staging, members, _) in zip(claims, needs, strict=True):
            exports = {key: one for key, one in members.items() if isinstance(one, Export)}
            values = {key: one for key, one in members.items() if not isinstance(one, Export)}
            fence = Fence.EMPTY
            if exports:
                self._settle(Fence.EMPTY.join(*(export.ready for export in exports.values())))
                with self.times.on("copy"):
                    readers.update(staging.fill_from_host(claim, exports))
            if values:
                more, fence, unordered = staging.fill_from_device(claim, values)
                readers.update(more)
                self._settle(unordered)
            landed = landed.join(fence)
        return readers, landed

    def _settle(self, fence: Fence) -> None:
        """Wait until a value is taken that nothing else orders before the caller's next write."""
        if not fence.poll():
            self._host_syncs += 1
        wait(fence, timeout_s=self._timeout_s, what="the snapshot of a put")

    def _hand_over(
        self,
        ids: IdArray,
        readers: dict[str, Callable[[], Rows]],
        claims: list[Claim],
        fence: Fence,
        held_bytes: int,
        sums: dict[str, Sums],
        size_bytes: int,
    ) -> Landing:
        landing = Landing(fence)
        regions = tuple(claim.memory.staging.region for claim in claims)
        tick = self._link.next_tick()
        for claim in claims:
            claim.lend(fence)
        self._seen.add_many(ids)
        self._link.accepted_rows += len(ids)
        self._jobs += 1
        jobs_waiting(self._link.subject, self._jobs)
        self._link.jobs.post(
            RowsJob(tick, ids, landing, readers, claims, held_bytes, regions, self._number, sums, size_bytes)
        )
        self.last_tick = tick
        self._look_behind()
        return landing

    def _look_behind(self) -> None:
        """Tell the lanes for how long they have been behind, while `put` need not wait for them yet."""
        now_s = time.monotonic()
        if self._behind_since is not None:
            since_s, waited_s = self._behind_since
            self._behind_s += now_s - since_s - (self.wait_writer_s - waited_s)
        self._behind_since = (now_s, self.wait_writer_s) if self._link.jobs.is_behind() else None
        if self._behind_since is not None:
            self._link.waited(self.wait_writer_s + self._behind_s)

    def hear_while_behind(self) -> None:
        """Hear the lanes while rows for a whole shard wait for one, so that another may be started.

        Blocks: for that long, and no longer than `timeout_s`.

        Raises:
            SinkError: Writing failed.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while self._link.jobs.has_backlog() and time.monotonic() < deadline_s:
            message = self._link.owner.wait_take(_LOOK_S)
            self._link.raise_failure()
            if message is not None:
                self._hear(message)
            self._look_behind()

    def _hear(self, message: Message) -> None:
        if isinstance(message, Written):
            for claim in message.job.claims:
                claim.retire()
            self._stable_bytes -= message.job.held_bytes
            self._jobs -= 1
            jobs_waiting(self._link.subject, self._jobs)
        elif isinstance(message, Rejected):
            self._seen.discard_many(message.ids)

    def _wait_for_room(self, has_room: Callable[[], bool]) -> None:
        """Block until `has_room`, hearing the lanes meanwhile."""
        self.collect()
        if has_room():
            return
        with self._link.jobs.put_waits():
            if not self._wait(has_room, self._timeout_s):
                raise BoundError(
                    f"put to {self._sink} found no room in {self.budget_bytes:,} bytes for {self._timeout_s:g} s",
                    why=f"{self.held_bytes:,} are in use, and {self._link.doing}",
                    hint="raise budget_bytes or timeout_s, or look at the storage",
                )

    def _wait(self, has_room: Callable[[], bool], bound_s: float) -> bool:
        """Block until `has_room`, hearing the lanes meanwhile; return False if the bound was reached."""
        self.collect()
        if has_room():
            return True
        with self.times.on("slot"), span("wait for room", self._link.subject, self._number):
            return self._hear_until(has_room, bound_s)

    def _hear_until(self, has_room: Callable[[], bool], bound_s: float) -> bool:
        deadline_s = time.monotonic() + bound_s
        if not self._jobs:  # the writer has nothing to say: copies of a put that failed hold slots
            copies = Fence.EMPTY.join(*(staging.fence_of_copies() for staging in self._stagings.values()))
            wait(copies, timeout_s=self._timeout_s, what="the copies of a put that failed")
        while not has_room():
            start_s, for_lanes = time.monotonic(), self._link.jobs.holds_up_put()
            message = self._link.owner.wait_take(max(0.0, deadline_s - start_s))
            if for_lanes:
                self.wait_writer_s += time.monotonic() - start_s
                self._link.waited(self.wait_writer_s + self._behind_s)
            self._link.raise_failure()
            if message is None:
                return False
            self._hear(message)
        return True


def _columns(
    schema: Schema, leaves: list[AnyLeaf], readers: Mapping[Key, Reader], start: int, stop: int
) -> dict[str, Callable[[], Rows]]:
    """Return the reader of each column, in the order of the schema."""
    found = {leaf.name: leaf.reader(readers, start, stop) for leaf in leaves}
    return {column.name: found[column.name] for column in schema}


def _bytes_of(one: Taken) -> int:
    return math.prod(one.shape) * one.dtype.itemsize if isinstance(one, Export) else size_of(one)
