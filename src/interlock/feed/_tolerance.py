"""What becomes of samples that a source cannot give: how often they are asked for, how many may be bad, who is told."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from interlock.errors import SampleError, SinkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.feed._work import Failure

Action = Literal["raise", "skip", "substitute"]

MOST_LISTED = 100_000
"""Most failures in `Feed.failures`."""
_ACTIONS: tuple[Action, ...] = ("raise", "skip", "substitute")
_DEFAULT_RATE_AFTER = 1000
_SHOWN = 3


@final
@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a feed does about a sample that its source cannot give, and how many of them it bears.

    Args:
        action: `raise` ends the epoch, `skip` leaves the sample out, `substitute` fills its row with the next sample of
            the epoch's order that can be read, of the 16 that follow; after the last comes the first. Which one that is
            depends on the seed, the epoch and the position only, so it is the same on every rank and in every run.
        attempts: How often a sample is asked for before it counts as bad.
        pause_s: Wait before the second attempt; it is twice as long before each further one. Closing the feed ends that
            of a worker.
        most: Most bad samples in an epoch; one more ends it. None for any number.
        highest_rate: Highest share of bad samples among those that came so far in the epoch. None for any.
        rate_after: Samples that must have come before the share counts, or all of a shorter epoch.
        ledger: File that bad samples are appended to, a line of JSON each with the fields of `Failure`. Each process
            needs one of its own.

    Raises:
        UsageError: A value that cannot be meant.

    Bounds hold for what one process reads in one iteration, and only of samples in batches that it came to.
    """

    action: Action = "skip"
    attempts: int = 1
    pause_s: float = 0.0
    most: int | None = None
    highest_rate: float | None = None
    rate_after: int = _DEFAULT_RATE_AFTER
    ledger: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise UsageError(f"action is {self.action!r}", hint="use 'raise', 'skip' or 'substitute'")
        for name, value, least in (("attempts", self.attempts, 1), ("rate_after", self.rate_after, 1)):
            if value < least:
                raise UsageError(f"{name} is {value}", hint=f"give at least {least}")
        if not 0 <= self.pause_s < float("inf"):
            raise UsageError(f"pause_s is {self.pause_s}", hint="give 0 or more seconds")
        if self.most is not None and self.most < 0:
            raise UsageError(f"most is {self.most}", hint="give 0 or more, or None for any number")
        if self.highest_rate is not None and not 0 <= self.highest_rate <= 1:
            raise UsageError(f"highest_rate is {self.highest_rate}", hint="give a share from 0 to 1")

    def pause_before(self, attempt: int) -> float:
        """Return how many seconds to wait before an attempt; the first is number 1."""
        return self.pause_s * 2.0 ** (attempt - 2)


def retry(times: int, then: Action = "raise", *, pause_s: float = 0.0) -> Tolerance:
    """Return a tolerance that asks for a sample up to `times` times more.

    Args:
        times: Further attempts after the first.
        then: What becomes of a sample that failed in all of them.
        pause_s: As in `Tolerance`.

    Raises:
        UsageError: A value that cannot be meant.

    Example:
        >>> retry(2, then="skip").attempts
        3
    """
    if times < 0:
        raise UsageError(f"times is {times}", hint="give 0 or more")
    return Tolerance(then, attempts=times + 1, pause_s=pause_s)


def tolerance_of(on_error: Any) -> Tolerance:
    """Return what an argument `on_error` means.

    Raises:
        UsageError: It cannot be meant.
    """
    if isinstance(on_error, Tolerance):
        return on_error
    for action in _ACTIONS:
        if on_error == action:
            return Tolerance(action)
    raise UsageError(
        f"on_error is {on_error!r}",
        hint="use 'raise', 'skip', 'substitute', retry(3) or, for bounds and a ledger, a Tolerance",
    )


@final
class Ledger:
    """The file that bad samples are appended to. One thread writes; a line that a crash cut short stays by itself.

    Args:
        path: The file; it is made at once, so that a wrong path is known before it is needed.

    Raises:
        UsageError: It cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            self._path.open("ab").close()
        except OSError as error:
            raise UsageError(
                f"the ledger {self._path} cannot be written", why=_reason_of(error), hint="name a file in a folder"
            ) from error

    def append(self, failures: Sequence[Failure]) -> None:
        """Add a line for each.

        Blocks: until they are on storage.

        Raises:
            SinkError: They cannot be written.
        """
        lines = "".join(json.dumps(failure.as_dict()) + "\n" for failure in failures)
        try:
            with self._path.open("ab+") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    lines = lines if file.read(1) == b"\n" else "\n" + lines
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SinkError(
                f"the ledger {self._path} cannot be written", why=_reason_of(error), hint="see to its disk and folder"
            ) from error


def _reason_of(error: OSError) -> str:
    return error.strerror or type(error).__name__


@final
class Account:
    """The bad samples of one pass, in the order of its batches. Only the consumer's thread has to do with it.

    Args:
        tolerance: How many may be bad.
        ledger: Where they are written, if anywhere.
        failures: Where they are listed.
        total: Samples of the pass; None if only the source knows.
    """

    def __init__(self, tolerance: Tolerance, ledger: Ledger | None, failures: list[Failure], total: int | None) -> None:
        self._tolerance = tolerance
        self._ledger = ledger
        self._failures = failures
        rate_after = tolerance.rate_after
        self._rate_after = rate_after if total is None else min(rate_after, total)
        self._seen = self._bad = 0
        self._first: list[Failure] = []

    def take(self, rows: int, found: Sequence[Failure]) -> None:
        """Take in a batch of `rows` samples.

        Blocks: where there are bad samples and a ledger, until they are on storage.

        Raises:
            SampleError: More are bad than are tolerated.
            SinkError: They cannot be written to the ledger.
        """
        self._seen += rows
        if found:
            self._bad += len(found)
            self._first += found[: _SHOWN - len(self._first)]
            self._failures += found[: max(0, MOST_LISTED - len(self._failures))]
            if self._ledger is not None:
                self._ledger.append(found)
        if self._bad:
            self._check()

    def _check(self) -> None:
        most, rate = self._tolerance.most, self._tolerance.highest_rate
        if most is not None and self._bad > most:
            bound, name = f"most {most}", "most"
        elif rate is not None and self._seen >= self._rate_after and self._bad > rate * self._seen:
            bound, name = f"most {rate:.6g} of them", "highest_rate"
        else:
            return
        reasons = " | ".join(f"sample {one.id!r}: {one.reason}" for one in self._first)
        raise SampleError(
            f"{self._bad} of {self._seen} samples are bad, where at {bound} are tolerated",
            index=self._first[-1].index,
            why=f"the first are {reasons}",
            hint=f"`failures` of the feed has more; mend them, or raise {name}",
        )
