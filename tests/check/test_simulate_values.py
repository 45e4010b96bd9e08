"""What each kind of hazard does to values, under the schedules that show it; and that nothing of a simulation stays."""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import dlpack

import interlock
from interlock._core import _events
from interlock.check import _simulate
from interlock.devices import open_device
from interlock.errors import UsageError


def run(program: Any, schedule: str) -> Any:
    with _simulate.activate(schedule):
        return program()


def early_read(*, fixed: bool) -> float:
    host = (torch.ones(8, device="cuda") * 2).to("cpu", non_blocking=True)
    if fixed:
        torch.cuda.synchronize()
    return host.sum().item()


def early_overwrite(*, fixed: bool) -> float:
    host = torch.ones(8).pin_memory()
    device = host.to("cuda", non_blocking=True)
    if fixed:
        torch.cuda.current_stream().synchronize()
    host.fill_(5)
    return device.sum().item()


def unordered_read(*, fixed: bool) -> float:
    side = torch.cuda.Stream()
    source = torch.ones(8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = source * 2
    if fixed:
        torch.cuda.current_stream().wait_stream(side)
    return (doubled + 1).sum().item()


def freed_in_flight(*, fixed: bool) -> float:
    side = torch.cuda.Stream()
    source = torch.ones(8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = source * 2
    if fixed:
        source.record_stream(side)
    del source
    torch.cuda.current_stream().synchronize()
    side.synchronize()
    return doubled.sum().item()


def read_through_a_view(*, fixed: bool) -> float:
    host = torch.zeros(8, pin_memory=True)
    view = host.numpy()
    host.copy_(torch.ones(8, device="cuda"), non_blocking=True)
    if fixed:
        torch.cuda.synchronize()
    return float(view.sum())


@pytest.mark.parametrize(
    ("program", "schedule", "right"),
    [
        (early_read, "lazy", 16.0),
        (early_overwrite, "lazy", 8.0),
        (unordered_read, "starve:stream-1", 24.0),
        (freed_in_flight, "starve:stream-1", 16.0),
        (read_through_a_view, "lazy", 8.0),
    ],
)
def test_a_hazard_gives_a_wrong_value_and_the_edge_the_right_one(program, schedule: str, right: float):
    assert run(lambda: program(fixed=False), schedule) != right
    for every in ("lazy", "eager", schedule, "pct:0", "pct:1", "random:2"):
        assert run(lambda: program(fixed=True), every) == right


def test_an_eager_schedule_hides_an_early_read():
    assert run(lambda: early_read(fixed=False), "eager") == 16.0


def test_pageable_memory_is_taken_at_the_call():
    def program() -> float:
        host = torch.ones(8)
        device = host.to("cuda", non_blocking=True)
        host.fill_(5)
        return device.sum().item()

    assert run(program, "lazy") == 8.0


def test_the_same_seed_gives_the_same_events():
    def order(schedule: str) -> list[str]:
        seen: list[str] = []
        remove = _events.observe(lambda event: seen.append(type(event).__name__ + getattr(event, "operation", "")))
        try:
            run(lambda: unordered_read(fixed=True), schedule)
        finally:
            remove()
        return seen

    assert order("pct:4") == order("pct:4")
    assert "Accessaten::mul" in order("lazy")


def test_mixing_devices_is_refused_as_on_a_gpu():
    def program() -> None:
        device, host = torch.ones(3, device="cuda"), torch.ones(3)
        assert (device * torch.tensor(2.0)).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(RuntimeError, match="same device"):
            device + host
        with pytest.raises(RuntimeError, match="same device"):
            host.add_(device)
        with pytest.raises(TypeError, match="numpy"):
            device.numpy()
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.zeros(1).to("cuda:1")

    run(program, "lazy")


def test_programs_can_ask_what_they_ask_a_gpu():
    def program() -> None:
        tensor = torch.zeros(2, 3, device="cuda")
        assert tensor.is_cuda
        assert str(tensor.device) == "cuda:0"
        assert tensor.type() == "torch.cuda.FloatTensor"
        assert "device='cuda:0'" in repr(tensor)
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.cuda.memory_allocated() >= tensor.nbytes
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        tensor.t_().unsqueeze_(0)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) > 0
        assert tensor.shape == (1, 3, 2)
        with torch.device("cuda"):
            assert nn.Linear(2, 2).weight.is_cuda
        generator = torch.Generator(device="cuda").manual_seed(3)
        drawn = torch.rand(3, device="cuda", generator=generator)
        assert torch.equal(drawn, torch.rand(3, device="cuda", generator=generator.manual_seed(3)))
        assert drawn[drawn > 2].tolist() == []

    run(program, "lazy")


def test_a_module_moves_and_keeps_its_parameters():
    def program() -> None:
        module = nn.Linear(2, 2)
        weight = module.weight
        assert module.cuda().weight is weight
        assert weight.is_cuda
        assert isinstance(weight, nn.Parameter)
        assert not module.cpu().weight.is_cuda

    run(program, "lazy")


def test_a_checkpoint_is_one_of_a_gpu_and_shared_storages_stay_shared():
    def program() -> None:
        whole = torch.arange(6.0, device="cuda")
        file = io.BytesIO()
        torch.save({"whole": whole, "part": whole[2:4]}, file)
        loaded = torch.load(io.BytesIO(file.getvalue()))
        loaded["part"].zero_()
        assert loaded["whole"].is_cuda
        assert loaded["whole"].tolist() == [0.0, 1.0, 0.0, 0.0, 4.0, 5.0]
        assert not torch.load(io.BytesIO(file.getvalue()), map_location="cpu")["whole"].is_cuda

    run(program, "lazy")


def test_memory_goes_out_and_in_by_dlpack_and_by_address():
    def program() -> None:
        tensor = torch.arange(3.0, device="cuda")
        dlpack.from_dlpack(tensor).add_(1)

        class Foreign:
            __cuda_array_interface__ = tensor.__cuda_array_interface__

        torch.as_tensor(Foreign(), device="cuda").mul_(2)
        assert tensor.tolist() == [2.0, 4.0, 6.0]

    run(program, "lazy")


def test_threads_have_streams_of_their_own():
    def program() -> list[float]:
        sums: list[float] = []

        def work() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                sums.append((torch.ones(4, device="cuda") * 3).sum().item())
            assert torch.cuda.current_stream() == torch.cuda.default_stream()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sums

    assert run(program, "random:1") == [12.0] * 3


def test_what_has_no_plain_bytes_is_refused_and_told():
    told: list[tuple[str, str]] = []

    class Listener:
        def unsupported(self, operation: str, why: str) -> None:
            told.append((operation, why))

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    with _simulate.activate("lazy", Listener()), pytest.raises(UsageError, match="cannot be simulated"):
        torch.eye(3, device="cuda").to_sparse()
    assert len(told) == 1


def test_a_simulation_leaves_nothing_behind():
    names = [
        (owner, name)
        for owner in (torch, torch.cuda, torch.accelerator, torch.Tensor, torch.distributed, torch.autograd, np)
        for name in dir(owner)
    ]
    before = {(owner, name): getattr(owner, name, None) for owner, name in names}
    start = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    with _simulate.activate("lazy"):
        assert torch.cuda.is_available()
        assert open_device("cuda").name == "cuda:0"
        kept = torch.ones(2, device="cuda")
    changed = [name for (owner, name), value in before.items() if getattr(owner, name, None) is not value]
    assert [name for name in changed if not name.startswith("__")] == []
    assert threading.Thread._bootstrap_inner is start  # type: ignore[attr-defined]
    assert not torch.cuda.is_available()
    assert "ended" in repr(kept)
    with pytest.raises(UsageError, match="has ended"):
        kept + 1
    with pytest.raises(UsageError):
        open_device("cuda")


def test_one_simulation_at_a_time():
    with _simulate.activate("lazy"), pytest.raises(UsageError, match="active already"), _simulate.activate("lazy"):
        pass


def test_a_feed_to_cuda_gives_tensors_of_the_simulated_device():
    data = np.arange(12, dtype=np.float32).reshape(6, 2)
    with _simulate.activate("lazy"):
        batches = list(interlock.Feed(data, batch_size=3, to="torch", device="cuda"))
        assert all(batch.is_cuda for batch in batches)
        assert np.array_equal(np.concatenate([(batch + 1).cpu().numpy() for batch in batches]), data + 1)
