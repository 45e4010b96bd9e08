"""What it costs a PyTorch program to get its outputs off the GPU.

    python benchmarks/gpu/torch_drain.py [--save] [--only interlock] [--output-mb 300] [--step-us 10000]

A step is bf16 matrix products and one kernel that writes the float32 output of the step. The base drops it. All
variants run in one process, in turn, in each of several rounds; `x no output` is the median of the ratios within a
round. A round ends when its last output is where the variant brings it: in host memory, or for Interlock given to the
sink; for `npy:` it ends when everything is committed, so that the storage is part of the figure. The speed of that
storage is measured in the same run by writing and syncing files of the size of a shard.

The null sink throws landed rows away. What `non_blocking=True` copies into is pinned: memory of torch's caching
allocator, or one buffer that is used again after the wait: the best that a program without a side stream can do.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections import deque
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _common import (
    Outcome,
    Report,
    Variant,
    arguments,
    devices,
    one_by_one,
    pinned_link_gb_per_s,
    require_cuda,
    rounds,
    wanted,
)

from interlock import Drain

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 60
SHARD_BYTES = 1 << 30
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - named to the reader as a storage that is no disk


class Problem:
    """The step: a state that the products go through, and an output made from it."""

    def __init__(self, output_bytes: int, step_s: float, width: int, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.device = torch.device(device)
        self.output_shape = (ROWS, output_bytes // 4 // ROWS)
        draw = partial(torch.randn, width, width, generator=generator)
        self.state = draw().to(self.device, torch.bfloat16)
        self.weights = (draw() / width**0.5).to(self.device, torch.bfloat16)
        self.products = 1
        self.products = self._calibrated(step_s)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output of a step."""
        return self.output_shape[0] * self.output_shape[1] * 4

    def step(self, number: int) -> torch.Tensor:
        """Queue a step; return its output, whose rows begin with the step's number."""
        state = self.state
        for _ in range(self.products):
            state = state @ self.weights
        output = torch.empty(self.output_shape, device=self.device)
        output[:] = state.flatten()[0].float()
        output[:, 0] = number
        return output

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _calibrated(self, step_s: float) -> int:
        times = []
        for self.products in (8, 40):
            self.step(0)
            self.wait()
            began = time.perf_counter()
            for number in range(5):
                self.step(number)
            self.wait()
            times.append((time.perf_counter() - began) / 5)
        each = max((times[1] - times[0]) / 32, 1e-7)
        return max(1, round(8 + (step_s - times[0]) / each))


class Loop:
    """Steps whose outputs go to `take`; `end` returns when all are where they should be."""

    def __init__(
        self, problem: Problem, take: Callable[[int, torch.Tensor], object], end: Callable[[], object] | None = None
    ) -> None:
        self.problem = problem
        self.take = take
        self.end = end or problem.wait
        self.numbers = count()

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        with torch.inference_mode():
            for _ in range(steps):
                number = next(self.numbers)
                self.take(number, self.problem.step(number))
        self.end()

    def close(self) -> None:
        """As in `Variant`."""


def expect(number: int, landed: Any) -> None:
    """Look at a first value of landed rows, as whoever writes them would."""
    if float(landed[0, 0]) != number:
        raise AssertionError(f"step {number} arrived as {float(landed[0, 0])}")


def synchronised(problem: Problem, *, reuse: bool) -> Variant:
    """`non_blocking=True` and a wait for the device, the cure that the public report ended with."""
    pinned = problem.device.type == "cuda"
    buffer = torch.empty(problem.output_shape, pin_memory=pinned) if reuse else None

    def take(number: int, output: torch.Tensor) -> None:
        landed = output.to("cpu", non_blocking=True) if buffer is None else buffer.copy_(output, non_blocking=True)
        problem.wait()
        expect(number, landed)

    return Loop(problem, take)


