"""What counts: each pair of places once, minus what the user has looked at and given a reason for."""

from __future__ import annotations

import hashlib
import linecache
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from interlock.check._model import CODES
from interlock.check._report._source import line_text, moving_name, users_traceback
from interlock.check._report._words import counted, shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date

    from interlock.check._model import Hazard, Place, Report, Verdict
    from interlock.check._report._baseline import Baseline

_COMMENT = re.compile(r"#\s*interlock:\s*ignore\b\s*(?:\[(?P<codes>[^\]]*)\])?(?P<reason>[^#]*)")
_STRENGTH: tuple[Verdict, ...] = ("may-race", "race", "witnessed")


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """A pair of places with a hazard.

    Attributes:
        hazard: The strongest of those with these places.
        fingerprint: Names it across runs, machines and edits that only move lines.
        replays: Texts of the schedules under which it was seen, each once.
    """

    hazard: Hazard
    fingerprint: str
    replays: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that does not count.

    Attributes:
        finding: What was found.
        where: A comment in the source, or an entry of the baseline file.
        reason: Why it does not count, in the user's words.
    """

    finding: Finding
    where: Literal["source", "baseline"]
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Review:
    """A report and what counts of it.

    Attributes:
        report: Of all schedules.
        root: Files below it are named relative to it.
        findings: What counts.
        suppressed: What does not.
        remarks: Suppressions that do not work, and why.
    """

    report: Report
    root: Path
    findings: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...] = ()
    remarks: tuple[str, ...] = ()


def review(
    report: Report, *, baseline: Baseline | None = None, today: date | None = None, root: Path | None = None
) -> Review:
    """Decide what counts.

    Args:
        report: Of all schedules.
        baseline: Findings that were accepted before.
        today: Entries of the baseline that expire before it do not count. Default: none expires.
        root: Files below it are named relative to it. Default: the working folder.
    """
    root = Path.cwd() if root is None else root
    if report.failure is not None:
        report = replace(report, failure=users_traceback(report.failure))
    for place in {place.file for hazard in report.hazards for place in hazard.accesses}:
        linecache.checkcache(place)
    counting: list[Finding] = []
    suppressed: list[Suppressed] = []
    remarks: dict[str, None] = {}
    for finding in _findings(report.hazards, root):
        reason = _reason_in_source(finding.hazard, root, remarks)
        accepted = baseline.reason(finding.fingerprint, today) if baseline else None
        if reason is not None:
            suppressed.append(Suppressed(finding, "source", reason))
        elif accepted is not None:
            suppressed.append(Suppressed(finding, "baseline", accepted))
        else:
            counting.append(finding)
    if baseline is not None:
        remarks.update(dict.fromkeys(_remarks_on(baseline, [*counting, *(one.finding for one in suppressed)], today)))
    return Review(report, root, tuple(counting), tuple(suppressed), tuple(remarks))


def _findings(hazards: Iterable[Hazard], root: Path) -> list[Finding]:
    groups: dict[tuple[object, ...], list[Hazard]] = {}
    for hazard in hazards:
        places = tuple(sorted((place.file, place.line) for place in hazard.accesses))
        groups.setdefault((hazard.code, places), []).append(hazard)
    return [
        Finding(
            max(group, key=lambda hazard: _STRENGTH.index(hazard.verdict)),
            fingerprint(group[0], root),
            tuple(dict.fromkeys(hazard.replay for hazard in group)),
        )
        for group in groups.values()
    ]


def fingerprint(hazard: Hazard, root: Path) -> str:
    """Return what names a hazard across runs, machines, and edits that only move its lines.

    It is made of the code and, for each access, file, mode, function, text of the line, and which of equal lines of the
    function it is: no line numbers, stream names, addresses or operations of a framework's version.
    """
    parts = [hazard.code, *sorted(_place_name(place, root) for place in hazard.accesses)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _place_name(place: Place, root: Path) -> str:
    file = shown(place.file, root)
    file = Path(file).name if Path(file).is_absolute() else file  # elsewhere on each machine
    return "|".join([file, place.mode, moving_name(place.file, place.line)])


def _reason_in_source(hazard: Hazard, root: Path, remarks: dict[str, None]) -> str | None:
    """Return the reason that a comment on either line gives for this code, if one does."""
    for place in hazard.accesses:
        found = _COMMENT.search(line_text(place.file, place.line))
        if found is None:
            continue
        codes = {code.strip() for code in (found["codes"] or "").split(",")} - {""}
        reason = found["reason"].strip(" \t:-\N{EN DASH}\N{EM DASH}")
        where = f"the suppression at {shown(place.file, root)}:{place.line}"
        unknown = sorted(codes - set(CODES.values()))
        if unknown:
            remarks[f"{where} names {', '.join(unknown)}, which is no code"] = None
        if not codes:
            remarks[f"{where} does not count: it names no code, as in ignore[{hazard.code}]"] = None
        elif hazard.code in codes and not reason:
            remarks[f"{where} does not count: it gives no reason after ignore[{hazard.code}]"] = None
        elif hazard.code in codes:
            return reason
    return None


def _remarks_on(baseline: Baseline, findings: list[Finding], today: date | None) -> list[str]:
    seen = {finding.fingerprint: finding.hazard for finding in findings}
    remarks = [
        f"the baseline's entry for {hazard.code} at {Path(hazard.accesses[1].file).name}:{hazard.accesses[1].line} "
        f"does not count: {problem}"
        for name, hazard in seen.items()
        if (problem := baseline.problem(name, today))
    ]
    unseen = sum(name not in seen for name in baseline.entries)
    if unseen:
        remarks.append(
            f"{counted(unseen, 'hazard')} of the baseline did not appear: --write-baseline drops what is gone"
        )
    return remarks
