"""Slots for values that go to somebody else's code: pinned where their device needs that, within a budget of bytes.

They belong to one thread, the loop's. Whoever used a landed value says so through `Done`, on whatever thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._events import Access, emit, host_timeline, observed
from interlock._core._fence import Fence
from interlock._core._loan import Loan
from interlock._core._protocols import Export
from interlock._core._sites import here
from interlock._waiting import wait
from interlock.devices import HostDevice
from interlock.drain._blocks import blocks_of
from interlock.drain._leaves import aligned
from interlock.drain._staging import Staging, cancel_all
from interlock.errors import BoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from interlock._core._protocols import Device
    from interlock.drain._staging import Claim
    from interlock.integrations._torch_trees import Part


@final
@dataclass(frozen=True, slots=True)
class _Place:
    """Where one part lies: which claim, from which byte, how many."""

    claim: int
    offset_bytes: int
    size_bytes: int


@final
@dataclass(slots=True)
class Landing:
    """Values on their way.

    Attributes:
        claims: Their slots.
        places: Where each part is.
        fence: When they have landed.
    """

    claims: list[Claim]
    places: list[_Place]
    fence: Fence

    def lend(self, timeout_s: float, what: str) -> tuple[list[npt.NDArray[np.uint8]], list[Loan]]:
        """Return the bytes of each part, and what every view of them keeps alive. Called on the thread that uses them.

        Blocks: until they have landed.

        Raises:
            DeviceError: A device lost them.
            BoundError: `timeout_s` passed.
        """
        wait(self.fence, timeout_s=timeout_s, what=what)
        if observed():
            for claim in self.claims:
                emit(Access(host_timeline(), claim.memory.staging.region, "read", "landed", site=here()))
        loans = [Loan(claim.memory.staging) for claim in self.claims]
        roots: list[npt.NDArray[np.uint8]] = [np.asarray(loan) for loan in loans]
        return [roots[at.claim][at.offset_bytes : at.offset_bytes + at.size_bytes] for at in self.places], loans


@final
class Slots:
    """Takes values into slots. Belongs to the loop's thread.

    Args:
        budget_bytes: Most bytes of slots. Values that are larger travel alone.
        timeout_s: Bound on waits for a device.
    """

    def __init__(self, budget_bytes: int, timeout_s: float) -> None:
        self._budget_bytes = budget_bytes
        self._timeout_s = timeout_s
        self._host: Device = HostDevice()
        self._stagings: dict[int, Staging] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the slots that are not free."""
        return sum(staging.used_bytes for staging in self._stagings.values())

    @staticmethod
    def size_of(parts: Sequence[Part]) -> int:
        """Return the bytes of the budget that parts take."""
        return sum(aligned(part.size_bytes) for part in parts)

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether values of that size fit beside those on their way; always if there are none."""
        return not self.held_bytes or self.held_bytes + size_bytes <= self._budget_bytes

    def take(self, parts: Sequence[Part]) -> Landing:
        """Take the values that parts have now. Only while there is room.

        Raises:
            DeviceError: A device has no memory for a snapshot or a slot.
        """
        taken = [part.take() for part in parts]
        groups: dict[int, tuple[Staging, dict[str, Any]]] = {}
        placed: dict[int, tuple[int, int]] = {}
        filled: dict[int, int] = {}
        for number, one in enumerate(taken):
            staging = self._staging(self._host if isinstance(one, Export) else blocks_of(one)[0].array.device)
            key = id(staging)
            groups.setdefault(key, (staging, {}))[1][str(number)] = one
            placed[number] = (list(groups).index(key), filled.get(key, 0))
            filled[key] = filled.get(key, 0) + aligned(parts[number].size_bytes)
        places = [_Place(*placed[number], part.size_bytes) for number, part in enumerate(parts)]
        claims = self._claim([(staging, members, filled[key]) for key, (staging, members) in groups.items()])
        try:
            fence = self._fill(claims, [members for _, members in groups.values()])
        except BaseException:
            cancel_all(claims)
            raise
        for claim in claims:
            claim.lend(fence)
        return Landing(claims, places, fence)

    def give_back(self, landing: Landing, kept: Sequence[bool]) -> None:
        """Take slots back. The memory of one that somebody keeps is theirs from now on."""
        for claim, is_kept in zip(landing.claims, kept, strict=True):
            if is_kept:
                claim.staging.pool.drop(claim.lease.slot)
            claim.retire()
        if self._allocated_bytes() > self._budget_bytes:
            self._drop_idle()

    def _drop_idle(self) -> None:
        for staging in self._stagings.values():
            staging.drop_idle()

    def _allocated_bytes(self) -> int:
        return sum(staging.pool.allocated_bytes for staging in self._stagings.values())

    def _staging(self, device: Device) -> Staging:
        key = id(device)
        if key not in self._stagings:
            self._stagings[key] = Staging(device, self._budget_bytes, snapshot=True)
        return self._stagings[key]

    def _claim(self, needs: list[tuple[Staging, dict[str, Any], int]]) -> list[Claim]:
        """Take a slot from each staging; where idle ones have the budget's memory, they give it up first."""
        wanted_bytes = sum(size_bytes for _, _, size_bytes in needs)
        limit_bytes = max(self._budget_bytes, wanted_bytes)
        claims = self._try_claim(needs, limit_bytes)
        if claims is None:
            self._drop_idle()
            claims = self._try_claim(needs, limit_bytes)
        if claims is None:
            raise BoundError(
                f"no slot is free for {wanted_bytes:,} bytes of predictions",
                why=f"{self.held_bytes:,} of {self._budget_bytes:,} bytes are in use, or copies that failed hold them",
                hint="raise budget_bytes",
            )
        return claims

    def _try_claim(self, needs: list[tuple[Staging, dict[str, Any], int]], limit_bytes: int) -> list[Claim] | None:
        claims: list[Claim] = []
        try:
            for staging, members, size_bytes in needs:
                others = self._allocated_bytes() - staging.pool.allocated_bytes
                claim = staging.claim(size_bytes, limit_bytes - others, members.values())
                if claim is None:
                    cancel_all(claims)
                    return None
                claims.append(claim)
        except BaseException:
            cancel_all(claims)
            raise
        return claims

    def _fill(self, claims: list[Claim], members: list[dict[str, Any]]) -> Fence:
        landed = Fence.EMPTY
        for claim, values in zip(claims, members, strict=True):
            if claim.staging is self._stagings.get(id(self._host)):
                claim.staging.fill_from_host(claim, values)
                continue
            _, fence, unordered = claim.staging.fill_from_device(claim, values)
            wait(unordered, timeout_s=self._timeout_s, what="the snapshot of a prediction")
            landed = landed.join(fence)
        return landed
