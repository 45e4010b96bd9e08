"""Numbers as people read them: seconds, bytes, parts, counts."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return seconds with a unit that suits them."""
    if seconds >= 0.9995:  # noqa: PLR2004 - less is rounded to 999 ms at most
        return f"{seconds:,.1f} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 0.001 else f"{1e6 * seconds:.0f} µs"  # noqa: PLR2004 - a millisecond


def megabytes(count: float) -> str:
    """Return bytes with a unit that suits them."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"  # noqa: PLR2004 - a tenth of the next


def percent(part: float) -> str:
    """Return a part of 1 in per cent."""
    return f"{100 * part:.0f} %"


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its word."""
    return f"{number:,} {one if number == 1 else many}"


def capital(text: str) -> str:
    """Return `text` with a capital letter at its begin."""
    return text[:1].upper() + text[1:]
