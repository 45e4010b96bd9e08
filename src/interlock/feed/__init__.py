"""Feed: any source to batches in device memory.

`_samples` says what a source is, `_stages` what its samples go through, `_recipe` how one of them comes about.
`_readers` turns samples into rows of a slot, `_crew` has the worker threads, `_pipeline` makes batches ahead with them,
`_staging` lends slots and takes them back, `_iteration` is one pass of it, `_feed` and `_prefetch` are what users call.
`_order` computes the order of an epoch, `_state` says how far a feed is and which part of an epoch a process reads.
`_tolerance` says what becomes of bad samples. `_processes` has the worker processes, `_parcel` what they are given,
`_worker` is what runs in them, `_wire` what they say to each other; `_workers` and `_auto` say who reads.
`_statistics` and `_times` count, `_attribution` finds out what the consumer waits for, `_explain` says it, `_report`
tells it while a feed runs.
`sources` reads files.

Each name is loaded when it is first asked for: a worker process needs few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.feed._explain import Explanation
    from interlock.feed._feed import Feed
    from interlock.feed._order import ShuffleQuality
    from interlock.feed._prefetch import prefetch
    from interlock.feed._ragged import Offsets, Padded
    from interlock.feed._report import Record
    from interlock.feed._samples import SampleInfo
    from interlock.feed._stages import Stage
    from interlock.feed._state import Shard
    from interlock.feed._statistics import FeedStatistics, StageTimes
    from interlock.feed._tolerance import Tolerance, retry
    from interlock.feed._work import Failure

__all__ = [
    "Explanation",
    "Failure",
    "Feed",
    "FeedStatistics",
    "Offsets",
    "Padded",
    "Record",
    "SampleInfo",
    "Shard",
    "ShuffleQuality",
    "Stage",
    "StageTimes",
    "Tolerance",
    "prefetch",
    "retry",
]

_HOME = {
    "Explanation": "_explain",
    "Failure": "_work",
    "Feed": "_feed",
    "FeedStatistics": "_statistics",
    "Offsets": "_ragged",
    "Padded": "_ragged",
    "Record": "_report",
    "SampleInfo": "_samples",
    "Shard": "_state",
    "ShuffleQuality": "_order",
    "Stage": "_stages",
    "StageTimes": "_statistics",
    "Tolerance": "_tolerance",
    "prefetch": "_prefetch",
    "retry": "_tolerance",
}


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _HOME:
        raise AttributeError(f"module 'interlock.feed' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"interlock.feed.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