class SideStream(Loop):
    """What a careful programmer writes by hand for this one loop: a side stream, two pinned buffers, events."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, self.copy, self.finish)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch publishes no type for it
        self.free = deque(torch.empty(problem.output_shape, pin_memory=True) for _ in range(2))
        self.queued: deque[tuple[int, torch.Tensor, torch.cuda.Event]] = deque()

    def copy(self, number: int, output: torch.Tensor) -> None:
        """Queue the copy of an output, after waiting for the copy before the last."""
        if not self.free:
            self.land()
        self.stream.wait_stream(torch.cuda.current_stream())
        landed = self.free.popleft()
        with torch.cuda.stream(self.stream):
            landed.copy_(output, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call] # as above
            event.record()
        output.record_stream(self.stream)
        self.queued.append((number, landed, event))

    def land(self) -> None:
        """Wait for the oldest copy."""
        number, landed, event = self.queued.popleft()
        event.synchronize()
        expect(number, landed)
        self.free.append(landed)

    def finish(self) -> None:
        """Wait for all copies."""
        while self.queued:
            self.land()


class LightningLoop:
    """`Trainer.predict` with a writer that calls `.cpu()`, as Lightning's own documentation has it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.began_s = 0.0
        self.module, self.trainer = lightning(problem, self.started)

    def started(self) -> None:
        """Note when the first batch began: setting up the loop is not what is measured."""
        self.began_s = time.perf_counter()

    def run(self, steps: int) -> float:
        """As in `Variant`."""
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(steps)))
        self.trainer.predict(self.module, loader, return_predictions=False)
        self.problem.wait()
        return time.perf_counter() - self.began_s

    def close(self) -> None:
        """As in `Variant`."""


def lightning(problem: Problem, started: Callable[[], None]) -> tuple[Any, Any]:
    """Return a module and a trainer that predict with `problem`'s step."""
    import pytorch_lightning as pl  # noqa: PLC0415 - a peer, which may be missing
    from pytorch_lightning.callbacks import BasePredictionWriter  # noqa: PLC0415 - as above

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*|lightning.*")

    class Module(pl.LightningModule):
        def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ARG002
            if batch_idx == 0:
                started()

        def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            return problem.step(batch_idx)

    class Writer(BasePredictionWriter):
        def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, *where: Any) -> None:  # noqa: ARG002
            expect(where[2], prediction.cpu())

    trainer = pl.Trainer(
        accelerator="gpu" if problem.device.type == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Writer(write_interval="batch")],
    )
    return Module(), trainer


class Interlock(Loop):
    """`Drain.put` in the loop; a round ends with `flush`, which commits."""

    def __init__(self, problem: Problem, folder: Path | None = None) -> None:
        super().__init__(problem, self.put, self.flush)
        self.folder = folder and tempfile.TemporaryDirectory(prefix="interlock-benchmark-", dir=folder)
        sink = f"npy:{self.folder.name}/out" if self.folder else "null:"
        self.drain = Drain(sink, shard_bytes=SHARD_BYTES, commit_interval_s=3600)

    def put(self, number: int, output: torch.Tensor) -> None:
        """Give the rows of a step to the drain."""
        self.drain.put(range(number * ROWS, (number + 1) * ROWS), {"output": output})

    def flush(self) -> None:
        """Wait until the sink has everything."""
        self.drain.flush()

    def close(self) -> None:
        """As in `Variant`."""
        self.drain.close()
        if self.folder:
            self.folder.cleanup()


def syncs(variant: Variant, outcome: Outcome) -> None:
    if isinstance(variant, Interlock):
        done = variant.drain.statistics()
        outcome.extra = {"host syncs": done.host_syncs, "wait_slot_s": done.wait_slot_s, "copy_s": done.copy_s}
        outcome.extra.update({f"{phase}_s": seconds for phase, seconds in done.of_writers.items()})
        outcome.note = f"{done.host_syncs} host syncs"


