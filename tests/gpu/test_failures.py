"""What goes wrong on a real device: no memory, a lost context, a consumer that raises. Clear errors, and always an end.

Twins on the simulated device: tests/feed/test_feed_failures.py and tests/drain/test_drain_failures.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from interlock import Drain, Feed
from interlock.errors import DeviceError
from interlock.testing import gate

START = """
import sys
import numpy as np
import interlock
from interlock.errors import DeviceError, InterlockError

data = np.arange(1 << 22, dtype=np.float32).reshape(64, -1)  # 16 MiB
folder = sys.argv[1]
"""

TORCH_IS_FULL = """
import torch
data = np.concatenate([data, data])  # 32 MiB; torch takes memory 20 MiB at a time, for each stream
limit = 44 << 20
torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
kept = []
try:
    for batch in interlock.Feed(data, batch_size=8, to="torch", device="cuda"):
        kept.append((batch, batch * 2))
except torch.OutOfMemoryError as error:
    print("feed:", type(error).__name__, len(kept) > 0)
del kept[1:], batch
with interlock.Drain(f"npy:{folder}/out") as drain:
    drain.put(range(8), kept[0][0])
    try:
        drain.put(range(8, 16), kept[0][0][:, None].expand(8, 16, 1 << 16))
    except DeviceError as error:
        print("drain:", error)
print("committed:", len(drain.committed))
"""

CONTEXT_IS_LOST = """
import torch
feed = interlock.Feed(data, batch_size=2, to="torch", device="cuda", workers=2)
drain = interlock.Drain(f"npy:{folder}/out", timeout_s=20)
index = torch.tensor([1 << 40], device="cuda")
taken, kept = 0, []
try:
    for batch in feed:
        taken += 1
        kept.append(batch)
        if taken == 4:
            torch.arange(4, device="cuda")[index]  # an assertion on the device: the context is lost
        drain.put([2 * taken, 2 * taken + 1], batch)
except Exception as error:
    print("loop:", type(error).__name__, str(error).splitlines()[0], flush=True)
try:
    drain.close()
except Exception as error:
    print("drain:", type(error).__name__, str(error).splitlines()[0], flush=True)
try:
    for batch in interlock.Feed(data, batch_size=2, to="torch", device="cuda", workers=2):
        kept.append(batch)
        float(batch.sum())
except Exception as error:
    print("feed:", type(error).__name__, str(error).splitlines()[0], flush=True)
print("end: device-side assert", flush=True)
"""


def lines(program: str, folder: Any, *, codes: tuple[int, ...] = (0,)) -> list[str]:
    """Run a program in a process of its own; return what it printed. It must end, with one of these exit codes."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", START + program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=environment)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("cuda")
def test_a_full_torch_says_so_as_torch_does_and_the_drain_by_name(tmp_path):
    pytest.importorskip("torch")
    feed, drain, committed = lines(TORCH_IS_FULL, tmp_path)
    assert feed == "feed: OutOfMemoryError True"
    assert "output 'output'" in drain
    assert "no memory for the snapshot of 33,554,432 bytes" in drain
    assert committed == "committed: 8"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_device_is_named_with_what_is_free_and_a_feed_works_again_when_there_is_room(
    workers: int, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    """The driver is asked for a pebibyte more, so that nobody else on the device has to go without."""
    pytest.importorskip("jax")
    data = np.zeros((64, 1024), np.float32)
    allocate = type(cuda).allocate
    with monkeypatch.context() as patched:
        patched.setattr(type(cuda), "allocate", lambda self, size_bytes: allocate(self, size_bytes + (1 << 50)))
        feed = Feed(data, batch_size=32, to="jax", device=cuda, workers=workers)
        with pytest.raises(MemoryError, match=r"cuda:0 has no 1,125,.* bytes are free"):
            next(iter(feed))
    assert [len(batch) for batch in feed] == [32, 32]


@pytest.mark.usefixtures("cuda")
def test_after_a_lost_context_everybody_hears_of_it_and_the_process_ends(tmp_path):
    """How it ends is torch's: its allocator aborts when memory that a stream was recorded for is freed after that.

    A loop that is done before the device is at the bad index hears of it from the drain.
    """
    pytest.importorskip("torch")
    found = lines(CONTEXT_IS_LOST, tmp_path, codes=(0, -signal.SIGABRT))
    said = dict(line.split(": ", 1) for line in found if line.startswith(("loop: ", "drain: ", "feed: ", "end: ")))
    assert set(said) >= {"feed", "end"}
    assert set(said) & {"loop", "drain"}
    assert all("device-side assert" in text or "cuda:0" in text for text in said.values()), said


@pytest.mark.parametrize("to", ["torch", "jax", "cupy"])
def test_a_consumer_that_raises_loses_nothing_that_it_put(to: str, cuda: Any, tmp_path):
    pytest.importorskip(to)
    data = np.arange(64, dtype=np.float32)[:, None] * np.ones(256, np.float32)
    feed = Feed(data, batch_size=4, to=to, device=cuda, workers=2, ids=True)

    def consume() -> None:
        with feed, Drain(f"npy:{tmp_path / 'out'}") as drain:
            for ids, batch in feed:
                drain.put(ids, batch * 2)
                if ids[0] == 16:
                    raise LookupError("the consumer's own")

    with pytest.raises(LookupError, match="the consumer's own"):
        consume()
    held = np.concatenate([np.load(path) for path in sorted((tmp_path / "out").glob("part-*/output.npy"))])
    assert sorted(held[:, 0].tolist()) == [2.0 * row for row in range(20)]


def test_a_drain_that_waits_for_a_stream_that_hangs_ends_in_bounded_time(cuda: Any, tmp_path):
    torch = pytest.importorskip("torch")
    drain = Drain(f"npy:{tmp_path / 'out'}", timeout_s=4.0)  # enough for what is done first on a busy machine
    drain.put([-2, -1], torch.ones(2, 4, device="cuda"))  # a new slot would wait for the held stream
    drain.flush()
    with gate(cuda.stream("drain"), device=cuda):
        drain.put([0, 1], torch.ones(2, 4, device="cuda"))
        with pytest.raises((DeviceError, TimeoutError), match=r"is not done after 4 s"):
            drain.close()
