"""What a feed did, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, final

_OF_NOW = frozenset({"stages", "slots", "slots_lent", "slot_bytes"})
"""Not counts of what was done so far."""

StageKind: TypeAlias = Literal["threads", "processes", "inline"]


@final
@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one stage of a feed did, over all of its workers.

    Attributes:
        name: `read` (the source), the name of a user's stage, or `copy` (samples into slots).
        kind: Who does it: threads, processes, or the consumer's own thread (`inline`).
        workers: How many may do it at the same time; 1 inline.
        samples: Samples that went through.
        busy_s: Seconds that its workers spent in it, with whatever they waited for inside.
        starved_s: Seconds in which its workers had nothing to do: no sample came, or no slot was free to fill.
        cpu_s: The part of `busy_s` in which a processor worked for it; None where that is not known. Of stages that
            share their workers, the first has that of all of them.
        crew: The stage whose workers do this one too; empty if it has its own.
    """

    name: str
    kind: StageKind
    workers: int
    samples: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    cpu_s: float | None = None
    crew: str = ""

    def plus(self, other: StageTimes) -> StageTimes:
        """Return the sum of what the same stage did at two times."""
        known = [seconds for seconds in (self.cpu_s, other.cpu_s) if seconds is not None]
        return replace(
            other,
            workers=max(self.workers, other.workers),
            samples=self.samples + other.samples,
            busy_s=self.busy_s + other.busy_s,
            starved_s=self.starved_s + other.starved_s,
            cpu_s=sum(known) if known else None,
        )

    def since(self, earlier: StageTimes) -> StageTimes:
        """Return what was done after `earlier`."""
        known = self.cpu_s is not None and earlier.cpu_s is not None
        return replace(
            self,
            samples=self.samples - earlier.samples,
            busy_s=self.busy_s - earlier.busy_s,
            starved_s=self.starved_s - earlier.starved_s,
            cpu_s=(self.cpu_s or 0.0) - (earlier.cpu_s or 0.0) if known else self.cpu_s,
        )


@final
@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """Counts since the feed was made, over all epochs.

    Attributes:
        passes: Passes that handed over a batch.
        batches: Batches handed to the consumer.
        samples: Samples in them.
        nbytes: Bytes of samples in them.
        failed: Samples that their source could not give, in as many attempts as it had.
        substituted: Those of them in whose place another sample came.
        retried: Attempts at samples after the first ones, with success or without.
        wait_s: Seconds in which the consumer waited for a batch.
        wait_slot_s: Part of `wait_s` in which no slot was free: batches that were handed over are still in use.
        wait_link_s: Part of `wait_slot_s` in which a copy to the device held the slot that would have been next.
        start_s: Part of `wait_s` for the first batch of each pass: until then nothing can be there.
        elapsed_s: Seconds from the first `next` of a pass to the end of its last one, summed over passes.
        slotless: How often another batch could have been begun had a slot been free for it.
        wakes: How often a batch became ready while the consumer waited for one.
        wake_s: Part of `wait_s` in which a batch was ready and the consumer not awake yet. Some ten microseconds a
            wake; milliseconds where other threads hold the interpreter, or all processors are taken.
        process_s: Processor time of this process in `elapsed_s`, all of its threads.
        ran_s: Seconds that threads of this process ran, from samples taken twice a second; 0 where the system has none.
        delayed_s: Seconds that they could have run meanwhile, had a processor been free.
        fetch_s: Seconds in the source, summed over workers.
        copy_s: Seconds of copying samples into slots, summed over workers. A source that writes into the slot by itself
            counts as `fetch_s`.
        host_syncs: How often the host waited for a device so that a batch could be handed over. Zero where the device
            is the host. A consumer that is faster than the link waits for slots, which is in `wait_slot_s`.
        slots: Slots made.
        slots_lent: Slots whose batch is still in use.
        slot_bytes: Memory of all slots.
        stages: What each stage did, in the order in which a sample goes through them. Of batches that were handed over.
    """

    passes: int = 0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    failed: int = 0
    substituted: int = 0
    retried: int = 0
    wait_s: float = 0.0
    wait_slot_s: float = 0.0
    wait_link_s: float = 0.0
    start_s: float = 0.0
    elapsed_s: float = 0.0
    slotless: int = 0
    wakes: int = 0
    wake_s: float = 0.0
    process_s: float = 0.0
    ran_s: float = 0.0
    delayed_s: float = 0.0
    fetch_s: float = 0.0
    copy_s: float = 0.0
    host_syncs: int = 0
    slots: int = 0
    slots_lent: int = 0
    slot_bytes: int = 0
    stages: tuple[StageTimes, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        fields = asdict(self)
        fields["stages"] = list(fields["stages"])
        return fields

    def plus(self, **more: float) -> FeedStatistics:
        """Return the statistics with some counts raised."""
        return replace(self, **{name: getattr(self, name) + value for name, value in more.items()})

    def joined(self, other: FeedStatistics) -> FeedStatistics:
        """Return the sum of both. Stages of one name are added up, wherever they stand."""
        counts = {name: getattr(other, name) for name in self.__dataclass_fields__ if name != "stages"}
        return replace(self.plus(**counts), stages=_summed(self.stages, other.stages))

    def since(self, earlier: FeedStatistics) -> FeedStatistics:
        """Return what was done after `earlier`; slots are those of now."""
        done = {
            name: getattr(self, name) - getattr(earlier, name)
            for name in self.__dataclass_fields__
            if name not in _OF_NOW
        }
        before = {stage.name: stage for stage in earlier.stages}
        stages = [stage.since(before[stage.name]) if stage.name in before else stage for stage in self.stages]
        return replace(self, **done, stages=tuple(stages))


def _summed(first: tuple[StageTimes, ...], second: tuple[StageTimes, ...]) -> tuple[StageTimes, ...]:
    stages = {stage.name: stage for stage in first}
    for stage in second:
        stages[stage.name] = stages[stage.name].plus(stage) if stage.name in stages else stage
    return tuple(stages.values())
