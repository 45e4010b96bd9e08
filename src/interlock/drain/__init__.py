"""Model outputs to a committed, resumable dataset: tickets, sinks, manifest, resume."""

from __future__ import annotations

from interlock.drain._drain import Drain, DrainStatistics
from interlock.drain._inspect import SinkStatus, VerifyReport, read_status, verify_sink
from interlock.drain._sinks import open_sink
from interlock.drain._tickets import Ticket

__all__ = [
    "Drain",
    "DrainStatistics",
    "SinkStatus",
    "Ticket",
    "VerifyReport",
    "open_sink",
    "read_status",
    "verify_sink",
]
