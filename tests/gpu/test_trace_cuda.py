"""The trace of a real device: its times are right, and they show copies and compute at once."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import interlock
from interlock import Drain, Feed
from interlock.tracing import read

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.devices._cuda import CudaDevice
    from interlock.lowlevel import Device
    from interlock.tracing import Bar

STEPS = 10


def bars_of(file: Path) -> dict[str, list[Bar]]:
    found: dict[str, list[Bar]] = {}
    for track in read(file).tracks:
        for bar in track.bars:
            found.setdefault(bar.name, []).append(bar)
    return found


def test_copies_are_inside_the_block_that_was_marked(device: Device, tmp_path: Path):
    file, stream, size = tmp_path / "run.json", device.stream("work"), 1 << 24
    there, here = device.allocate(size), device.allocate_host(size)
    with interlock.trace(file) as trace:
        began = time.perf_counter()
        with trace.stream(stream, "step", device=device):
            device.copy(there, here, stream)
            device.copy(here, there, stream)
    took_ms = (time.perf_counter() - began) * 1000
    bars = bars_of(file)
    (step,), (copied_in,), (copied_out,) = bars["step"], bars["copy in"], bars["copy out"]
    assert step.start_ms <= copied_in.start_ms <= copied_in.end_ms <= copied_out.start_ms + 0.002
    assert copied_out.end_ms <= step.end_ms + 0.002
    assert step.end_ms - step.start_ms < took_ms
    assert copied_in.size_bytes == copied_out.size_bytes == size


def test_times_of_the_device_lie_between_those_of_the_host_around_them(cuda: CudaDevice, tmp_path: Path):
    """The clocks agree to some microseconds; the tolerance is for a device that other processes use too."""
    file, stream, size = tmp_path / "run.json", cuda.stream("work"), 1 << 24
    there, here = cuda.allocate(size), cuda.allocate_host(size)
    with interlock.trace(file) as trace:
        for _ in range(20):
            with trace.span("around"):
                cuda.copy(there, here, stream)
                fence = cuda.record(stream)
                while not fence.poll():
                    pass
    bars = bars_of(file)
    for around, copy in zip(bars["around"], bars["copy in"], strict=True):
        assert around.start_ms - 0.5 <= copy.start_ms
        assert copy.end_ms <= around.end_ms + 0.5


def test_the_rate_of_copies_is_that_of_a_link(cuda: CudaDevice, tmp_path: Path):
    file, stream, size = tmp_path / "run.json", cuda.stream("work"), 1 << 28
    there, here = cuda.allocate(size), cuda.allocate_host(size)
    with interlock.trace(file):
        for _ in range(5):
            cuda.copy(there, here, stream)
    best = max(bar.size_bytes / (bar.end_ms - bar.start_ms) / 1e6 for bar in bars_of(file)["copy in"])
    assert 0.5 < best < 1000, f"{best:.1f} GB/s"  # however busy the device is


def test_steps_of_jax_are_seen_by_what_they_make(cuda: CudaDevice, tmp_path: Path):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this jax has no CUDA")
    del cuda
    file = tmp_path / "run.json"
    step = jax.jit(lambda value: jax.lax.fori_loop(0, 40, lambda _, x: jax.numpy.tanh(x @ x) / 64, value))
    value = step(jax.numpy.ones((4096, 4096))).block_until_ready()
    with interlock.trace(file) as trace:
        began = time.perf_counter()
        for _ in range(STEPS):
            value = step(value)
            trace.ready(value, "step")
        value.block_until_ready()
        took_ms = (time.perf_counter() - began) * 1000
    steps = bars_of(file)["step"]
    assert [bar.number for bar in steps] == list(range(STEPS))
    for one, other in itertools.pairwise(steps):
        assert one.end_ms <= other.start_ms + 0.002
    total_ms = sum(bar.end_ms - bar.start_ms for bar in steps)
    assert 0.5 * took_ms < total_ms < 1.05 * took_ms


def overlap(one: Bar, other: Bar) -> bool:
    return one.start_ms < other.end_ms and other.start_ms < one.end_ms


def loop(file: Path, sink: Path, torch: Any) -> None:
    """Feed, a step of some milliseconds, drain."""
    data = np.ones((STEPS * 64, 1 << 16), np.float32)  # 16 MB a batch
    weight = torch.randn(4096, 4096, device="cuda")
    feed = Feed(data, batch_size=64, to="torch", device="cuda", workers=2)
    with interlock.trace(file) as trace, Drain(f"npy:{sink}", commit_interval_s=3600) as drain:
        for number, batch in enumerate(feed):
            with trace.stream(torch.cuda.current_stream(), "step", number=number):
                value = batch.reshape(-1, 4096)
                for _ in range(40):
                    value = torch.tanh(value @ weight)
            drain.put(np.arange(len(value)) + number * len(value), value)


def test_copies_overlap_compute(cuda: CudaDevice, tmp_path: Path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    del cuda
    loop(tmp_path / "warm.json", tmp_path / "warm", torch)
    during: dict[str, int] = {}
    for attempt in range(3):  # where other processes keep the host or the device busy, there may be no batch in time
        loop(tmp_path / f"{attempt}.json", tmp_path / f"sink-{attempt}", torch)
        bars = bars_of(tmp_path / f"{attempt}.json")
        steps = bars["step"]
        assert [bar.number for bar in steps] == list(range(STEPS))
        for copy in bars["copy in"]:
            step = next(step for step in steps if step.number == copy.number)
            assert copy.end_ms <= step.start_ms + 0.1, "a step began before its batch was there"
        for name in ("copy in", "copy out"):
            assert len({bar.number for bar in bars[name]}) == STEPS
            during[name] = sum(any(overlap(copy, step) for step in steps) for copy in bars[name])
        if min(during.values()) >= STEPS // 2:
            return
    pytest.fail(f"copies while a step ran: {during} of {STEPS}")
