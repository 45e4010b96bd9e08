"""Rows that differ in length, put from a device: torch also in simulations, JAX and CuPy on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from interlock import Drain
from interlock.drain import Ragged, TopK, open_sink
from interlock.testing import gate

LENGTHS = [3, 0, 5, 1]
ROWS = [np.random.default_rng(length).random((length, 4), np.float32) for length in LENGTHS]
FLAT, ENDS = np.concatenate(ROWS), np.cumsum([0, *LENGTHS])
PADDED = np.full((4, 1000, 4), np.nan, np.float32)
for _row, _values in enumerate(ROWS):
    PADDED[_row, : len(_values)] = _values

SOURCES: dict[str, Any] = {
    "padded": PADDED,
    "lengths": np.array(LENGTHS),
    "flat": FLAT,
    "offsets": ENDS,
    **{f"row {row}": values for row, values in enumerate(ROWS)},
}


def ways(arrays: dict[str, Any]) -> dict[str, Ragged]:
    """Return the same rows in each way in which they are put."""
    return {
        "padded": Ragged(arrays["padded"], lengths=LENGTHS),
        "padded, lengths there": Ragged(arrays["padded"], lengths=arrays["lengths"]),
        "flat": Ragged(arrays["flat"], lengths=LENGTHS, flat=True),
        "flat, offsets there": Ragged(arrays["flat"], offsets=arrays["offsets"]),
        "list": Ragged([arrays[f"row {row}"] for row in range(4)]),
    }


def on_cuda(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values)).to("cuda")


@pytest.fixture
def rows(out) -> Any:
    """Reads one output of the sink in `out`: an array for each row, in the order of their ids."""

    def read(name: str) -> list[Any]:
        form, folder = open_sink(f"npy:{out}")
        found: dict[int, Any] = {}
        for shard in folder.glob("part-*"):
            ids = form.read_shard(shard).ids.tolist()
            found |= dict(zip(ids, form.read_rows(shard, range(len(ids)))[name], strict=True))
        return [found[one] for one in sorted(found)]

    return read


def are_same(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("verify", [False, True])
def test_rows_are_those_at_the_put_and_nothing_waits(out, rows, verify):
    """Under a closed gate: neither the values nor the lengths exist when `put` returns. `verify` looks twice."""
    stream = torch.cuda.current_stream()
    with Drain(f"npy:{out}", verify=verify) as drain:
        for batch in range(3):
            sources = {name: on_cuda(values) for name, values in SOURCES.items()}
            statics = {name: torch.zeros_like(source) for name, source in sources.items()}
            is_held = batch and not verify  # not the first: what is loaded then may wait for the stream
            with gate(stream) if is_held else nullcontext():
                for name, source in sources.items():
                    statics[name].copy_(source)
                ticket = drain.put(np.arange(4) + 4 * batch, ways(statics))
                for static in statics.values():
                    static.fill_(-7)
                assert not is_held or not ticket.landed
        assert verify or drain.statistics().host_syncs == 0
    assert all(are_same(rows(name), ROWS * 3) for name in ways(SOURCES))


@pytest.mark.usefixtures("world")
def test_padding_that_no_row_of_the_put_needs_does_not_cross_the_link(out, rows):
    values = on_cuda(PADDED)
    torch.cuda.synchronize()
    with Drain(f"npy:{out}") as drain, gate(torch.cuda.current_stream()):
        drain.put(range(4), {"h": Ragged(values, lengths=LENGTHS)})
        assert 0 < drain.statistics().held_bytes < 16_384  # of 64,000; a slot has a whole number of pages
    assert are_same(rows("h"), ROWS)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("way", ["flat", "flat, offsets there", "padded, lengths there"])
def test_a_put_of_more_than_the_budget_is_split_where_rows_end(out, rows, way):
    with Drain(f"npy:{out}", budget_bytes=20_000 if "padded" in way else 150) as drain:
        drain.put(range(4), {"h": ways({name: on_cuda(values) for name, values in SOURCES.items()})[way]})
        assert (drain.statistics().host_syncs > 0) == (way == "flat, offsets there")
    assert are_same(rows("h"), ROWS)


@pytest.mark.usefixtures("cuda")
def test_a_row_behind_one_larger_than_the_budget_has_a_snapshot(out, rows):
    """The large one has none. To write is so much faster than to cross the link that it would show in the other."""
    lengths = [40_000_000, 8_000_000]
    with Drain(f"npy:{out}", budget_bytes=20_000_000) as drain:
        for batch in range(3):
            values = torch.full((sum(lengths),), batch, dtype=torch.int8, device="cuda")
            drain.put([2 * batch, 2 * batch + 1], {"h": Ragged(values, lengths=lengths, flat=True)})
            values.fill_(-1)
    for row, values in enumerate(rows("h")):
        assert len(values) == lengths[row % 2]
        assert (values == row // 2).all()


@pytest.mark.usefixtures("world")
def test_values_are_reduced_on_their_device(out, rows):
    with Drain(f"npy:{out}", outputs={"h": TopK(1)}) as drain:
        drain.put(range(4), {"h": Ragged(on_cuda(PADDED), lengths=on_cuda(LENGTHS))})
    assert are_same(rows("h.values"), [row.max(1, keepdims=True) for row in ROWS])


@pytest.mark.usefixtures("cuda")
def test_jagged_tensors_are_put_as_they_are_and_nothing_waits(out, rows):
    with Drain(f"npy:{out}") as drain:
        nested = torch.nested.nested_tensor_from_jagged(on_cuda(FLAT), on_cuda(ENDS))
        drain.put(range(4), {"h": nested})
        empty = torch.nested.nested_tensor_from_jagged(on_cuda(FLAT[:0]), on_cuda([0, 0]))
        drain.put([4], {"h": empty})
        assert drain.statistics().host_syncs == 0
    assert are_same(rows("h"), [*ROWS, FLAT[:0]])


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", ["jax", "cupy"])
def test_jax_and_cupy_arrays_are_put_alike(out, rows, name):
    array = pytest.importorskip("jax.numpy" if name == "jax" else "cupy").asarray
    with Drain(f"npy:{out}") as drain:
        for batch in range(2):
            drain.put(np.arange(4) + 4 * batch, ways({name: array(values) for name, values in SOURCES.items()}))
    assert all(are_same(rows(name), ROWS * 2) for name in ways(SOURCES))


@pytest.mark.usefixtures("world")
def test_lengths_of_any_integer_type_are_read_twice_alike(out, rows):
    """`verify` reads the bytes of the lengths; those of uint16 are not those of int16."""
    lengths = [40_000, 0, 3]
    values = np.random.default_rng(0).integers(0, 100, (3, 40_000), np.int8)
    for dtype in (torch.uint16, torch.int32, torch.int64):
        with Drain(f"npy:{out}", verify=True, restart=True) as drain:
            told = torch.tensor(lengths, dtype=dtype, device="cuda")
            drain.put(range(3), {"x": Ragged(on_cuda(values), lengths=told)})
        assert are_same(rows("x"), [values[row, :length] for row, length in enumerate(lengths)])
