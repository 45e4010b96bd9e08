"""What a check finds, as frozen data; reports render it, folds make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from interlock._core._events import Site

CODES = {
    "early-read": "IL101",
    "early-overwrite": "IL102",
    "late-landing": "IL103",
    "unordered-read": "IL201",
    "unordered-write": "IL202",
    "freed-in-flight": "IL203",
    "recycled": "IL301",
    "aliased-mutation": "IL302",
    "use-after-donate": "IL303",
    "moving-snapshot": "IL304",
    "stale-graph-input": "IL401",
    "unawaited-collective": "IL402",
    "cross-process": "IL403",
    "completion-lie": "IL404",
}
"""Kind of hazard to its code, for SARIF and suppressions."""

MEANINGS = {
    "early-read": "the host reads before a copy has landed",
    "early-overwrite": "the host rewrites what a copy still reads",
    "late-landing": "a late copy lands on newer data",
    "unordered-read": "a stream reads what another stream writes, with no order between them",
    "unordered-write": "a stream writes what another stream uses, with no order between them",
    "freed-in-flight": "an allocator gives memory away while another stream uses it",
    "recycled": "a producer reuses what its consumer still holds",
    "aliased-mutation": "a value secretly shares memory with something that is changed",
    "use-after-donate": "a buffer is used after it was given away",
    "moving-snapshot": "a background writer sees later values than those it was given",
    "stale-graph-input": "a captured graph and its surroundings use the same memory with no order between them",
    "unawaited-collective": "the result of a collective is used before it was awaited",
    "cross-process": "two processes use the same memory with no order between them",
    "completion-lie": "the signal says done before the bytes are there",
}
"""Kind of hazard in one line."""

Verdict: TypeAlias = Literal["race", "may-race", "witnessed"]
"""`race`: both accesses are exact. `may-race`: one may not have happened. `witnessed`: a wrong value was seen."""

Outcome: TypeAlias = Literal["clean", "hazards", "failed", "diverged"]
"""`failed`: the program raised. `diverged`: values differ without a missing edge, which is our bug."""


@final
@dataclass(frozen=True, slots=True)
class Place:
    """One of the two accesses of a hazard.

    Attributes:
        file: The user's own file.
        line: Its line, from 1.
        function: Its function.
        operation: What was done, as `aten::add` or `numpy read`.
        timeline: Who did it.
        bytes: Which bytes of the allocation, as `0:4096`.
        mode: How.
        site: The whole stack, innermost frame first.
    """

    file: str
    line: int
    function: str
    operation: str
    timeline: str
    bytes: str
    mode: Literal["read", "write", "free", "lent"]
    site: Site


@final
@dataclass(frozen=True, slots=True)
class Hazard:
    """Two accesses to the same bytes with no path of fences between them, or memory reused before its last use ended.

    Attributes:
        code: As `IL101`.
        kind: As `early-read`.
        verdict: How sure this is.
        accesses: The earlier one, then the later one.
        missing_edge: The order that is missing, in words.
        fix: The weakest call that adds it, and where.
        witness: The wrong value that was seen, or None.
        replay: The schedule's text that shows it again.
    """

    code: str
    kind: str
    verdict: Verdict
    accesses: tuple[Place, Place]
    missing_edge: str
    fix: str
    witness: str | None
    replay: str


@final
@dataclass(frozen=True, slots=True)
class Unsupported:
    """Something that the simulator cannot do; nothing is said about what depends on it."""

    operation: str
    file: str
    line: int
    why: str


@final
@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """One run of the program.

    Attributes:
        name: The schedule's text, which replays it.
        steps: Operations that were queued.
        outcome: What came of it.
    """

    name: str
    steps: int
    outcome: Outcome


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What all schedules showed.

    Attributes:
        program: What was checked.
        schedules: One entry a run.
        hazards: Each pair of places once.
        unsupported: Each operation and line once.
        failure: Traceback of the program's own failure, or None.
        notes: What a reader must know, as that `torch.compile` ran eagerly.
    """

    program: str
    schedules: tuple[ScheduleRun, ...]
    hazards: tuple[Hazard, ...]
    unsupported: tuple[Unsupported, ...]
    failure: str | None = None
    notes: tuple[str, ...] = ()
