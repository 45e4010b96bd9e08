"""How fast samples from memory reach a PyTorch program on the GPU.

    python benchmarks/gpu/torch_feed.py [--save] [--only feed,spdl] [--batch 64]

Samples are 512 KiB of float32, given by a function of the sample's number, out of a pool of 1 GiB in host memory. Each
delivered batch is read once on the device. Every loader runs with several numbers of workers, Feed also
with two depths, for three windows on end behind a warm-up that is as long as what it keeps ready; its best setting
counts. What limits them is measured in the same run: copies of pinned memory to the device, and of samples in host
memory on as many threads.

"Feed, in slots" has a source that writes nothing into slots that were filled before: what remains is the hand-over.
"""

from __future__ import annotations

import importlib
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _common import Outcome, Report, Variant, arguments, devices, one_by_one, pinned_link_gb_per_s, require_cuda, wanted

from interlock import Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from interlock import SampleInfo

SAMPLE_FLOATS = 131072  # 512 KiB
SAMPLE_BYTES = SAMPLE_FLOATS * 4
MANY = 10**7
BOUND = 0.8  # who reaches this part of a limit is bound by it


class Problem:
    """Samples in memory, and where they shall go."""

    def __init__(self, batch: int, samples: int, device: str) -> None:
        self.batch = batch
        self.device = device
        self.pool = np.empty((samples, SAMPLE_FLOATS), np.float32)
        self.pool[:] = np.arange(samples, dtype=np.float32)[:, None] % 97

    def sample(self, number: int) -> npt.NDArray[np.float32]:
        """Return a view of a sample; nothing is copied."""
        sample: npt.NDArray[np.float32] = self.pool[number % len(self.pool)]
        return sample


@dataclass(frozen=True)
class Setting:
    """How a loader is run; a depth of 0 is the loader's own."""

    workers: int
    depth: int

    def __str__(self) -> str:
        return f"{self.workers} workers" + (f", depth {self.depth}" if self.depth else "")


class Loop:
    """Batches from an endless iterator, each read once where it was delivered."""

    def __init__(self, problem: Problem, batches: Iterator[Any], close: Callable[[], None] = lambda: None) -> None:
        self.problem = problem
        self.batches = batches
        self.close = close
        self.total = torch.zeros((), device=problem.device)
        first = next(batches)
        if first.device.type != problem.device or tuple(first.shape) != (problem.batch, SAMPLE_FLOATS):
            raise AssertionError(f"a batch is {tuple(first.shape)} on {first.device}")
        if not torch.equal(first, first[:, :1].expand_as(first)):
            raise AssertionError("a batch has a sample that was never sent")

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        for _ in range(steps):
            self.total += next(self.batches).amax()
        self.total.item()


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """The samples, as a DataLoader wants them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.problem.sample(index))


def dataloader(problem: Problem, workers: int) -> Variant:
    """Worker processes, pinned memory, a copy that the host does not wait for."""
    pinned = problem.device == "cuda"
    loader = torch.utils.data.DataLoader(Rows(problem), problem.batch, num_workers=workers, pin_memory=pinned)
    batches = iter(loader)
    return Loop(problem, (batch.to(problem.device, non_blocking=True) for batch in batches), partial(_end, batches))


def _end(batches: Any) -> None:
    """Stop the workers of a DataLoader in the middle of its epoch; it has no public way."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()  # noqa: SLF001 - see above


def spdl(problem: Problem, workers: int) -> Variant:
    """Samples and batches on threads, and SPDL's own transfer on a thread of its own, as its documentation has it."""
    if problem.device != "cuda":
        raise RuntimeError("its transfer needs a CUDA device")
    pipeline = importlib.import_module("spdl.pipeline")
    transfer = importlib.import_module("spdl.io").transfer_tensor_h2d

    def load(first: int) -> torch.Tensor:
        return torch.stack([torch.from_numpy(problem.sample(first + row)) for row in range(problem.batch)])

    mover = ThreadPoolExecutor(1)
    built = (
        pipeline.PipelineBuilder()
        .add_source(count(0, problem.batch))
        .pipe(load, concurrency=workers, output_order="input")
        .pipe(transfer, executor=mover)
        .add_sink(3)
        .build(num_threads=workers, max_failures=0)
    )
    built.start()

    def close() -> None:
        built.stop()
        mover.shutdown()

    return Loop(problem, iter(built), close)


