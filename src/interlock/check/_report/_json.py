"""The report for programs: one JSON object, its keys stable, its form versioned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.check._model import Hazard, Place
    from interlock.check._report._review import Review

VERSION = 1


def as_json(review: Review) -> str:
    """Return the review as JSON text. `hazards` are those that count.

    `failure`, `notes` and `suppressed` are there only if there is something to say.
    """
    return json.dumps(as_dict(review), indent=2, ensure_ascii=False) + "\n"


def as_dict(review: Review) -> dict[str, Any]:
    """Return the review as plain values."""
    report = review.report
    plain: dict[str, Any] = {
        "version": VERSION,
        "program": report.program,
        "schedules": [{"name": run.name, "steps": run.steps, "outcome": run.outcome} for run in report.schedules],
        "hazards": [_hazard(finding.hazard) for finding in review.findings],
        "unsupported": [
            {"operation": one.operation, "file": one.file, "line": one.line, "why": one.why}
            for one in report.unsupported
        ],
    }
    if report.failure is not None:
        plain["failure"] = report.failure
    if notes := [*report.notes, *review.remarks]:
        plain["notes"] = notes
    if review.suppressed:
        plain["suppressed"] = [
            {**_hazard(one.finding.hazard), "by": one.where, "reason": one.reason} for one in review.suppressed
        ]
    return plain


def _hazard(hazard: Hazard) -> dict[str, Any]:
    return {
        "code": hazard.code,
        "kind": hazard.kind,
        "verdict": hazard.verdict,
        "accesses": [_access(place) for place in hazard.accesses],
        "missing_edge": hazard.missing_edge,
        "fix": hazard.fix,
        "witness": hazard.witness,
        "replay": hazard.replay,
    }


def _access(place: Place) -> dict[str, Any]:
    return {
        "file": place.file,
        "line": place.line,
        "function": place.function,
        "operation": place.operation,
        "timeline": place.timeline,
        "bytes": place.bytes,
    }
