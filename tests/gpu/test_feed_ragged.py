"""Ragged leaves in torch's CUDA tensors: on the first CUDA device, or, where there is none, in simulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interlock import Feed, Offsets, Padded
from interlock.errors import UsageError

LENGTH = 1 << 16


class Texts:
    """Samples of few rows, of which many would fit."""

    def __init__(self, lengths, broken=()):
        self.lengths = list(lengths)
        self.broken = broken

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        if index in self.broken:
            raise ValueError("broken")
        return self.sample(index)

    def sample(self, index):
        return {"t": np.full(self.lengths[index], index, np.float32), "y": index}


def expected(source, rows):
    texts = [source.sample(row)["t"] for row in rows]
    return np.concatenate(texts), np.cumsum([0, *map(len, texts)])


@pytest.mark.parametrize("verify", [False, True])
def test_batches_have_the_rows_of_their_samples_and_nobody_waits(world, verify):
    assert world
    source = Texts([3, 0, 70, 5, 1, 9, 0, 0, 2, 6], broken={4})
    ragged: Any = {"t": Offsets(100)}
    options: dict[str, Any] = {"batch_size": 4, "to": "torch", "device": "cuda", "on_error": "skip", "verify": verify}
    feed = Feed(source, ragged=ragged, workers=2, **options)
    kept = list(feed)
    for batch, rows in zip(kept, ([0, 1, 2, 3], [5, 6, 7], [8, 9]), strict=True):
        values, offsets = expected(source, rows)
        text = batch["t"]
        assert (text["values"].device.type, text["offsets"].dtype) == ("cuda", torch.int64)
        assert text["offsets"].tolist() == offsets.tolist()
        np.testing.assert_array_equal(text["values"].cpu().numpy(), values)
        assert batch["y"].tolist() == rows
    assert feed.statistics().host_syncs == 0


def test_only_the_used_part_of_a_slot_crosses_the_link(world, monkeypatch):
    sizes: list[int] = []
    copy = type(world).copy

    def counted(self, target, source, stream):
        sizes.append(source.size_bytes)
        copy(self, target, source, stream)

    monkeypatch.setattr(type(world), "copy", counted)
    source = Texts([5, 0, 7, 1])
    feed = Feed(source, batch_size=2, to="torch", device="cuda", ragged={"t": Offsets(LENGTH)}, workers=1)
    for number, batch in enumerate(feed):
        values, _ = expected(source, [2 * number, 2 * number + 1])
        np.testing.assert_array_equal(batch["t"]["values"].cpu().numpy(), values)
    assert sum(sizes) < 1024
    assert feed.statistics().slot_bytes > 2 * LENGTH * 4


def test_padding_is_whole_whatever_was_in_a_slot_before(world):
    assert world
    source = Texts([8, 8, 0, 1, 2, 0])
    feed = Feed(source, batch_size=2, to="torch", device="cuda", ragged={"t": Padded(8, -1)}, workers=1, depth=1)
    for number, batch in enumerate(feed):
        for row in range(2):
            index = 2 * number + row
            count = source.lengths[index]
            assert batch["t"]["values"][row].tolist() == [index] * count + [-1] * (8 - count)
            assert batch["t"]["lengths"][row] == count


def test_a_graph_finds_the_rows_and_their_offsets_at_fixed_addresses(world):
    """With fixed addresses `values` has room for all rows, and zeros behind the last."""
    assert world
    source = Texts([3, 1, 0, 2, 4, 4])
    ragged: Any = {"t": Offsets(4)}
    feed = Feed(source, batch_size=2, to="torch", device="cuda", ragged=ragged, fixed=True, workers=2)
    static = next(iter(feed))["t"]
    address = static["values"].data_ptr()
    output = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output.copy_(static["values"])
    for number, batch in enumerate(feed):
        assert batch["t"]["values"].data_ptr() == address
        graph.replay()
        values, offsets = expected(source, [2 * number, 2 * number + 1])
        assert output.tolist() == [*values.tolist(), *([0.0] * (8 - len(values)))]
        assert batch["t"]["offsets"].tolist() == offsets.tolist()


def test_a_short_last_batch_has_no_fixed_addresses_with_offsets_either(world):
    assert world
    ragged: Any = {"t": Offsets(4)}
    batches = iter(Feed(Texts([1, 2, 3]), batch_size=2, to="torch", device="cuda", ragged=ragged, fixed=True))
    next(batches)
    with pytest.raises(UsageError, match="drop_last=True"):
        next(batches)
