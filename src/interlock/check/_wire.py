"""Reports between processes, as JSON: nothing that a program under check writes is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from interlock.check._model import Hazard, Place, Report, ScheduleRun, Unsupported


def to_text(report: Report, streams: tuple[str, ...] = ()) -> str:
    """Return a report, and the streams that the program used, as one line of JSON."""
    return json.dumps({"report": asdict(report), "streams": streams})


def from_text(text: str) -> tuple[Report, tuple[str, ...]]:
    """Return what `to_text` was given.

    Raises:
        ValueError: It is something else.
    """
    try:
        plain = json.loads(text)
        return _report(plain["report"]), tuple(plain["streams"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no report: {error}") from error


def _report(plain: dict[str, Any]) -> Report:
    return Report(
        program=plain["program"],
        schedules=tuple(ScheduleRun(**run) for run in plain["schedules"]),
        hazards=tuple(_hazard(hazard) for hazard in plain["hazards"]),
        unsupported=tuple(Unsupported(**entry) for entry in plain["unsupported"]),
        failure=plain["failure"],
        notes=tuple(plain["notes"]),
    )


def _hazard(plain: dict[str, Any]) -> Hazard:
    first, second = (_place(place) for place in plain["accesses"])
    return Hazard(**{**plain, "accesses": (first, second)})


def _place(plain: dict[str, Any]) -> Place:
    return Place(**{**plain, "site": tuple((file, line, function) for file, line, function in plain["site"])})
