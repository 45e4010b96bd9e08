"""Feed: any source to batches in device memory.

`_samples` says what a source is, `_readers` turns samples into rows of a slot, `_pipeline` makes batches ahead with
worker threads, `_staging` lends slots and takes them back, `_iteration` is one pass of it, `_feed` and `_prefetch`
are what users call. `sources` reads files.
"""

from __future__ import annotations

from interlock.feed._feed import Feed
from interlock.feed._prefetch import prefetch
from interlock.feed._samples import SampleInfo
from interlock.feed._statistics import FeedStatistics
from interlock.feed._work import Failure

__all__ = ["Failure", "Feed", "FeedStatistics", "SampleInfo", "prefetch"]
