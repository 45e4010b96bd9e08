"""Large samples from memory to NumPy, torch and JAX: bytes a second that each consumer gets.

    python benchmarks/feed/consumers.py [--save] [--quick] [--only jax] [--seconds 0]

Samples are 512 KiB of float32, copied by a sample function out of memory that no cache holds, 64 to a batch. The
consumer reads a number of every page of each batch where it was delivered, and waits for the result one batch later.

With a CUDA device torch and JAX get their batches there: from Feed, whose threads or processes write into pinned slots,
and from DataLoader, which pins (for torch) and copies without waiting; NumPy stays on the host. Feed's function fills
the row that it is given (`out=`); DataLoader's returns a view, which collation copies. Workers are two; on a machine
with many cores four and eight; the best counts. Medians of five rounds in turn, each loader in a process of its own.
"""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from _contest import Contest, Loop, Outcome, Report, devices, feed_arguments, other_settings
from _peers import Filled, Mapped, dataloader_end, first_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

FLOATS = 131_072
PAGE_FLOATS = 1024
POOL = 192
BATCH = 64
BATCH_BYTES = BATCH * FLOATS * 4
MANY_CORES = 8


@cache
def pool() -> npt.NDArray[np.float32]:
    """Return the samples; every process has its own, those that were forked share it."""
    made = np.empty((POOL, FLOATS), np.float32)
    made[:] = np.arange(POOL, dtype=np.float32)[:, None]
    return made


@dataclass(frozen=True)
class Rows:
    """Samples out of the pool."""

    batch: int = BATCH

    def sample(self, index: int) -> npt.NDArray[np.float32]:
        """As in `Task`: a view."""
        found: npt.NDArray[np.float32] = pool()[index % POOL]
        return found

    def fill(self, index: int, out: npt.NDArray[Any]) -> None:
        """As in `Task`."""
        np.copyto(out, pool()[index % POOL])


class Reader:
    """Reads a number of every page, in the consumer's own way, and is one batch behind with waiting for the result."""

    def __init__(self, consumer: str) -> None:
        self._last: Any = 0.0
        self._read: Callable[[Any], Any] = _of_every_page
        if consumer == "jax":
            self._read = importlib.import_module("jax").jit(_of_every_page)

    def use(self, batch: Any) -> None:
        """Read a batch."""
        before, self._last = self._last, self._read(batch)
        float(before)

    def settle(self) -> None:
        """Wait for the last one."""
        float(self._last)


def _of_every_page(batch: Any) -> Any:
    return batch[:, ::PAGE_FLOATS].sum()


def feed(consumer: str, device: str, workers: int | str, depth: int) -> Loop:
    from interlock import Feed  # noqa: PLC0415 - each loader is imported in its own process alone

    task = Rows()
    made = Feed(Filled(task), batch_size=BATCH, to=consumer, device=device, workers=workers, depth=depth)
    reader = Reader(consumer)
    return Loop(iter(made), first_batch(task), made.close, reader.use, reader.settle)


def dataloader(consumer: str, device: str, workers: int) -> Loop:
    torch = importlib.import_module("torch")
    warnings.filterwarnings("ignore", message=".*suggested max number of worker.*")
    task = Rows()
    pool()
    pinned = consumer == "torch" and device == "cuda"
    loader = torch.utils.data.DataLoader(Mapped(task), BATCH, num_workers=workers, pin_memory=pinned)
    batches = iter(loader)

    def given(batch: Any) -> Any:
        if consumer == "numpy":
            return batch.numpy()
        if consumer == "torch":
            return batch.to(device, non_blocking=True) if pinned else batch
        return importlib.import_module("jax").device_put(batch.numpy())

    reader = Reader(consumer)
    return Loop(map(given, batches), first_batch(task), partial(dataloader_end, batches), reader.use, reader.settle)


def makers(workers: tuple[int, ...], *, on_gpu: bool) -> dict[str, dict[str, partial[Any]]]:
    """Return the loaders and their settings."""
    made: dict[str, dict[str, partial[Any]]] = {}
    for consumer in ("NumPy", "torch", "JAX"):
        to = {"consumer": consumer.lower(), "device": "cuda" if on_gpu and consumer != "NumPy" else "host"}
        made[f"DataLoader to {consumer}"] = {
            f"{number} workers": partial(dataloader, **to, workers=number) for number in workers
        }
        for kind, apart in (("threads", False), ("processes", True)):
            made[f"Feed, {kind} to {consumer}"] = {
                f"{number} workers": partial(feed, **to, workers=f"{kind}:{number}" if apart else number, depth=4)
                for number in workers
            }
    return made


def gb_per_s(outcome: Outcome) -> float:
    return BATCH_BYTES / outcome.median_s / 1e9


def report_of(contest: Contest, *, on_gpu: bool) -> Report:
    place = "torch and JAX on the GPU" if on_gpu else "on the CPU"
    columns = ("loader and consumer", "GB/s", "x DataLoader", "CPU ms a batch", "note")
    report = Report(f"feed-consumers{'-gpu' if on_gpu else ''}", f"Samples of 512 KiB to consumers, {place}", columns)
    best = contest.best()
    for name, found in contest.outcomes.items():
        note = other_settings(found, lambda one: f"{gb_per_s(one):.2f}")
        if name not in best:
            report.rows.append((name, "", "", "", note))
            continue
        base = best.get(f"DataLoader to {name.rpartition(' ')[2]}")
        ratio = base.median_s / found[0].median_s if base else None
        used = found[0].extra["used_s"] * 1e3
        shown = "" if ratio is None else f"{ratio:.1f}"
        report.rows.append((name, f"{gb_per_s(found[0]):.2f}", shown, f"{used:.1f}", note))
        if ratio is not None and name.startswith("Feed"):
            report.goal(f"{name} / DataLoader", ratio, 1, at_most=False)
    contest.keep(report)
    return report


def main() -> None:
    given = feed_arguments(__doc__, steps=(40, "batches of one window"))
    on_gpu = devices() > 0
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    given.steps = 6 if given.quick else given.steps
    workers = (4, 8) if (os.cpu_count() or 1) >= MANY_CORES else (2,)
    contest = Contest(makers(workers, on_gpu=on_gpu))
    contest.hold(given, count=1 if given.quick else 5, steps=given.steps, warm=8, together=on_gpu)
    report = report_of(contest, on_gpu=on_gpu)
    report.show(save=given.save)


if __name__ == "__main__":
    main()
