"""What collectives compute where all ranks hold the same values: functions of what they read and what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
Exchange: TypeAlias = "Callable[[list[Tensor], list[Tensor]], None]"
_copy: Any = torch._C.TensorBase.copy_  # noqa: SLF001 - not the patched one


def reduced(value: Tensor, operation: Any, ranks: int) -> Tensor:
    """Return what `ranks` times the same value reduce to."""
    name = str(getattr(operation, "op", operation)).rpartition(".")[2].upper()
    if ranks == 1 or name in {"AVG", "MIN", "MAX", "BAND", "BOR"}:
        return value
    if name == "PRODUCT":
        return value**ranks
    if name == "BXOR":
        return value if ranks % 2 else torch.zeros_like(value)
    return value * ranks


def reduce_all(operation: Any, ranks: int) -> Callable[[list[Tensor]], None]:
    """Return a function that reduces tensors in place."""

    def run(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            _copy(tensor, reduced(tensor, operation, ranks))

    return run


def gather_into(reads: list[Tensor], writes: list[Tensor]) -> None:
    """Fill each output with the one input."""
    for target in writes:
        _copy(target, reads[0].view(target.shape) if target.numel() == reads[0].numel() else reads[0])


def gather_flat(ranks: int) -> Exchange:
    """Return a function that fills each output with its input, once a rank."""

    def run(reads: list[Tensor], writes: list[Tensor]) -> None:
        for source, target in zip(reads, writes, strict=True):
            _copy(target.view(ranks, -1), source.reshape(1, -1).expand(ranks, -1))

    return run


def reduce_scatter_lists(operation: Any, ranks: int, rank: int) -> Exchange:
    """Return a function that reduces the input that is this rank's."""

    def run(reads: list[Tensor], writes: list[Tensor]) -> None:
        _copy(writes[0], reduced(reads[rank], operation, ranks))

    return run


def reduce_flat_scatter(operation: Any, ranks: int, rank: int) -> Exchange:
    """Return a function that reduces the part of each input that is this rank's."""

    def run(reads: list[Tensor], writes: list[Tensor]) -> None:
        for source, target in zip(reads, writes, strict=True):
            _copy(target.view(-1), reduced(source.reshape(ranks, -1)[rank], operation, ranks))

    return run


def exchange_lists(rank: int) -> Exchange:
    """Return a function that fills each output with the input for this rank, which each peer sends."""

    def run(reads: list[Tensor], writes: list[Tensor]) -> None:
        for target in writes:
            _copy(target, reads[rank])

    return run


def exchange(ranks: int, rank: int, output_splits: list[int], input_splits: list[int]) -> Exchange:
    """Return a function that fills each part of the output with the input's part for this rank.

    Args:
        ranks: Number of ranks.
        rank: The own one.
        output_splits: Rows of each part; equal parts if empty.
        input_splits: As above.
    """

    def run(reads: list[Tensor], writes: list[Tensor]) -> None:
        source, target = reads[0], writes[0]
        parts = torch.split(source, input_splits) if input_splits else source.chunk(ranks)
        for part in torch.split(target, output_splits) if output_splits else target.chunk(ranks):
            _copy(part, parts[rank][: len(part)])

    return run
