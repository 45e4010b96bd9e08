"""One picture: the same loop with the usual hand-offs and with Interlock's, traced by `interlock.trace`.

    python benchmarks/gpu/overlap.py [--out FOLDER] [--smoke]

Each step takes a batch of 100 MB from worker threads, multiplies matrices on the GPU and keeps 12 MB of the result in
npy files. The usual loop moves batches with `.to(device)` and results with `.cpu()`; everything else is the same.

Writes `overlap.json` and `overlap-usual.json`, which Perfetto reads, and `overlap.svg`, the picture of both. Without a
GPU, or with `--smoke`, the step runs on the CPU and there is one loop: it shows workers, loop and writer.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _common import devices

import interlock
from interlock import Drain, Feed
from interlock.tracing import Panel, draw, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from interlock.tracing import Trace

STEP_MS = 8.0
WARM_UP, TRACED = 12, 18
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@dataclass(frozen=True)
class Sizes:
    """How much there is to do."""

    samples: int
    rows: int
    features: int
    kept: int
    workers: int


ON_GPU = Sizes(samples=192, rows=32, features=4096, kept=512, workers=8)
ON_CPU = Sizes(samples=32, rows=8, features=512, kept=128, workers=2)


class Samples:
    """Samples in memory, each many times: reading is a copy into the batch, of many samples at once."""

    def __init__(self, sizes: Sizes, count: int) -> None:
        random = np.random.default_rng(0)
        self._pool = random.random((sizes.samples, sizes.rows, sizes.features), np.float32) - np.float32(0.5)
        self._count = count * sizes.samples

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        sample: npt.NDArray[np.float32] = self._pool[index % len(self._pool)]
        return sample

    def read_into(self, indices: Sequence[int], out: npt.NDArray[np.float32]) -> None:
        """Copy samples that follow each other, as those of an epoch in order do; the pool is one batch."""
        start = indices[0] % len(self._pool)
        np.copyto(out, self._pool[start : start + len(out)])


class Step:
    """Matrix products that take about `STEP_MS` on a GPU."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(0)
        self._weight = torch.randn(sizes.features, sizes.features, device=device) / sizes.features**0.5
        self._kept = sizes.kept
        self._products = 1
        if device == "cuda":
            batch = torch.randn(sizes.samples * sizes.rows, sizes.features, device=device)
            self._products = max(1, round(STEP_MS / self._product_ms(batch)))

    def _product_ms(self, batch: torch.Tensor) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # torch
        self(batch)
        self._products = 20
        start.record()
        self(batch)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / self._products

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return what is kept of the result."""
        value = batch.reshape(-1, self._weight.shape[0])
        for _ in range(self._products):
            value = torch.tanh(value @ self._weight)
        return value[:, : self._kept].contiguous()


@torch.inference_mode()
def run(loop: Callable[[Any, int, Trace | None], None], feed: Feed, path: Path) -> None:
    """Run `loop` on each batch, and record the steps after the warm-up."""
    batches: Iterator[Any] = iter(feed)
    for number in range(WARM_UP):
        loop(next(batches), number, None)
    with interlock.trace(path) as trace:
        for number in range(WARM_UP, WARM_UP + TRACED):
            loop(next(batches), number, trace)
    feed.close()


def with_interlock(step: Step, drain: Drain) -> Callable[[torch.Tensor, int, Trace | None], None]:
    def loop(batch: torch.Tensor, number: int, trace: Trace | None) -> None:
        if trace is None:
            result = step(batch)
        else:
            with (
                trace.span("launch", number=number),
                trace.stream(torch.cuda.current_stream(), "step", number=number),
            ):
                result = step(batch)
        drain.put(ids_of(result, number), result)

    return loop


def as_usual(step: Step, drain: Drain) -> Callable[[torch.Tensor, int, Trace | None], None]:
    def loop(batch: torch.Tensor, number: int, trace: Trace | None) -> None:
        if trace is None:
            host = step(batch.to("cuda")).cpu()
            drain.put(ids_of(host, number), host)
            return
        stream = torch.cuda.current_stream()
        with (
            trace.span(".to(device)", number=number),
            trace.stream(stream, "copy in", number=number, size_bytes=batch.nbytes),
        ):
            moved = batch.to("cuda")
        with trace.span("launch", number=number), trace.stream(stream, "step", number=number):
            result = step(moved)
        with (
            trace.span(".cpu()", number=number),
            trace.stream(stream, "copy out", number=number, size_bytes=result.nbytes),
        ):
            host = result.cpu()
        drain.put(ids_of(host, number), host)

    return loop


def on_cpu(step: Step, drain: Drain) -> Callable[[torch.Tensor, int, Trace | None], None]:
    def loop(batch: torch.Tensor, number: int, trace: Trace | None) -> None:
        if trace is None:
            result = step(batch)
        else:
            with trace.span("step", number=number):
                result = step(batch)
        drain.put(ids_of(result, number), result)

    return loop


def ids_of(result: torch.Tensor, number: int) -> npt.NDArray[np.int64]:
    return np.arange(len(result), dtype=np.int64) + number * (1 << 20)


def record(name: str, loop: Any, sizes: Sizes, step: Step, out: Path, device: str) -> Path:
    """Run one of the loops; return its trace."""
    path = out / f"{name}.json"
    memory = Path("/dev/shm")  # noqa: S108 - a folder in memory, so that the disk is not what is drawn
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    feed = Feed(
        Samples(sizes, WARM_UP + TRACED + 8),
        batch_size=sizes.samples,
        to="torch",
        device=device,
        workers=sizes.workers,
        depth=3,
    )
    try:
        with Drain(f"npy:{folder / 'out'}", shard_bytes=4 << 30, commit_interval_s=3600) as drain:
            run(loop(step, drain), feed, path)
    finally:
        shutil.rmtree(folder)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the traces and the picture")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    on_gpu = bool(devices()) and not arguments.smoke
    sizes = ON_GPU if on_gpu else ON_CPU
    step = Step(sizes, "cuda" if on_gpu else "cpu")
    if not on_gpu:
        path = record("overlap", on_cpu, sizes, step, arguments.out, "host")
        draw([Panel("Feed, a step on the CPU, Drain", read(path))], arguments.out / "overlap.svg")
        return
    usual = record("overlap-usual", as_usual, sizes, step, arguments.out, "host")
    ours = record("overlap", with_interlock, sizes, step, arguments.out, "cuda")
    panels = [
        Panel("As usual: batch.to(device), step, result.cpu()", read(usual)),
        Panel("Interlock: the same loop with Feed and Drain", read(ours)),
    ]
    draw(panels, arguments.out / "overlap.svg")
    print(f"wrote {arguments.out / 'overlap.svg'}")


if __name__ == "__main__":
    main()
