"""SARIF 2.1.0, for code scanners.

A result points at the later access, where the order is missing; the earlier one is a related location, and a code flow
goes through both. Suppressed hazards are there, marked as such.

Source: the OASIS standard SARIF 2.1.0 with errata 01; the properties that GitHub's code scanning reads.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from interlock.check._model import CODES, MEANINGS
from interlock.check._report._source import excerpt
from interlock.check._report._words import LIMITS, VERDICTS, does, replay_command, shown

if TYPE_CHECKING:
    from interlock.check._model import Hazard, Place, Report
    from interlock.check._report._review import Finding, Review, Suppressed

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "interlockHazard/v1"
_ROOT = "SRCROOT"
_KINDS = sorted(CODES, key=CODES.__getitem__)
_LEVELS = {"race": "error", "witnessed": "error", "may-race": "warning"}


def as_sarif(review: Review) -> str:
    """Return the review as SARIF text."""
    return json.dumps(as_log(review), indent=2, ensure_ascii=False) + "\n"


def as_log(review: Review) -> dict[str, Any]:
    """Return the review as a SARIF log in plain values."""
    results = [_result(finding, review) for finding in review.findings]
    results += [{**_result(one.finding, review), "suppressions": [_suppression(one)]} for one in review.suppressed]
    run = {
        "tool": {"driver": _driver()},
        "automationDetails": {"id": f"interlock-check/{quote(review.report.program)}/"},
        "invocations": [_invocation(review)],
        "originalUriBaseIds": {_ROOT: {"uri": review.root.as_uri().rstrip("/") + "/"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _driver() -> dict[str, Any]:
    return {
        "name": "Interlock",
        "fullName": "interlock check",
        "version": version("interlock"),
        "shortDescription": {"text": "Finds hand-offs of memory without an order."},
        "fullDescription": {"text": LIMITS},
        "rules": [_rule(kind) for kind in _KINDS],
    }


def _rule(kind: str) -> dict[str, Any]:
    meaning = f"{MEANINGS[kind][0].upper()}{MEANINGS[kind][1:]}."
    return {
        "id": CODES[kind],
        "name": "".join(word.capitalize() for word in kind.split("-")),
        "shortDescription": {"text": meaning},
        "fullDescription": {"text": f"{meaning} Two accesses to the same bytes have no path of fences between them."},
        "help": {
            "text": f"{meaning} The message names the order that is missing and the weakest call that adds it. "
            f"To accept a hazard: # interlock: ignore[{CODES[kind]}] with a reason, on either line."
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["correctness", "concurrency"], "problem.severity": "error", "precision": "very-high"},
    }


def _result(finding: Finding, review: Review) -> dict[str, Any]:
    hazard, root = finding.hazard, review.root
    earlier, later = hazard.accesses
    return {
        "ruleId": hazard.code,
        "ruleIndex": _KINDS.index(hazard.kind),
        "level": _LEVELS[hazard.verdict],
        "message": {"text": _message(hazard, review.report)},
        "locations": [_location(later, root)],
        "relatedLocations": [{"id": 1, **_location(earlier, root), "message": {"text": _step(earlier, "Earlier")}}],
        "codeFlows": [{"threadFlows": _flows(hazard, root)}],
        "partialFingerprints": {FINGERPRINT: finding.fingerprint},
        "properties": {"verdict": hazard.verdict, "replay": hazard.replay, "schedules": list(finding.replays)},
    }


def _message(hazard: Hazard, report: Report) -> str:
    meaning = f"{MEANINGS[hazard.kind][0].upper()}{MEANINGS[hazard.kind][1:]}"
    lines = [
        f"{meaning} ({hazard.kind}; {VERDICTS[hazard.verdict]}). The earlier access is [here](1).",
        f"Missing: {hazard.missing_edge}.",
        f"Fix: {hazard.fix}.",
    ]
    if hazard.witness:
        lines.append(f"Witness: {hazard.witness}.")
    lines.append(f"Replay: {replay_command(report, hazard.replay)}")
    return "\n".join(lines)


def _flows(hazard: Hazard, root: Path) -> list[dict[str, Any]]:
    """Return one flow for each timeline, its steps numbered in the order of the program."""
    flows: dict[str, list[dict[str, Any]]] = {}
    for order, (place, name) in enumerate(zip(hazard.accesses, ("Earlier", "Later"), strict=True), 1):
        step = {**_location(place, root), "message": {"text": _step(place, name)}}
        entry = {"location": step, "executionOrder": order, "importance": "essential"}
        flows.setdefault(place.timeline, []).append(entry)
    return [{"id": timeline, "locations": steps} for timeline, steps in flows.items()]


def _step(place: Place, name: str) -> str:
    return f"{name}: {does(place)}"


def _location(place: Place, root: Path) -> dict[str, Any]:
    location = _physical(place.file, place.line, root)
    return {**location, "logicalLocations": [{"fullyQualifiedName": place.function, "kind": "function"}]}


def _physical(file: str, line: int, root: Path) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(1, line)}
    physical: dict[str, Any] = {"artifactLocation": _artifact(file, root), "region": region}
    lines = excerpt(file, line)
    if lines:
        region["snippet"] = {"text": next(one.text for one in lines if one.guilty)}
        physical["contextRegion"] = {
            "startLine": lines[0].number,
            "endLine": lines[-1].number,
            "snippet": {"text": "\n".join(one.text for one in lines)},
        }
    return {"physicalLocation": physical}


def _artifact(file: str, root: Path) -> dict[str, Any]:
    name = shown(file, root)
    if Path(name).is_absolute():
        return {"uri": Path(name).as_uri()}
    return {"uri": quote(name), "uriBaseId": _ROOT}


def _suppression(suppressed: Suppressed) -> dict[str, Any]:
    kind = "inSource" if suppressed.where == "source" else "external"
    return {"kind": kind, "status": "accepted", "justification": suppressed.reason}


def _invocation(review: Review) -> dict[str, Any]:
    report = review.report
    notices: list[dict[str, Any]] = [
        {
            "level": "warning",
            "message": {"text": f"not checked: {one.operation}: {one.why}"},
            "locations": [_physical(one.file, one.line, review.root)],
        }
        for one in report.unsupported
    ]
    notices += [{"level": "note", "message": {"text": text}} for text in (*report.notes, *review.remarks)]
    if report.failure is not None:
        notices.append({"level": "error", "message": {"text": report.failure}})
    return {"executionSuccessful": report.failure is None, "toolExecutionNotifications": notices}
