"""`prefetch`: any loader, also one that recycles its buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interlock import prefetch
from interlock.errors import UsageError


def recycling(count, size=1000):
    buffer = np.empty(size, np.float32)
    for number in range(count):
        buffer.fill(number)
        yield buffer
    buffer.fill(-1)


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_a_loader_may_recycle_its_buffer(to):
    kept = list(prefetch(recycling(30), to=to, depth=4))
    assert [(float(batch.min()), float(batch.max())) for batch in kept] == [(n, n) for n in range(30)]


def test_the_naive_form_is_corrupted():
    """The twin of the test above: without a copy under a lease the kept batches all show the last one."""
    kept = [torch.from_numpy(batch) for batch in recycling(30)]
    assert {float(batch.min()) for batch in kept} == {-1.0}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_torch_data_loader_keeps_its_structure_and_what_is_no_array(workers):
    rows = [{"x": torch.full((3,), i), "name": f"row {i}", "pair": (i, torch.tensor(float(i)))} for i in range(7)]
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=3, num_workers=workers)  # type: ignore[arg-type] # a list will do
    batches = prefetch(loader, to="torch")
    assert len(batches) == 3
    for epoch in range(2):
        found = list(batches)
        assert [batch["name"] for batch in found][2] == ["row 6"], epoch
        assert [batch["x"].tolist() for batch in found][1] == [[3] * 3, [4] * 3, [5] * 3]
        assert found[0]["pair"][0].tolist() == [0, 1, 2]
        assert isinstance(found[0]["pair"][1], torch.Tensor)
    assert batches.statistics().batches == 6


def test_batches_may_differ_in_shape():
    shapes = [(2, 3), (5, 3), (1, 1), (0, 4), (7,)]
    found = list(prefetch([np.ones(shape) for shape in shapes], to="numpy"))
    assert [batch.shape for batch in found] == shapes


@pytest.mark.parametrize(("depth", "sizes"), [(1, [500] * 4 + [1000, 1300, 3900]), (2, [500] * 4 + [1000, 1300, 2500])])
def test_batches_may_grow_until_those_under_way_fill_the_budget(depth, sizes):
    """The slots of smaller ones, which nobody uses any more, make room."""
    batches = prefetch((np.ones(size, np.uint8) for size in sizes), to="numpy", depth=depth, budget_bytes=4000)
    found = []
    for batch in batches:
        found.append(len(batch))
        del batch
    assert found == sizes


def test_the_loader_s_error_reaches_the_consumer_after_the_batches_before_it():
    def loader():
        yield np.zeros(2)
        yield np.ones(2)
        raise OSError("the disk is gone")

    batches = iter(prefetch(loader(), to="numpy"))
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 0], [1, 1]]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_a_batch_without_arrays_is_refused():
    with pytest.raises(UsageError, match="holds no array"):
        list(prefetch([["a", "b"]], to="numpy"))


def test_an_empty_loader_gives_nothing():
    assert list(prefetch([], to="numpy")) == []
