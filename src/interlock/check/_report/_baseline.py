"""The baseline file: hazards that were looked at and accepted, each with a reason, some until a date.

::

    {"version": 1, "hazards": [
      {"fingerprint": "…", "code": "IL101", "places": ["predict.py:12", "predict.py:14"],
       "reason": "…", "expires": "2027-01-31"}]}

`places` are for people: a hazard is found again by its fingerprint, which does not change when lines move.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, final

from interlock.check._report._words import shown
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from interlock.check._report._review import Finding, Review

VERSION = 1
FIRST_REASON = "was there when the baseline was written"
"""Reason of entries that nobody has given a better one."""


@final
@dataclass(frozen=True, slots=True)
class Accepted:
    """One entry. Without a reason it does not count; it counts up to and with the day `expires`."""

    code: str
    places: tuple[str, ...]
    reason: str
    expires: date | None = None


@final
@dataclass(frozen=True, slots=True)
class Baseline:
    """Entries by fingerprint."""

    entries: Mapping[str, Accepted]

    def reason(self, fingerprint: str, today: date | None) -> str | None:
        """Return why a hazard does not count, or None if it counts."""
        entry = self.entries.get(fingerprint)
        return None if entry is None or self.problem(fingerprint, today) else entry.reason

    def problem(self, fingerprint: str, today: date | None) -> str | None:
        """Return why the entry for a hazard does not work, or None if it works or there is none."""
        entry = self.entries.get(fingerprint)
        if entry is None:
            return None
        if not entry.reason.strip():
            return "it gives no reason"
        if entry.expires is not None and today is not None and today > entry.expires:
            return f"it expired on {entry.expires}"
        return None


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        UsageError: There is none, or it is something else; the message says what is wrong where.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["version"] != VERSION:
            raise UsageError(f"baseline {path} has version {plain['version']!r}", why=f"this program reads {VERSION}")
        return Baseline({one["fingerprint"]: _entry(one) for one in plain["hazards"]})
    except FileNotFoundError:
        raise UsageError(f"there is no baseline {path}", hint="write it first with --write-baseline FILE") from None
    except OSError as error:
        raise UsageError(f"baseline {path} cannot be read", why=str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} is no baseline", why=why, hint="write one with --write-baseline FILE") from error


def _entry(plain: Mapping[str, Any]) -> Accepted:
    expires = plain.get("expires")
    return Accepted(
        code=plain["code"],
        places=tuple(plain.get("places", ())),
        reason=str(plain.get("reason") or ""),
        expires=None if expires is None else date.fromisoformat(expires),
    )


def baseline_of(review: Review, before: Baseline | None, today: date | None = None) -> Baseline:
    """Return a baseline that accepts everything in a review that no comment in the source does.

    Args:
        review: What was found.
        before: Reasons and dates of what it holds are kept; what no longer appears is dropped.
        today: Dates before it are dropped: who writes a baseline accepts anew.
    """
    findings = [*review.findings, *(one.finding for one in review.suppressed if one.where == "baseline")]
    known = {} if before is None else before.entries
    return Baseline(
        {one.fingerprint: _accepted(one, known.get(one.fingerprint), review.root, today) for one in findings}
    )


def _accepted(finding: Finding, known: Accepted | None, root: Path, today: date | None) -> Accepted:
    hazard = finding.hazard
    places = tuple(f"{shown(place.file, root)}:{place.line}" for place in hazard.accesses)
    if known is None:
        return Accepted(hazard.code, places, FIRST_REASON)
    expired = known.expires is not None and today is not None and today > known.expires
    return Accepted(hazard.code, places, known.reason or FIRST_REASON, None if expired else known.expires)


def baseline_text(baseline: Baseline) -> str:
    """Return the text of the file; the same hazards give the same text."""
    entries = [
        {
            "fingerprint": fingerprint,
            "code": entry.code,
            "places": list(entry.places),
            "reason": entry.reason,
            **({"expires": entry.expires.isoformat()} if entry.expires else {}),
        }
        for fingerprint, entry in sorted(baseline.entries.items(), key=lambda one: (one[1].places, one[1].code, one[0]))
    ]
    return json.dumps({"version": VERSION, "hazards": entries}, indent=2, ensure_ascii=False) + "\n"
