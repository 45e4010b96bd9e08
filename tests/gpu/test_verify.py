"""`verify=True` on a real device: silent over correct hand-offs; faults planted in them are named.

Twins on the simulated device: tests/feed/test_verify.py and tests/drain/test_drain_verify.py.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from interlock import Drain, Feed, prefetch
from interlock._core._fence import Fence
from interlock.errors import CorruptionError
from interlock.feed._staging import Staging
from interlock.testing import gate

ROWS = 256
FRAMEWORKS = ["torch", "jax", "cupy"]


def framework(name: str) -> Any:
    return pytest.importorskip(name)


def source(batches: int) -> dict[str, np.ndarray]:
    rows = np.arange(batches * ROWS, dtype=np.float32)
    return {"x": np.repeat(rows[:, None], 128, axis=1), "y": np.arange(batches * ROWS), "flag": rows % 3 > 1}


def on_host(array: Any) -> np.ndarray:
    return np.asarray(array.get() if hasattr(array, "get") else array.cpu() if hasattr(array, "cpu") else array)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("to", FRAMEWORKS)
@pytest.mark.parametrize("option", [{}, {"zero_copy": True}, {"fixed": True}], ids=["plain", "zero_copy", "fixed"])
def test_nothing_is_said_of_a_correct_feed(to: str, option: dict[str, Any]):
    framework(to)
    if option and ("zero_copy" in option) != (to == "jax"):
        pytest.skip("not an option of this framework")
    kept = []
    with Feed(source(8), batch_size=ROWS, to=to, device="cuda", workers=2, verify=True, **option) as feed:
        for number, batch in enumerate(feed):
            if number % 2 and not option.get("fixed"):
                kept.append((number, batch))
    for number, batch in kept:
        assert on_host(batch["x"])[0, 0] == number * ROWS


@pytest.mark.usefixtures("cuda")
def test_nothing_is_said_of_a_loader_of_pinned_tensors_that_recycles_them():
    torch = framework("torch")
    buffer = torch.empty(64, 64, pin_memory=True)

    def loader():
        for number in range(8):
            yield {"x": buffer.fill_(number), "name": str(number)}

    seen = [
        (batch["name"], float(batch["x"].max())) for batch in prefetch(loader(), to="torch", device="cuda", verify=True)
    ]
    assert seen == [(str(number), number) for number in range(8)]


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_a_copy_from_the_wrong_place_is_named(to: str, cuda: Any, monkeypatch: pytest.MonkeyPatch):
    framework(to)
    copy = type(cuda).copy

    def shifted(self, target, source, stream):
        if target.size_bytes < 1 << 16:
            copy(self, target, source, stream)
            return
        copy(self, target.slice(0, 512), source.slice(512, 512), stream)
        rest = target.size_bytes - 512
        copy(self, target.slice(512, rest), source.slice(512, rest), stream)

    monkeypatch.setattr(type(cuda), "copy", shifted)
    feed = Feed(source(4), batch_size=ROWS, to=to, device=cuda, workers=1, verify=True)
    with pytest.raises(CorruptionError, match=r"leaf '\w+' of batch 0 .* when it was handed over") as caught:
        next(iter(feed))
    assert caught.value.number == 0


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_a_copy_that_lands_late_is_named(to: str, cuda: Any, monkeypatch: pytest.MonkeyPatch):
    """The copy stream is held, and every fence of it is said to be reached: so the consumer reads too early.

    What it finds then is what an earlier batch left there: shuffled, so that none had the same.
    """
    framework(to)
    two_slots = 2 * 140_000  # a third would be pinned under the gate, and so wait for it
    feed = Feed(
        source(4), batch_size=ROWS, to=to, device=cuda, workers=1, verify=True, shuffle=True, budget_bytes=two_slots
    )
    for _ in feed:
        pass  # what is loaded, compiled and allocated for the first batches would wait for the held stream
    record = type(cuda).record
    monkeypatch.setattr(
        type(cuda),
        "record",
        lambda self, stream: Fence.EMPTY if stream.name.endswith("/feed") else record(self, stream),
    )
    with gate(cuda.stream("feed"), device=cuda), pytest.raises(CorruptionError, match="of batch 0 "):
        next(iter(feed))


def test_a_slot_that_is_used_again_too_early_is_named(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    """JAX still holds the slot: the poison of the next claim shows it."""
    framework("jax")
    hand_over = Staging.hand_over

    def taken_back_at_once(self, work):
        tree = hand_over(self, work)
        self.returned(next(reference for reference, (lease, _) in self._loans.items() if lease is work.lease))
        return tree

    monkeypatch.setattr(Staging, "hand_over", taken_back_at_once)
    iterator = iter(Feed(source(4), batch_size=ROWS, to="jax", device=cuda, workers=0, zero_copy=True, verify=True))
    kept = next(iterator)
    with pytest.raises(CorruptionError, match="batch 0 was wrong when batch 1 was handed over"):
        next(iterator)
    del kept


def ones(name: str, rows: int) -> Any:
    """Return rows of ones on the device."""
    if name == "torch":
        return framework("torch").ones(rows, 4, device="cuda")
    numpy: Any = importlib.import_module("jax.numpy" if name == "jax" else "cupy")
    return numpy.ones((rows, 4), "float32")


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("to", FRAMEWORKS)
def test_nothing_is_said_of_a_correct_drain(to: str, tmp_path):
    framework(to)
    with Drain(f"npy:{tmp_path / 'out'}", verify=True) as drain:
        for number in range(8):
            values = ones(to, 16) * number
            drain.put(np.arange(16) + 16 * number, {"y": values})
            if to == "jax":
                values.delete()
            else:
                values *= 0
    held = np.concatenate([np.load(path) for path in sorted((tmp_path / "out").glob("part-*/y.npy"))])
    assert (held == (np.arange(128) // 16)[:, None]).all()


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_values_that_land_late_are_named_and_not_committed(
    to: str, cuda: Any, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    framework(to)
    values = ones(to, 16) * 5.25  # what memory that was used before does not hold
    drain = Drain(f"npy:{tmp_path / 'out'}", verify=True)
    drain.put(np.arange(16), {"y": values - 1})  # what is loaded and allocated then would wait for the held stream
    drain.flush()
    record = type(cuda).record
    monkeypatch.setattr(
        type(cuda),
        "record",
        lambda self, stream: Fence.EMPTY if stream.name.endswith("/drain") else record(self, stream),
    )
    with gate(cuda.stream("drain"), device=cuda):
        drain.put(np.arange(16, 32), {"y": values})
        with pytest.raises(CorruptionError, match=r"output 'y' of put 1 \(rows 16 to 31\)"):
            drain.close()
    assert len(drain.committed) == 16


def test_a_broken_promise_not_to_write_to_a_borrowed_tensor_is_named(cuda: Any, tmp_path):
    """What holds the copy back here is the drain's own stream; the program overwrites its tensor meanwhile."""
    torch = framework("torch")
    values = torch.ones(16, 4, device="cuda")
    drain = Drain(f"npy:{tmp_path / 'out'}", verify=True, borrow=True)
    drain.put(np.arange(16), {"y": values + 1})  # as above
    drain.flush()
    values.fill_(2)
    torch.cuda.synchronize()
    with gate(cuda.stream("drain"), device=cuda):
        drain.put(np.arange(16, 32), {"y": values})
        values.zero_()
        torch.cuda.current_stream().synchronize()
    with pytest.raises(CorruptionError, match=r"put 1 .* with borrow=True nothing may write"):
        drain.close()
