"""Numbers as people read them."""

from __future__ import annotations

import pytest

from interlock._core._words import duration, megabytes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (2e-5, "20 µs"),
        (0.0012345, "1.23 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (1234.5, "1,234.5 s"),
    ],
)
def test_seconds_have_the_unit_that_suits_them_and_no_exponent(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0.0 kB"), (99_000, "99.0 kB"), (100_000, "0.1 MB"), (2e9, "2,000.0 MB")]
)
def test_bytes_have_the_unit_that_suits_them(count, text):
    assert megabytes(count) == text
