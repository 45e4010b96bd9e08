"""`prefetch` of loaders whose batches are on a CUDA device or in pinned memory, also of loaders that recycle them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interlock import prefetch
from interlock.errors import UsageError
from interlock.testing import gate


def recycling(count: int) -> Any:
    """Give one buffer of the device again and again, filled anew; and spoil it in the end."""
    buffer = torch.empty(4, 1000, device="cuda")
    for number in range(count):
        buffer.fill_(number)
        yield buffer
    buffer.fill_(-1)


def numbers(tensor: torch.Tensor) -> list[float]:
    """Return which numbers a tensor holds."""
    found: list[float] = torch.unique(tensor.float().cpu()).tolist()
    return found


def warm_up(device: Any) -> None:
    """Let everything be loaded and pinned that is used under a gate: a driver does it only while no stream is held."""
    memories = [device.allocate_host(16_000) for _ in range(8)]
    del memories
    loader = [torch.zeros(4, 1000, device="cuda").fill_(1) for _ in range(4)]
    loader.append(torch.ones(4, 1000).pin_memory())
    for result in [batch + 1 for batch in prefetch(loader, to="torch", device="cuda")]:
        assert numbers(result.add_(1) * 1) == [3]


def test_a_loader_may_recycle_a_buffer_on_the_device(world):
    assert world
    batches = prefetch(recycling(30), to="torch", device="cuda", depth=4)
    kept = list(batches)
    assert [numbers(batch) for batch in kept] == [[number] for number in range(30)]
    assert batches.statistics().host_syncs == 0


def test_the_loader_is_asked_for_more_only_when_its_buffer_is_copied(world):
    asked = []

    def loader():
        for number, batch in enumerate(recycling(4)):
            asked.append(number)
            yield batch

    warm_up(world)
    with gate(world.stream("feed")):
        batches = iter(prefetch(loader(), to="torch", device="cuda", depth=4))
        first = next(batches)
        assert asked == [0]
    rest = list(batches)
    assert [numbers(batch) for batch in (first, *rest)] == [[0], [1], [2], [3]]


def test_the_copy_comes_after_the_producer_s_current_stream(world):
    """That stream is held at a gate: neither side waits for it, and no early value is taken."""
    assert world
    side = torch.cuda.Stream()

    def loader():
        for number in range(4):
            torch.cuda.set_stream(side)  # on whatever thread asks
            buffer = torch.zeros(4, 1000, device="cuda")
            buffer += number + 1
            yield buffer

    warm_up(world)
    with torch.cuda.stream(side):
        with gate(side):
            batches = iter(prefetch(loader(), to="torch", device="cuda"))
            first = next(batches) * 1
        assert [numbers(batch) for batch in (first, *batches)] == [[1], [2], [3], [4]]


def test_leaves_on_host_and_device_and_in_pinned_memory_may_be_mixed(world):
    assert world

    def loader():
        device = torch.empty(4, 6, device="cuda")
        pinned = torch.empty(5, dtype=torch.int32).pin_memory()
        pageable, array = torch.empty(3), np.empty((2, 2), np.float64)
        for number in range(10):
            device.fill_(number)
            pinned.fill_(number)
            pageable.fill_(number)
            array.fill(number)
            pair = (device.t(), device[:, 1:3], device.half(), device.bool(), device.bfloat16())
            empty = torch.empty(0, 3, device="cuda")
            yield {"d": device, "views": pair, "p": pinned, "h": [pageable, array], "n": f"batch {number}", "e": empty}

    for number, batch in enumerate(prefetch(loader(), to="torch", device="cuda")):
        tensors = [batch["d"], *batch["views"], batch["p"], *batch["h"], batch["e"]]
        assert all(tensor.is_cuda for tensor in tensors)
        assert [tuple(tensor.shape) for tensor in tensors] == [
            *((4, 6), (6, 4), (4, 2), (4, 6), (4, 6), (4, 6), (5,), (3,), (2, 2), (0, 3)),
        ]
        assert [str(tensor.dtype).removeprefix("torch.") for tensor in tensors] == [
            *("float32", "float32", "float32", "float16", "bool", "bfloat16", "int32", "float32", "float64", "float32"),
        ]
        assert [numbers(tensor) for tensor in tensors[:3]] == [[number]] * 3
        assert [numbers(tensor) for tensor in tensors[3:9]] == [[n] for n in (number, bool(number), *[number] * 4)]
        assert batch["n"] == f"batch {number}"


def test_a_pinned_buffer_may_be_recycled_and_needs_no_copy_by_the_host(world, monkeypatch):
    def copied_by_the_host(*_: Any, **__: Any) -> None:
        raise AssertionError

    warm_up(world)
    monkeypatch.setattr(np, "copyto", copied_by_the_host)

    def loader():
        buffer = torch.empty(4, 1000).pin_memory()
        for number in range(10):
            buffer.fill_(number)
            yield buffer
        buffer.fill_(-1)

    with gate(world.stream("feed")):
        batches = iter(prefetch(loader(), to="torch", device="cuda"))
        first = next(batches)
    assert [numbers(batch) for batch in (first, *batches)] == [[number] for number in range(10)]


def test_a_loader_whose_pass_was_left_early_may_be_iterated_again(world):
    """What was made ahead in the first pass is still being copied when the second asks for more."""
    assert world

    class Loader:
        def __init__(self) -> None:
            self.buffer = torch.empty(4, 1000, device="cuda")

        def __iter__(self) -> Any:
            for number in range(6):
                self.buffer.fill_(number)
                yield self.buffer

    batches = prefetch(Loader(), to="torch", device="cuda", depth=3)
    for _ in range(3):
        first = next(iter(batches))
        assert numbers(first) == [0]
    assert [numbers(batch) for batch in batches] == [[number] for number in range(6)]


def test_numbers_on_the_device_are_passed_through(world):
    assert world
    loss = torch.tensor(2.0, device="cuda")
    [(batch, found)] = prefetch([(torch.ones(3, device="cuda"), loss)], to="torch", device="cuda")
    assert found is loss
    assert numbers(batch) == [1]


def test_batches_may_need_gradients(world):
    assert world
    [batch] = prefetch([torch.ones(3, device="cuda", requires_grad=True)], to="torch", device="cuda")
    assert not batch.requires_grad
    assert numbers(batch) == [1]


def test_the_loader_s_error_comes_after_the_batches_before_it(world):
    assert world

    def loader():
        yield from recycling(2)
        raise OSError("the disk is gone")

    batches = iter(prefetch(loader(), to="torch", device="cuda"))
    assert [numbers(next(batches)), numbers(next(batches))] == [[0], [1]]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_arrays_on_a_device_do_not_come_to_the_host(world):
    assert world
    with pytest.raises(UsageError, match="is no array"):
        list(prefetch([torch.ones(3, device="cuda")], to="numpy"))


# ------------------------------------------------------------ producers that no simulation has


class Interface:
    """An array of a library that knows the CUDA array interface and nothing else."""

    def __init__(self, tensor: torch.Tensor, **more: Any) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, **more}


def test_anything_with_the_cuda_array_interface_is_taken_behind_the_stream_that_it_names(cuda):
    warm_up(cuda)
    side = torch.cuda.Stream()
    tensor = torch.zeros(4, 1000, device="cuda")
    torch.cuda.synchronize()
    with gate(side):
        with torch.cuda.stream(side):
            tensor += 1
        batches = iter(prefetch([Interface(tensor, stream=side.cuda_stream)], to="torch", device=cuda))
        result = next(batches) * 1
    assert numbers(result) == [1]


def test_what_is_no_plain_array_is_refused_by_name(cuda):
    loader = [{"x": torch.eye(3, device="cuda").to_sparse()}]
    with pytest.raises(UsageError, match=r"leaf 'x' cannot be prefetched.*layout"):
        list(prefetch(loader, to="torch", device=cuda))


def test_memory_that_is_not_contiguous_is_refused_by_name(cuda):
    loader = [{"x": Interface(torch.zeros(4, 6, device="cuda").t())}]
    with pytest.raises(UsageError, match="leaf 'x' is not contiguous"):
        list(prefetch(loader, to="torch", device=cuda))


@pytest.mark.parametrize("to", ["torch", "cupy", "jax"])
def test_cupy_arrays_that_are_recycled_reach_every_framework(cuda, to):
    cupy: Any = pytest.importorskip("cupy")
    pytest.importorskip(to)

    def loader():  # XLA leaves the last device current on the thread that it starts on
        with cupy.cuda.Device(cuda.index):
            buffer = cupy.empty((4, 1000), cupy.float32)
        for number in [*range(20), -1]:
            with cupy.cuda.Device(cuda.index):
                buffer.fill(number)
            if number >= 0:
                yield {"x": buffer, "t": buffer.T}

    kept = list(prefetch(loader(), to=to, device=cuda))
    assert [float(batch[name].min()) for batch in kept for name in "xt"] == [n for n in range(20) for _ in "xt"]
    assert [float(batch[name].max()) for batch in kept for name in "xt"] == [n for n in range(20) for _ in "xt"]


@pytest.mark.parametrize("to", ["torch", "jax"])
def test_jax_arrays_reach_every_framework(cuda, to):
    jnp: Any = pytest.importorskip("jax.numpy")
    loader = ({"x": jnp.full((4, 1000), number, jnp.float32)} for number in range(10))
    kept = list(prefetch(loader, to=to, device=cuda))
    assert [(float(batch["x"].min()), float(batch["x"].max())) for batch in kept] == [(n, n) for n in range(10)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("to", ["torch", "jax"])
def test_a_pipeline_of_dali_is_a_loader(cuda, to, dynamic):
    dali: Any = pytest.importorskip("nvidia.dali")
    pytest.importorskip(to)

    def numbered(info: Any) -> Any:
        if info.iteration == 12:
            raise StopIteration
        return np.full(1000, info.iteration, np.float32)

    def define() -> Any:
        on_device = dali.fn.external_source(numbered, batch=False, device="gpu")
        return on_device, dali.fn.external_source(numbered, batch=False)

    pipeline = dali.pipeline_def(define)(batch_size=4, num_threads=2, device_id=0, exec_dynamic=dynamic)
    batches = prefetch(pipeline, to=to, device=cuda)
    for _ in range(2):
        kept = list(batches)
        assert [float(part.min()) for batch in kept for part in batch] == [n for n in range(12) for _ in range(2)]
        assert [float(part.max()) for batch in kept for part in batch] == [n for n in range(12) for _ in range(2)]


def test_an_array_of_another_device_is_copied_across(two_devices):
    def loader():
        buffer = torch.empty(4, 1000, device="cuda:1")
        for number in range(10):
            buffer.fill_(number)
            yield buffer
        buffer.fill_(-1)

    kept = list(prefetch(loader(), to="torch", device=two_devices[0]))
    assert {batch.device for batch in kept} == {torch.device("cuda", 0)}
    assert [numbers(batch) for batch in kept] == [[number] for number in range(10)]
