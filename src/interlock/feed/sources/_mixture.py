"""Sources mixed by weight, by index."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock._core._protocols import SupportsIds
from interlock.errors import SampleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._protocols import Source

_MOST_SLOTS = 1 << 16


@final
class Mixture:
    """Samples of several sources in fixed proportions.

    Of the first n samples, each source has given n times its share, give or take less than one, for every n. Each gives
    its samples in its own order, and begins again only when all were given. Which sample comes where depends on the
    weights alone, so it is the same in every run; finding it takes the same small time and memory for any length.

    The sources take turns in one pattern that repeats: with weights 0.7 and 0.3 it has 10 places. Ids are
    `name:id`; from its second round on, a source's sample is `name:id#2`.

    Args:
        sources: By name.
        weights: By the same names: positive, in any unit. They are meant exactly: 0.7 is 7/10, and 1/3 a third.
        length: How many samples: a number, `first exhausted` (as many as there are before a source would have to begin
            again) or `all exhausted` (as many as it takes for each source to give all of its samples).

    Raises:
        UsageError: Names differ, a source is empty, a weight is not positive, or the pattern would have more than
            65,536 places: then round the weights.

    Source: R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980): with k sources the distance to
        the exact share is at most 1 - 1 / (2k - 2).
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        weights: Mapping[str, float],
        length: int | Literal["first exhausted", "all exhausted"] = "first exhausted",
    ) -> None:
        if not sources or set(sources) != set(weights):
            raise UsageError(
                "sources and weights of a mixture differ in names",
                why=f"{sorted(sources)} and {sorted(weights)}",
                hint="give each source one weight",
            )
        self._names = list(sources)
        self._sources = [sources[name] for name in self._names]
        self._counts = [len(source) for source in self._sources]
        empty = [name for name, count in zip(self._names, self._counts, strict=True) if not count]
        if empty:
            raise UsageError(f"source {empty[0]!r} of a mixture is empty", hint="leave it out")
        self._shares = integer_shares({name: weights[name] for name in self._names})
        self._pattern = pattern(self._shares)
        self._places = [np.flatnonzero(self._pattern == source) for source in range(len(self._sources))]
        self._ranks = np.empty_like(self._pattern, np.int64)
        for places in self._places:
            self._ranks[places] = np.arange(len(places))
        self._length = self._resolved(length)

    def _resolved(self, length: int | str) -> int:
        if length == "first exhausted":
            return min(self._place_of(source, count) for source, count in enumerate(self._counts))
        if length == "all exhausted":
            return max(self._place_of(source, count - 1) + 1 for source, count in enumerate(self._counts))
        if not isinstance(length, int) or length < 1:
            hint = "give a positive number, 'first exhausted' or 'all exhausted'"
            raise UsageError(f"the length of a mixture is {length!r}", hint=hint)
        return length

    def _place_of(self, source: int, number: int) -> int:
        """Return the index in the mixture of the sample that a source gives as its `number`-th, from 0."""
        period, rank = divmod(number, self._shares[source])
        return period * len(self._pattern) + int(self._places[source][rank])

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share}" for name, share in zip(self._names, self._shares, strict=True))
        return f"Mixture({shares}; samples={self._length})"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Return the sample of the source whose turn it is.

        Raises:
            IndexError: There is no such sample.
            SampleError: Its source cannot give it; the index is the mixture's.
        """
        source, number, _ = self._locate(index)
        try:
            return self._sources[source][number]
        except SampleError as error:
            what = f"source {self._names[source]!r}: {error.what}"
            raise SampleError(what, index=index, why=error.why, hint=error.hint) from error

    def locate(self, index: int) -> tuple[str, int]:
        """Return which source gives the sample at `index`, and which of its samples that is.

        Raises:
            IndexError: There is no such sample.
        """
        source, number, _ = self._locate(index)
        return self._names[source], number

    def id_of(self, index: int) -> str:
        """Return `name:id`, with the source's own id, or its index."""
        source, number, round_ = self._locate(index)
        inner = self._sources[source]
        own = inner.id_of(number) if isinstance(inner, SupportsIds) else number
        return f"{self._names[source]}:{own}" + (f"#{round_ + 1}" if round_ else "")

    def fingerprint(self) -> dict[str, Any]:
        """Length, names, shares, and the sources' own fingerprints or lengths."""
        inner = [
            source.fingerprint() if hasattr(source, "fingerprint") else {"rows": len(source)}
            for source in self._sources
        ]
        return {
            "kind": "mixture",
            "rows": self._length,
            "shares": dict(zip(self._names, self._shares, strict=True)),
            "sources": dict(zip(self._names, inner, strict=True)),
        }

    def _locate(self, index: int) -> tuple[int, int, int]:
        """Return source, index in it, and how often it has begun again."""
        if not 0 <= index < self._length:
            raise IndexError(index)
        period, place = divmod(index, len(self._pattern))
        source = int(self._pattern[place])
        round_, number = divmod(period * self._shares[source] + int(self._ranks[place]), self._counts[source])
        return source, number, round_


def integer_shares(weights: Mapping[str, float]) -> list[int]:
    """Return whole numbers in the proportions of `weights`, as small as can be.

    Raises:
        UsageError: A weight is not positive, or their sum would be over 65,536.
    """
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise UsageError(f"weight {name!r} of a mixture is {weight}", hint="give a positive number")
    exact = [_exact(weight) for weight in weights.values()]
    scale = math.lcm(*(one.denominator for one in exact))
    shares = [int(one * scale) for one in exact]
    divisor = math.gcd(*shares)
    shares = [share // divisor for share in shares]
    if sum(shares) > _MOST_SLOTS:
        why = f"the pattern in which the sources take turns would have {sum(shares):,} places"
        hint = f"round them, to two or three digits: at most {_MOST_SLOTS:,} places"
        raise UsageError("the weights of a mixture are too finely divided", why=why, hint=hint)
    return shares


def _exact(weight: float) -> Fraction:
    """Return the fraction that a number is meant to be."""
    near = Fraction(weight).limit_denominator(_MOST_SLOTS)
    return near if float(near) == float(weight) else Fraction(weight)


def pattern(shares: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return whose turn it is at each of `sum(shares)` places.

    At each, of the sources that are behind enough to take it, it is the one that must take it soonest.
    """
    total, sources = sum(shares), range(len(shares))
    if len(shares) == 1:
        return np.zeros(total, np.int64)
    double = 2 * len(shares) - 2
    counts = [0] * len(shares)
    turns = np.empty(total, np.int64)
    for place in range(total):
        # lag = (place + 1) * share / total - count, times total * double, so that all numbers are whole
        lags = [double * ((place + 1) * shares[one] - total * counts[one]) for one in sources]
        ready = [one for one in sources if lags[one] >= total]
        chosen = min(ready, key=lambda one: (Fraction((double - 1) * total - lags[one], shares[one]), one))
        turns[place] = chosen
        counts[chosen] += 1
    return turns
