"""Draining CUDA tensors: on the first CUDA device, or, where there is none, in simulations.

What is written is what a tensor held at `put`, at that point of the stream that is current then.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from interlock import Drain
from interlock.errors import UsageError
from interlock.testing import gate

WIDTH = 1000


@pytest.fixture
def numbers(stored) -> Any:
    """Reads the one number that each row holds; fails if a row holds several."""

    def read(name: str = "output") -> list[float]:
        rows = stored(name)
        flat = rows.reshape(len(rows), -1)
        assert (flat.min(axis=1) == flat.max(axis=1)).all(), rows
        held: list[float] = flat[:, 0].tolist()
        return held

    return read


@pytest.mark.usefixtures("world")
def test_a_tensor_may_be_overwritten_right_after_put(out, numbers):
    """Under a closed gate: neither the value nor the write after it exists when `put` returns."""
    static = torch.zeros(4, WIDTH, device="cuda")
    stream = torch.cuda.current_stream()
    with Drain(f"npy:{out}") as drain:
        for batch in range(3):
            with gate(stream) if batch else nullcontext():  # not the first: what is loaded then may wait for the stream
                static.fill_(batch)
                ticket = drain.put(np.arange(4) + 4 * batch, static)
                static.fill_(float("nan"))
                assert not batch or not ticket.landed
            drain.flush()
        assert drain.statistics().host_syncs == 0
    assert numbers() == [row // 4 for row in range(12)]


@pytest.mark.usefixtures("world")
def test_puts_follow_the_stream_that_is_current(out, numbers):
    side = torch.cuda.Stream()
    static = torch.zeros(2, WIDTH, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with Drain(f"npy:{out}") as drain:
        for batch in range(4):
            with torch.cuda.stream(side), gate(side) if batch else nullcontext():
                static.fill_(batch)
                drain.put([2 * batch, 2 * batch + 1], static)
                static.fill_(float("nan"))
            drain.flush()
        torch.cuda.current_stream().wait_stream(side)
    assert numbers() == [row // 2 for row in range(8)]


@pytest.mark.usefixtures("world")
def test_a_tensor_that_is_dropped_right_after_put_keeps_its_value(out, numbers):
    """Its memory goes to the next tensor of the same size at once."""
    with Drain(f"npy:{out}") as drain:
        for batch in range(6):
            drain.put([batch], torch.full((1, WIDTH), float(batch), device="cuda"))
            torch.full((1, WIDTH), float("nan"), device="cuda")
    assert numbers() == list(range(6))


@pytest.mark.usefixtures("world")
def test_views_are_written_as_they_look(out, stored):
    base = torch.arange(24.0, device="cuda").reshape(4, 6)
    numbers_ = torch.complex(base, -base)
    with Drain(f"npy:{out}") as drain:
        ids = range(4)
        drain.put(
            ids,
            {
                "strided": base[:, ::2],
                "turned": base.reshape(6, 4).t(),
                "expanded": base[:, :1].expand(4, 3),
                "offset": base[:, 3:],
                "negative": numbers_.conj().imag,
                "strided_rows": base.repeat(2, 1)[::2],
            },
        )
        base.fill_(float("nan"))
        numbers_.fill_(float("nan"))
    values = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(stored("strided"), values[:, ::2])
    assert np.array_equal(stored("turned"), values.reshape(6, 4).T)
    assert np.array_equal(stored("expanded"), np.repeat(values[:, :1], 3, axis=1))
    assert np.array_equal(stored("offset"), values[:, 3:])
    assert np.array_equal(stored("negative"), values)
    assert np.array_equal(stored("strided_rows"), np.tile(values, (2, 1))[::2])


@pytest.mark.usefixtures("world")
def test_outputs_of_a_model_with_gradients_or_in_inference_mode(out, stored):
    model = torch.nn.Linear(3, 3, bias=False).cuda()
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    inputs = torch.arange(6.0, device="cuda").reshape(2, 3)
    with Drain(f"npy:{out}") as drain:
        drain.put([0, 1], model(inputs))
        with torch.inference_mode():
            drain.put([2, 3], model(inputs + 6))
            kept = model(inputs + 12)
        drain.put([4, 5], kept)
    assert np.allclose(stored(), np.arange(18.0).reshape(6, 3))


@pytest.mark.usefixtures("world")
def test_the_static_output_of_a_graph_may_be_replayed_over_right_after_put(out, numbers):
    static_in = torch.zeros(2, WIDTH, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        static_in * 2 + 1
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_out = static_in * 2 + 1
    with Drain(f"npy:{out}") as drain:
        for batch in range(6):
            static_in.fill_(batch)
            graph.replay()
            drain.put([2 * batch, 2 * batch + 1], static_out)
        drain.flush()
        assert drain.statistics().host_syncs == 0
    assert numbers() == [2 * (row // 2) + 1 for row in range(12)]


@pytest.mark.usefixtures("world")
def test_borrowed_tensors_may_change_once_they_have_landed(out, numbers):
    static = torch.zeros(2, WIDTH, device="cuda")
    with Drain(f"npy:{out}", borrow=True) as drain:
        for batch in range(4):
            static.fill_(batch)
            drain.put([2 * batch, 2 * batch + 1], static).wait("landed", timeout_s=60)
            static.fill_(float("nan"))
    assert numbers() == [row // 2 for row in range(8)]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("borrow", [False, True])
def test_a_row_larger_than_the_budget_travels_in_slabs(out, borrow, numbers):
    """Rows of 4000 bytes through slots of 1000."""
    static = torch.zeros(3, WIDTH, device="cuda")
    with Drain(f"npy:{out}", budget_bytes=2000, borrow=borrow) as drain:
        for batch in range(3):
            static.copy_(torch.arange(3.0, device="cuda")[:, None].expand(3, WIDTH) + 3 * batch)
            drain.put(np.arange(3) + 3 * batch, static)
            static.fill_(float("nan"))
    assert numbers() == list(range(9))


@pytest.mark.usefixtures("world")
def test_a_put_larger_than_half_the_budget_is_split_and_its_tensor_may_be_overwritten(out, numbers):
    static = torch.zeros(64, WIDTH, device="cuda")
    rows = torch.arange(64.0, device="cuda")[:, None].expand(64, WIDTH)
    with Drain(f"npy:{out}", budget_bytes=60_000) as drain:
        for batch in range(3):
            static.copy_(rows + 64 * batch)
            drain.put(np.arange(64) + 64 * batch, {"x": static, "host": np.arange(64)})
            static.fill_(float("nan"))
    assert numbers("x") == list(range(192))


@pytest.mark.usefixtures("world")
def test_kept_tickets_tell_how_far_their_rows_are(out):
    with Drain(f"npy:{out}") as drain:
        tickets = [drain.put([one], torch.ones(1, 3, device="cuda")) for one in range(20)]
        tickets[3].wait("landed", timeout_s=60)
        drain.flush()
        assert all(ticket.landed and ticket.written and ticket.committed for ticket in tickets)


@pytest.mark.usefixtures("world")
def test_the_same_rows_again_are_dropped_and_others_refused(out, stored):
    values = torch.arange(6.0, device="cuda").reshape(3, 2)
    with Drain(f"npy:{out}") as drain:
        drain.put([0, 1, 2], values)
        drain.put([1, 2, 3], torch.cat([values[1:], values[:1]]))
        with pytest.raises(UsageError, match="id 0 was put twice"):
            drain.put([0], values[1:2])
    assert stored().tolist() == [[0, 1], [2, 3], [4, 5], [0, 1]]


@pytest.mark.usefixtures("world")
def test_dtypes_that_no_sink_stores_are_refused_by_name(out, stored):
    with Drain(f"npy:{out}") as drain:
        for dtype in (torch.bfloat16, torch.complex64):
            with pytest.raises(UsageError, match=rf"output 'x'.*{str(dtype).removeprefix('torch.')}"):
                drain.put([0], {"x": torch.ones(1, 2, device="cuda").to(dtype)})
        drain.put([0], {"x": torch.ones(1, 2, device="cuda")})
    assert stored("x").tolist() == [[1, 1]]


@pytest.mark.usefixtures("cuda")
def test_what_is_no_plain_tensor_is_refused_by_name(out):
    sparse = torch.eye(2, device="cuda").to_sparse()
    with Drain(f"npy:{out}") as drain, pytest.raises(UsageError, match=r"output 'x'.*sparse.*to_dense"):
        drain.put([0, 1], {"x": sparse})


@pytest.mark.usefixtures("cuda")
def test_a_put_inside_a_graph_capture_is_refused(out, stored):
    static = torch.ones(1, 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with Drain(f"npy:{out}") as drain:
        with torch.cuda.graph(graph):
            result = static * 3
            with pytest.raises(UsageError, match=r"output 'output'.*while a CUDA graph is captured.*after each replay"):
                drain.put([0], result)
        graph.replay()
        drain.put([0], result)
    assert stored().tolist() == [[3, 3, 3, 3]]


def test_no_host_waits_once_the_slot_is_there(cuda):
    values = torch.ones(8, 1 << 16, device="cuda")
    with Drain("null:") as drain:
        drain.put(np.arange(-8, 0), values)
        drain.flush()
        before = cuda.host_syncs
        for batch in range(4):
            with gate(torch.cuda.current_stream()):  # opens late and with an error, if the host waits for the stream
                ticket = drain.put(np.arange(8) + 8 * batch, values)
                assert not ticket.landed
            drain.flush()
        assert drain.statistics().host_syncs == 0
        assert cuda.host_syncs == before


def test_tensors_of_several_devices_belong_together(two_devices, out, numbers):
    assert len(two_devices) == 2
    statics = {f"on_{index}": torch.zeros(4, WIDTH, device=f"cuda:{index}") for index in range(2)}
    with Drain(f"npy:{out}") as drain:
        for batch in range(5):
            for static in statics.values():
                static.fill_(batch)
            drain.put(np.arange(4) + 4 * batch, statics)
            for static in statics.values():
                static.fill_(float("nan"))
        drain.flush()
        assert drain.statistics().host_syncs == 0
    for name in statics:
        assert numbers(name) == [row // 4 for row in range(20)]
