"""Feed: any source to batches in device memory.

`_samples` says what a source is, `_readers` turns samples into rows of a slot, `_pipeline` makes batches ahead with
worker threads, `_staging` lends slots and takes them back, `_iteration` is one pass of it, `_feed` and `_prefetch`
are what users call. `_order` computes the order of an epoch, `_state` says how far a feed is and which part of an epoch
a process reads. `_tolerance` says what becomes of bad samples. `sources` reads files.
"""

from __future__ import annotations

from interlock.feed._feed import Feed
from interlock.feed._order import ShuffleQuality
from interlock.feed._prefetch import prefetch
from interlock.feed._samples import SampleInfo
from interlock.feed._state import Shard
from interlock.feed._statistics import FeedStatistics
from interlock.feed._tolerance import Tolerance, retry
from interlock.feed._work import Failure

__all__ = [
    "Failure",
    "Feed",
    "FeedStatistics",
    "SampleInfo",
    "Shard",
    "ShuffleQuality",
    "Tolerance",
    "prefetch",
    "retry",
]