class InSlots:
    """A source that fills a piece of memory once and then leaves it as it is."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.filled: set[int] = set()

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        return self.problem.sample(index)

    def read_into(self, indices: Sequence[int], out: npt.NDArray[np.float32]) -> None:
        """As in `SupportsReadInto`."""
        address = out.ctypes.data
        if address not in self.filled:
            self.filled.add(address)
            for row, index in enumerate(indices):
                out[row] = self.problem.sample(index)


class FeedLoop(Loop):
    """`Feed`, and how often it made the host wait."""

    def __init__(self, problem: Problem, source: Any, setting: Setting) -> None:
        self.feed = Feed(
            source,
            batch_size=problem.batch,
            to="torch",
            device="cuda" if problem.device == "cuda" else "host",
            workers=setting.workers,
            depth=setting.depth,
        )
        super().__init__(problem, iter(self.feed), self.feed.close)


def feed(problem: Problem, setting: Setting) -> Variant:
    def sample(info: SampleInfo) -> npt.NDArray[np.float32]:
        return problem.sample(info.idx_in_epoch)

    return FeedLoop(problem, sample, setting)


def syncs(variant: Variant, outcome: Outcome) -> None:
    if isinstance(variant, FeedLoop):
        outcome.extra["host syncs"] = variant.feed.statistics().host_syncs


def host_copy_gb_per_s(problem: Problem, workers: int, batches: int) -> float:
    """Return how fast that many threads copy samples into memory that was touched before, with nothing else to do."""
    targets = [np.ones((problem.batch, SAMPLE_FLOATS), np.float32) for _ in range(8)]

    def copy(first: int) -> None:
        for number in range(first, batches * problem.batch, workers):
            batch, row = divmod(number, problem.batch)
            np.copyto(targets[batch % 8][row], problem.sample(number))

    with ThreadPoolExecutor(workers) as pool:
        began = time.perf_counter()
        list(pool.map(copy, range(workers)))
    return batches * problem.batch * SAMPLE_BYTES / (time.perf_counter() - began) / 1e9


def makers(problem: Problem) -> dict[str, Callable[[Setting], Variant]]:
    return {
        "DataLoader, pinned, non_blocking": lambda setting: dataloader(problem, setting.workers),
        "SPDL, threads and its transfer": lambda setting: spdl(problem, setting.workers),
        "Feed, threads": lambda setting: feed(problem, setting),
        "Feed, in slots": lambda setting: FeedLoop(problem, InSlots(problem), setting),
    }


def measure(name: str, make: Callable[[Setting], Variant], settings: Sequence[Setting], given: Any) -> list[Outcome]:
    """Return what each setting gave, the best first."""
    outcomes = []
    for setting in settings:
        outcomes += one_by_one(
            {f"{name}: {setting}": partial(make, setting)},
            count=given.rounds,
            steps=given.steps,
            warm=given.steps // 2,
            seconds=given.seconds,
            finish=syncs,
        )
        if not outcomes[-1].seconds:
            break
        outcomes[-1].extra["setting"] = str(setting)
    return sorted(outcomes, key=lambda outcome: outcome.median_s if outcome.seconds else float("inf"))


def main() -> None:
    given = arguments(
        __doc__,
        batch=(64, "samples in a batch"),
        steps=(60, "batches of one window"),
        rounds=(3, "windows"),
        pool=(2048, "samples in memory"),
    )
    on_gpu = devices() > 0
    workers: Sequence[int] = (4, 8, 14)
    if given.smoke:
        given.batch, given.steps, given.rounds, given.pool, workers = 2, 3, 1, 8, (2,)
    else:
        require_cuda()
    warnings.filterwarnings("ignore", message=".*suggested max number of worker.*")
    problem = Problem(given.batch, given.pool, "cuda" if on_gpu else "cpu")
    batch_bytes = given.batch * SAMPLE_BYTES
    link = pinned_link_gb_per_s("h2d", batch_bytes) if on_gpu else None
    host = {number: host_copy_gb_per_s(problem, number, max(4, given.steps)) for number in workers}
    table = makers(problem)
    outcomes = {}
    for name in wanted(list(table), given.only):
        depths = (4, 8) if name.startswith("Feed") else (0,)
        settings = [Setting(number, depth) for number in workers for depth in depths]
        outcomes[name] = measure(name, table[name], settings, given)
    report = _report(outcomes, batch_bytes, host, link)
    if not given.smoke:
        _goals(report, outcomes, max(host.values()), link)
    report.show(save=given.save)


def _report(outcomes: dict[str, list[Outcome]], batch_bytes: int, host: dict[int, float], link: float | None) -> Report:
    columns = ("variant", "GB/s", "x DataLoader", "of the link", "note")
    report = Report("gpu-torch-feed", "torch feed", columns)
    base: float | None = None
    for name, found in outcomes.items():
        if not found[0].seconds:
            report.rows.append((name, "", "", "", found[0].note))
            continue
        for outcome in found:
            if outcome.seconds:
                outcome.extra["gb_per_s"] = batch_bytes / outcome.median_s / 1e9
        speed = found[0].extra["gb_per_s"]
        base = speed if name.startswith("DataLoader") else base
        share, ratio = f"{speed / link:.2f}" if link else "", f"{speed / base:.1f}" if base else ""
        report.rows.append((name, f"{speed:.2f}", ratio, share, _note(found)))
    threads = ", ".join(f"{number} threads {speed:.1f} GB/s" for number, speed in host.items())
    report.lines.append(f"batches of {batch_bytes >> 20} MiB; host copies alone: {threads}")
    if link:
        report.lines.append(f"pinned link: {link:.1f} GB/s")
    report.figures.update(host_copy_gb_per_s=host, link_gb_per_s=link, batch_bytes=batch_bytes)
    report.keep([outcome for found in outcomes.values() for outcome in found])
    return report


def _note(found: list[Outcome]) -> str:
    """Say what each setting reached, and how often the host waited in the best."""
    note = "; ".join(f"{one.extra['setting']}: {one.extra['gb_per_s']:.1f}" for one in found if one.seconds)
    waits = found[0].extra.get("host syncs")
    return note if waits is None else f"{note}; {waits} host syncs"


def _goals(report: Report, outcomes: dict[str, list[Outcome]], host: float, link: float | None) -> None:
    speeds = {name: found[0].extra.get("gb_per_s") for name, found in outcomes.items()}
    peer, threads, slots = (
        speeds.get(name) for name in ("DataLoader, pinned, non_blocking", "Feed, threads", "Feed, in slots")
    )
    if threads and link:
        bound = "copies in host memory bound it" if threads / host > BOUND else "its threads wait for the interpreter"
        report.lines.append(
            f"Feed with threads reaches {threads / host:.2f} of what bare threads copy and {threads / link:.2f} of the "
            f"link: {bound}"
        )
    if peer and threads:
        report.goal("Feed, threads / DataLoader", threads / peer, 10, at_most=False)
    if link and slots:
        report.goal("Feed, in slots / pinned link", slots / link, 0.9, at_most=False)


if __name__ == "__main__":
    main()
