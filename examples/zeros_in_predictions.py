"""The zeros in the predictions: a writer reads CPU memory before the copy from the device has landed.

A small torch model predicts on the simulated device; its outputs are moved to host memory without waiting, as PyTorch
Lightning once did with `non_blocking=True`, and a writer saves them. With `--naive` the writer reads at once: it
saves what the memory held before (zeros there, poison here, where memory that nothing has written holds NaN). Without
it, the outputs go through `interlock.Drain`, and the loop waits for nothing either.

    python examples/zeros_in_predictions.py --naive
    python examples/zeros_in_predictions.py --schedule random:7

The schedule decides when the device runs what was queued: `lazy` (only when waited for), `eager`, `starve:d2h`,
`random:SEED`. A correct program gives the same under each.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import interlock
from interlock.lowlevel import DeviceArray, SimulatedDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

ROWS, WIDTH, CLASSES, BATCH = 1024, 32, 10, 64


class DeviceModel:
    """A torch module whose forward pass is a kernel on the simulated device."""

    def __init__(self, device: SimulatedDevice) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES))
        self.device = device
        self.stream = device.stream("compute")

    def __call__(self, batch: npt.NDArray[np.float32]) -> DeviceArray:
        """Queue the forward pass; return at once."""
        output = self.device.allocate(len(batch) * CLASSES * 4)

        def forward() -> None:
            output.view()[:] = self.reference(batch).tobytes()

        self.device.launch(self.stream, forward, writes=[output], name="forward")
        return DeviceArray(self.device, output, (len(batch), CLASSES), "float32", self.device.record(self.stream))

    def reference(self, batch: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return what the device must give."""
        with torch.inference_mode():
            return np.ascontiguousarray(self.module(torch.from_numpy(batch)).numpy())


def batches() -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Yield row numbers and inputs."""
    inputs = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    for start in range(0, ROWS, BATCH):
        yield np.arange(start, start + BATCH), inputs[start : start + BATCH]


def predict_naively(device: SimulatedDevice, model: DeviceModel, path: Path) -> npt.NDArray[np.float32]:
    """Move outputs without waiting and write what is there."""
    stream = device.stream("d2h")
    written = []
    for _, batch in batches():
        output = model(batch)
        host = device.allocate_host(output.memory.size_bytes)
        device.wait(stream, output.ready)
        device.copy(host, output.memory, stream)  # asynchronous: non_blocking=True
        written.append(np.frombuffer(host.view(), np.float32).reshape(output.shape).copy())  # the writer, too early
    np.save(path / "predictions.npy", np.concatenate(written))
    read: npt.NDArray[np.float32] = np.load(path / "predictions.npy")
    return read


def predict_with_interlock(model: DeviceModel, path: Path) -> npt.NDArray[np.float32]:
    """Give outputs to a drain; it writes them when they have landed."""
    with interlock.Drain(f"npy:{path / 'predictions'}") as drain:
        for ids, batch in batches():
            drain.put(ids, {"logits": model(batch)})
    shards = sorted((path / "predictions").glob("part-*"))
    ids = np.concatenate([np.load(shard / "id.npy") for shard in shards])
    logits: npt.NDArray[np.float32] = np.concatenate([np.load(shard / "logits.npy") for shard in shards])
    return logits[np.argsort(ids)]


def main() -> None:
    """Predict, naively or with Interlock, and say how many rows are wrong on disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", action="store_true", help="the usual form, without Interlock")
    parser.add_argument("--schedule", default="lazy", help="how the simulated device runs (default: lazy)")
    arguments = parser.parse_args()
    device = SimulatedDevice(arguments.schedule)
    model = DeviceModel(device)
    expected = np.concatenate([model.reference(batch) for _, batch in batches()])
    with tempfile.TemporaryDirectory() as folder:
        if arguments.naive:
            found = predict_naively(device, model, Path(folder))
        else:
            found = predict_with_interlock(model, Path(folder))
    wrong = int((found != expected).any(axis=1).sum())
    name = "naive" if arguments.naive else "interlock"
    print(f"{name}: {wrong} of {ROWS} rows wrong on disk (schedule {device.schedule})")
    if not arguments.naive and wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