def storage_gb_per_s(folder: Path, size_bytes: int) -> float:
    """Return how fast one thread writes files of a shard's size there and syncs them."""
    piece = os.urandom(min(size_bytes, 16 << 20))
    pieces = max(1, min(size_bytes, SHARD_BYTES) // len(piece))
    files = max(1, size_bytes // (pieces * len(piece)))
    with tempfile.TemporaryDirectory(prefix="interlock-benchmark-", dir=folder) as place:
        began = time.perf_counter()
        for number in range(files):
            with (Path(place) / str(number)).open("wb", buffering=0) as file:
                for _ in range(pieces):
                    file.write(piece)
                os.fsync(file.fileno())
        return files * pieces * len(piece) / (time.perf_counter() - began) / 1e9


def makers(problem: Problem) -> dict[str, Callable[[], Variant]]:
    return {
        "no output": lambda: Loop(problem, lambda *_: None),
        ".cpu()": lambda: Loop(problem, lambda number, output: expect(number, output.cpu())),
        "non_blocking + synchronize": lambda: synchronised(problem, reuse=False),
        "non_blocking + synchronize, own pinned buffer": lambda: synchronised(problem, reuse=True),
        "Lightning predict, writer calls .cpu()": lambda: LightningLoop(problem),
        "side stream by hand, two pinned buffers": lambda: SideStream(problem),
        "Interlock, null sink": lambda: Interlock(problem),
    }


def storages(disk: Path) -> dict[str, Path]:
    found = {"Interlock, npy: on the disk": disk}
    if SHARED_MEMORY.is_dir():
        found["Interlock, npy: in /dev/shm"] = SHARED_MEMORY
    return found


def main() -> None:
    given = arguments(
        __doc__,
        output_mb=(300, "size of the output of a step"),
        step_us=(10_000, "length of a step without output"),
        rounds=(3, "rounds"),
        steps=(60, "steps that are timed together; the slow variants take a tenth"),
        npy_steps=(14, "steps that are timed together with npy:"),
    )
    width, device = 4096, "cuda" if devices() else "cpu"
    if given.smoke:
        given.output_mb, given.step_us, given.rounds, given.steps, given.npy_steps, width = 1, 1000, 1, 5, 5, 64
    else:
        require_cuda()
    disk = Path.cwd()
    problem = Problem(given.output_mb * 10**6, given.step_us / 1e6, width, device)
    table = makers(problem)
    chosen = dict.fromkeys(["no output", *wanted(list(table), given.only)])
    outcomes = rounds(
        {name: table[name] for name in chosen},
        count=given.rounds,
        steps=given.steps,
        warm=10,
        slow=[name for name in chosen if ".cpu()" in name or "synchronize" in name],
        seconds=given.seconds,
        finish=syncs,
    )
    report = Report("gpu-torch-drain", "torch drain", ("variant", "ms a step", "GB/s", "x no output", "note"))
    report.lines.append(
        f"{problem.output_bytes / 1e6:.0f} MB of output a step; {problem.products} products of {width} x {width} a step"
    )
    if device == "cuda":
        link = report.figures["link_gb_per_s"] = pinned_link_gb_per_s("d2h", problem.output_bytes)
        report.lines.append(f"pinned link: {link:.1f} GB/s; the step without output leaves room for its own rate below")
    base = outcomes[0]
    for name in wanted(list(storages(disk)), given.only):
        outcomes.append(_to_storage(report, problem, name, storages(disk)[name], given.npy_steps))
    for outcome in outcomes:
        _add(report, outcome, base, problem.output_bytes, goal=not given.smoke)
    report.keep(outcomes)
    report.show(save=given.save)


def _to_storage(report: Report, problem: Problem, name: str, folder: Path, steps: int) -> Outcome:
    """Run `npy:` there, and say how fast the storage is by itself."""
    make = partial(Interlock, problem, folder)
    outcome = one_by_one({name: make}, count=1, steps=steps, warm=0, finish=syncs)[0]
    if outcome.seconds:
        alone = storage_gb_per_s(folder, steps * problem.output_bytes)
        reached = problem.output_bytes / outcome.median_s / 1e9
        outcome.extra["storage_gb_per_s"] = alone
        parts = ", ".join(f"{part} {outcome.extra[part + '_s']:.1f} s" for part in ("encode", "write", "fsync", "hash"))
        report.lines.append(
            f"{name}: {reached:.2f} GB/s committed; one thread writes and syncs {alone:.2f} GB/s there; {parts}"
        )
    return outcome


def _add(report: Report, outcome: Outcome, base: Outcome, output_bytes: int, *, goal: bool) -> None:
    if not outcome.seconds:
        report.rows.append((outcome.name, "", "", "", outcome.note))
        return
    ratio = outcome.times(base) if len(outcome.seconds) == len(base.seconds) else outcome.median_s / base.median_s
    speed = f"{output_bytes / outcome.median_s / 1e9:.1f}" if outcome is not base else ""
    outcome.extra["x no output"] = ratio
    report.rows.append((outcome.name, f"{outcome.median_s * 1e3:.2f}", speed, f"{ratio:.3f}", outcome.note))
    if goal and outcome.name == "Interlock, null sink":
        report.goal("Interlock, null sink / no output", ratio, 1.05, at_most=True)


if __name__ == "__main__":
    main()
