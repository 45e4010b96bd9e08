"""What a feed did, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """Counts since the feed was made, over all epochs.

    Attributes:
        batches: Batches handed to the consumer.
        samples: Samples in them.
        nbytes: Bytes of samples in them.
        failed: Samples that their source could not give, in as many attempts as it had.
        substituted: Those of them in whose place another sample came.
        retried: Attempts at samples after the first ones, with success or without.
        wait_s: Seconds in which the consumer waited for a batch.
        wait_slot_s: Part of `wait_s` in which no slot was free: batches that were handed over are still in use.
        fetch_s: Seconds in the source, summed over workers.
        copy_s: Seconds of copying samples into slots, summed over workers. A source that writes into the slot by itself
            counts as `fetch_s`.
        host_syncs: How often the host waited for a device so that a batch could be handed over. Zero where the device
            is the host. A consumer that is faster than the link waits for slots, which is in `wait_slot_s`.
        slots: Slots made.
        slots_lent: Slots whose batch is still in use.
        slot_bytes: Memory of all slots.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    failed: int = 0
    substituted: int = 0
    retried: int = 0
    wait_s: float = 0.0
    wait_slot_s: float = 0.0
    fetch_s: float = 0.0
    copy_s: float = 0.0
    host_syncs: int = 0
    slots: int = 0
    slots_lent: int = 0
    slot_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)

    def plus(self, **more: float) -> FeedStatistics:
        """Return the statistics with some counts raised."""
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})
