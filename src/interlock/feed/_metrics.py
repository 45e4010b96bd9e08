"""What a feed did, as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock._core._exposition import Family, exposition

if TYPE_CHECKING:
    from interlock.feed._statistics import FeedStatistics


def prometheus_text(statistics: FeedStatistics, rank: int) -> str:
    """Return the statistics of a feed in the text format of Prometheus.

    Args:
        statistics: What it did.
        rank: Which of several processes it is.
    """
    return exposition(_families(statistics), {"rank": str(rank)})


def _families(told: FeedStatistics) -> list[Family]:
    counters = [
        ("passes", "Passes that handed over a batch.", told.passes),
        ("batches", "Batches handed to the consumer.", told.batches),
        ("samples", "Samples in these batches.", told.samples),
        ("samples_failed", "Samples that their source could not give.", told.failed),
        ("samples_substituted", "Failed samples in whose place another one came.", told.substituted),
        ("retries", "Attempts at samples after the first ones.", told.retried),
        ("bytes", "Bytes of samples in the batches.", told.nbytes),
        ("host_syncs", "How often the host waited for a device.", told.host_syncs),
        ("process_cpu_seconds", "Processor time of the process while passes ran.", told.process_s),
    ]
    gauges = [
        ("slots", "Slots made.", told.slots),
        ("slots_lent", "Slots whose batch is still in use.", told.slots_lent),
        ("slot_bytes", "Memory of all slots.", told.slot_bytes),
    ]
    waits = {
        "loop": max(0.0, told.elapsed_s - told.wait_s),
        "start": told.start_s,
        "slot": told.wait_slot_s,
        "batch": max(0.0, told.wait_s - told.start_s - told.wait_slot_s),
    }
    return [
        *(Family(f"interlock_feed_{name}_total", "counter", text, {"": value}) for name, text, value in counters),
        Family(
            "interlock_feed_consumer_seconds_total",
            "counter",
            "Seconds of passes: what the consumer did (loop), and waited for: first batches, slots, other batches.",
            waits,
            "phase",
        ),
        Family(
            "interlock_feed_stage_busy_seconds_total",
            "counter",
            "Seconds that the workers of a stage were in it.",
            {stage.name: stage.busy_s for stage in told.stages},
            "stage",
        ),
        *(Family(f"interlock_feed_{name}", "gauge", text, {"": value}) for name, text, value in gauges),
    ]
