"""What a caller says of leaves whose first dimension differs from sample to sample."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np

from interlock.errors import UsageError

_MOST_NARROW = 2**31 - 1


@final
@dataclass(frozen=True, slots=True)
class Padded:
    """Samples may have up to `length` rows in a leaf; the batch has them all at that length.

    The leaf of the batch is a dict of `values`, shape (samples, length, ...), and `lengths`, int32, shape (samples,).

    Args:
        length: Most rows of one sample.
        value: What fills the rows behind those of a sample.
        truncate: Whether a longer sample is cut, and is not an error.

    Raises:
        UsageError: A length below 1, or a value that is no number.
    """

    length: int
    value: complex = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        _check_length(self.length)
        if not isinstance(self.value, (int, float, complex, np.number, np.bool_)):
            raise UsageError(f"the padding value is {self.value!r}", hint="give a number")


@final
@dataclass(frozen=True, slots=True)
class Offsets:
    """Samples may have up to `length` rows in a leaf; the batch has them one behind the other, without padding.

    The leaf of the batch is a dict of `values`, shape (rows of all samples, ...), and `offsets`, int64, shape
    (samples + 1,): sample `i` has the rows from `offsets[i]` to before `offsets[i + 1]`.

    Args:
        length: Most rows of one sample.
        truncate: Whether a longer sample is cut, and is not an error.
        fixed: Whether `values` always has samples x length rows, with zeros behind the last sample: then its shape does
            not tell how many rows there are, as programs need that are compiled for a shape. Always so for JAX, and
            where the feed has fixed addresses.

    Raises:
        UsageError: A length below 1.
    """

    length: int
    truncate: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        _check_length(self.length)


Ragged: TypeAlias = Padded | Offsets


def _check_length(length: Any) -> None:
    if not isinstance(length, (int, np.integer)) or length < 1:
        raise UsageError(f"the length of a ragged leaf is {length!r}", hint="give the most rows that a sample may have")


def ragged_of(ragged: Any, batch_size: int, *, framework: str, fixed: bool, sharded: bool) -> dict[str, Ragged]:
    """Return an argument `ragged` as it is meant for a framework.

    Args:
        ragged: The argument.
        batch_size: Samples in a batch.
        framework: Its name.
        fixed: Whether all batches have the addresses of the first.
        sharded: Whether batches are split over devices.

    Raises:
        UsageError: It cannot be meant.
    """
    if ragged is None:
        return {}
    if not isinstance(ragged, dict) or not all(isinstance(one, (Padded, Offsets)) for one in ragged.values()):
        hint = "give a dict of leaf names, as in ragged={'tokens': Padded(512), 'text': Offsets(2048)}"
        raise UsageError(f"ragged is {ragged!r}", hint=hint)
    found: dict[str, Ragged] = {}
    for name, spec in ragged.items():
        found[name] = spec
        if isinstance(spec, Padded):
            continue
        if sharded:
            raise UsageError(
                f"ragged leaf {name!r} has offsets, and those cannot be split over devices", hint="use Padded for it"
            )
        if framework == "jax" and batch_size * spec.length > _MOST_NARROW:
            raise UsageError(
                f"a batch has up to {batch_size * spec.length:,} rows of ragged leaf {name!r}",
                why="JAX counts them in 32 bits",
                hint="lower the length, or the batch size",
            )
        found[name] = replace(spec, fixed=spec.fixed or fixed or framework == "jax")
    return found
