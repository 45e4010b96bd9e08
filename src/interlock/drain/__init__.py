"""Model outputs to a committed, resumable dataset: tickets, sinks, manifest, ranks, resume, maintenance."""

from __future__ import annotations

from interlock._core._rows import RaggedRows
from interlock.drain._drain import Drain
from interlock.drain._explain import Explanation
from interlock.drain._failures import Failure
from interlock.drain._idcodes import decode_ids
from interlock.drain._inspect import RankStatus, SinkStatus, VerifyReport, read_committed, read_status, verify_sink
from interlock.drain._maintain import (
    MergeReport,
    RankPlan,
    compact_sink,
    discard_sink,
    merge_sink,
    resume_plan,
    settle_sink,
)
from interlock.drain._ragged import Ragged
from interlock.drain._reductions import Argmax, Cast, Crop, Quantize, TopK
from interlock.drain._report import Record
from interlock.drain._sinks import open_sink
from interlock.drain._statistics import DrainStatistics
from interlock.drain._tickets import Ticket
from interlock.drain._todo import Todo

__all__ = [
    "Argmax",
    "Cast",
    "Crop",
    "Drain",
    "DrainStatistics",
    "Explanation",
    "Failure",
    "MergeReport",
    "Quantize",
    "Ragged",
    "RaggedRows",
    "RankPlan",
    "RankStatus",
    "Record",
    "SinkStatus",
    "Ticket",
    "Todo",
    "TopK",
    "VerifyReport",
    "compact_sink",
    "decode_ids",
    "discard_sink",
    "merge_sink",
    "open_sink",
    "read_committed",
    "read_status",
    "resume_plan",
    "settle_sink",
    "verify_sink",
]
