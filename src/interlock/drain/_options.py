"""Whether the options of a drain are what they should be."""

from __future__ import annotations

from numbers import Integral

from interlock.errors import UsageError


def check_positive(**options: float) -> None:
    """Refuse numbers that are not positive."""
    for name, value in options.items():
        if not value > 0:  # NaN is not either
            raise UsageError(f"{name} is {value}", why="it must be positive")


def check_ages(**options: float) -> None:
    """Refuse numbers that are negative."""
    for name, value in options.items():
        if not value >= 0:  # NaN is not either
            raise UsageError(f"{name} is {value}", why="it must not be negative")


def check_whole(**options: object) -> None:
    """Refuse numbers with a fraction, and those of types that have one, as 1e9."""
    for name, value in options.items():
        if not isinstance(value, Integral):
            raise UsageError(f"{name} is {value!r}", why="it is a whole number", hint="write it as int, as 1_000_000")


def check_choice(name: str, value: str, *choices: str) -> None:
    """Refuse a word that is none of the choices."""
    if value not in choices:
        raise UsageError(f"{name} is {value!r}", hint=f"use {' or '.join(choices)}")


def check_numbers(writers: int | str, total: int | None, **positive: float) -> None:
    """Refuse numbers that are out of range.

    Args:
        writers: As in `Drain`.
        total: As in `Drain`.
        positive: Those that must be positive, by name.
    """
    check_whole(**{name: value for name, value in positive.items() if name.endswith("_bytes")})
    check_positive(**positive)
    check_writers(writers)
    check_total(total)


def check_writers(writers: int | str) -> None:
    """Refuse what is neither `auto` nor a number of threads."""
    if isinstance(writers, str):
        check_choice("writers", writers, "auto", "a number")
    else:
        check_whole(writers=writers)
        check_positive(writers=writers)


def check_total(total: int | None) -> None:
    """Refuse a total that is no number of rows."""
    if total is not None:
        check_whole(total=total)
    if total is not None and total < 0:
        raise UsageError(f"total is {total}", why="it is a number of rows")


def check_restart(rank: int, world: int, *, restart: bool) -> None:
    """Refuse to begin anew as one of several."""
    if restart and world > 1:
        raise UsageError(
            f"restart=True on rank {rank} of {world}",
            why="a rank that opens late would discard what others wrote",
            hint="discard it before the ranks start, as with interlock.drain.discard_sink(sink)",
        )
