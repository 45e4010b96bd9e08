"""From a finding to words: who, where, which order is missing, and the weakest call that adds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from interlock._core._events import Free, Handoff
from interlock.check._clocks import HOST
from interlock.check._model import CODES, Hazard, Place
from interlock.check._sites import user_frame

if TYPE_CHECKING:
    from interlock.check._hazards import Finding
    from interlock.check._shadow import Entry


def explain(finding: Finding, *, witness: str | None, replay: str) -> Hazard:
    """Return the hazard that a finding is.

    Args:
        finding: From the fold.
        witness: The wrong value that was seen, if any.
        replay: Text of the schedule under which it was found.
    """
    earlier, later = _place(finding.earlier), _place(finding.later)
    return Hazard(
        code=CODES[finding.kind],
        kind=finding.kind,
        verdict="witnessed" if witness else finding.verdict,
        accesses=(earlier, later),
        missing_edge=_missing_edge(finding.kind, earlier, later),
        fix=_FIXES[finding.kind](earlier, later),
        witness=witness,
        replay=replay,
    )


def _place(access: Entry | Handoff) -> Place:
    if isinstance(access, Handoff):
        event, timeline, operation = access, access.party, f"handed to {access.party}"
        mode: Literal["read", "write", "free", "lent"] = "lent"
    else:
        event = access.event  # type: ignore[assignment] # three kinds of event with a site
        timeline = access.epoch.timeline
        operation = getattr(access.event, "operation", "free")
        mode = "free" if isinstance(access.event, Free) else access.event.mode
    file, line, function = user_frame(event.site)
    region = access.region
    span = f"{region.offset_bytes}:{region.offset_bytes + region.size_bytes}"
    return Place(file, line, function, operation, timeline, span, mode, event.site)


def _at(place: Place) -> str:
    return f"{os.path.basename(place.file)}:{place.line}"  # noqa: PTH119 - text, not a path to open


def stream_of(timeline: str) -> str:
    """Return how a message names a timeline: the host, or a stream."""
    return "the host" if timeline == HOST else f"stream {timeline.rpartition('/')[2]!r}"


def _missing_edge(kind: str, earlier: Place, later: Place) -> str:
    who, other = stream_of(later.timeline), stream_of(earlier.timeline)
    if earlier.mode == "lent":
        held = f"{earlier.timeline} holds these bytes since {_at(earlier)}"
        return f"{held}, and nothing says that it is done before {_at(later)}"
    verb = {"read": "reads", "write": "writes", "free": "gives away", "lent": "holds"}
    if kind == "freed-in-flight":
        return (
            f"the memory is given away in the order of {who} at {_at(later)}, and nothing makes that wait for {other}"
        )
    return (
        f"{who} {verb[later.mode]} at {_at(later)}, and nothing orders that after {other}, which "
        f"{verb[earlier.mode]} the same bytes ({earlier.operation} at {_at(earlier)})"
    )


def _synchronise(earlier: Place, later: Place) -> str:
    return (
        f"record an event on {stream_of(earlier.timeline)} right after {_at(earlier)}, and call event.synchronize() "
        f"before {_at(later)}"
    )


def _wait_stream(earlier: Place, later: Place) -> str:
    return (
        f"make {stream_of(later.timeline)} wait before {_at(later)}: later_stream.wait_event(event), with the event "
        f"recorded on {stream_of(earlier.timeline)} right after {_at(earlier)}, or wait_stream()"
    )


def _record_stream(earlier: Place, later: Place) -> str:
    if HOST in {earlier.timeline, later.timeline}:
        return f"keep the memory until {stream_of(earlier.timeline)} is done: synchronise before {_at(later)}"
    stream = stream_of(earlier.timeline)
    return f"call tensor.record_stream() with {stream} at {_at(earlier)}, before the tensor is dropped"


def _copy_first(earlier: Place, later: Place) -> str:
    return f"hand over a copy at {_at(earlier)} (as with .copy() or .clone()), or let it be done before {_at(later)}"


def _lease(earlier: Place, later: Place) -> str:
    return (
        f"copy at {_at(earlier)}, or keep the producer from reusing the buffer at {_at(later)} until the consumer is "
        "done: interlock.prefetch(producer, to=...) does that without stopping"
    )


def _await_result(earlier: Place, later: Place) -> str:
    return f"call work.wait() on what {_at(earlier)} returned, before {_at(later)}"


_FIXES = {
    "early-read": _synchronise,
    "early-overwrite": _synchronise,
    "late-landing": _synchronise,
    "unordered-read": _wait_stream,
    "unordered-write": _wait_stream,
    "freed-in-flight": _record_stream,
    "recycled": _lease,
    "aliased-mutation": _copy_first,
    "use-after-donate": _copy_first,
    "moving-snapshot": _copy_first,
    "stale-graph-input": _wait_stream,
    "unawaited-collective": _await_result,
    "cross-process": _synchronise,
    "completion-lie": _synchronise,
}
