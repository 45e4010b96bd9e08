"""What a drain did, as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock._core._exposition import Family, exposition

if TYPE_CHECKING:
    from interlock.drain._statistics import DrainStatistics


def prometheus_text(statistics: DrainStatistics, scheme: str, rank: int) -> str:
    """Return the statistics of a drain in the text format of Prometheus.

    Args:
        statistics: What it did.
        scheme: The kind of sink; paths are not told.
        rank: Which of several processes it is.
    """
    return exposition(_families(statistics), {"sink": scheme, "rank": str(rank)})


def _families(told: DrainStatistics) -> list[Family]:
    counters = [
        ("puts", "Calls of put.", told.puts),
        ("flushes", "How often everything that was put was committed on demand.", told.flushes),
        ("rows_put", "Rows given to put.", told.rows_put),
        ("rows_written", "Rows that are with the sink.", told.rows_written),
        ("rows_committed", "Rows that this run committed.", told.rows_committed),
        ("rows_duplicate", "Rows dropped since they had come before.", told.rows_duplicate),
        ("put_bytes", "Bytes of rows given to put.", told.bytes_put),
        ("written_bytes", "Bytes of the files of committed shards.", told.bytes_written),
        ("shards_committed", "Shards that this run committed.", told.shards),
        ("host_syncs", "How often a put made the host wait for a device.", told.host_syncs),
        ("process_cpu_seconds", "Processor time of the process since the first put.", told.process_s),
    ]
    gauges = [
        ("rows_failed", "Rows that failed and were not committed since.", told.rows_failed),
        ("rows_resumed", "Rows that were committed when the drain was opened.", told.rows_resumed),
        ("writers", "Threads that write.", told.writers),
        ("held_bytes", "Bytes of the budget in use.", told.held_bytes),
        ("budget_bytes", "The budget.", told.budget_bytes),
    ]
    return [
        *(Family(f"interlock_drain_{name}_total", "counter", text, {"": value}) for name, text, value in counters),
        Family(
            "interlock_drain_producer_seconds_total",
            "counter",
            "Seconds since the first put: what the producer did (loop), and what it did in the drain.",
            told.of_producer,
            "phase",
        ),
        Family(
            "interlock_drain_writer_seconds_total",
            "counter",
            "Seconds in the life of the threads that write, by what they did.",
            told.of_writers,
            "phase",
        ),
        *(Family(f"interlock_drain_{name}", "gauge", text, {"": value}) for name, text, value in gauges),
    ]
