"""How many batches arrive wrong when the device is slow, batches are kept and memory is scarce.

    python benchmarks/gpu/stress.py [--save] [--only interlock,spdl] [--batches 10000] [--jobs 8]

Batch `n` holds the number `n` everywhere. Its consumer looks at it on the device, late: before each look the device is
busy, now and then for milliseconds, or its stream is held at a gate for some batches (JAX shows nobody its stream, and
is only kept busy); the host never waits for it. Between looks memory is allocated, filled and dropped again. In the
runs "kept", one batch of three is kept for a while and looked at once more. A drain's batches are computed on the
device and, in the runs "kept", changed in place behind the put (JAX: deleted); what was written is read at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from _common import Report, arguments, devices, require_cuda, wanted
from _machines import CUDA, MACHINES, ROWS, Machine, Plan, Unkind

import interlock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

HOW = ("dropped", "kept")
PUT_FLOATS = 4096  # 16 KiB: what a drain's runs write fits into memory
LONGEST_S = 95
"""A variant that takes longer is given up."""


def feed_run(plan: Plan, to: str, batches: Callable[[Plan, Machine], Iterator[Any]]) -> int:
    """Take all batches; return how many were wrong."""
    machine = MACHINES[to](plan.batches)
    unkind = Unkind(plan, machine)
    number = -1
    for number, batch in enumerate(batches(plan, machine)):
        unkind.before()
        machine.look(number, batch)
        unkind.after(number, batch, machine.look)
        del batch
        if number + 1 == plan.batches:
            break
    unkind.open()
    for entry in unkind.kept:
        machine.look(*entry)
    if number + 1 != plan.batches:
        raise AssertionError(f"only {number + 1} of {plan.batches} batches came")
    return machine.wrong()


def recycled_pinned(plan: Plan, machine: Machine) -> Iterator[Any]:
    """One pinned buffer for all batches, copied without blocking: the seed program, in torch."""
    del machine
    torch = importlib.import_module("torch")
    buffer = torch.empty((ROWS, plan.floats), pin_memory=True)
    for number in range(plan.batches):
        buffer.fill_(number)
        yield buffer.to("cuda", non_blocking=True)


def recycled_numpy(plan: Plan, machine: Machine) -> Iterator[Any]:
    """One NumPy buffer for all batches, given to `device_put` two batches ahead: the seed program, in JAX.

    Source: the order of calls is that of `flax.jax_utils.prefetch_to_device`.
    """
    del machine
    jax = importlib.import_module("jax")
    buffer = np.empty((ROWS, plan.floats), np.float32)
    ahead: list[Any] = []
    for number in range(plan.batches):
        buffer.fill(number)
        ahead.append(jax.device_put(buffer))
        if len(ahead) > 1:
            yield ahead.pop(0)
    yield from ahead


def two_streams(plan: Plan, machine: Machine) -> Iterator[Any]:
    """A prefetcher on a stream of its own, as in many training scripts: it waits for the copy, and records no stream.

    Source: the data prefetcher of NVIDIA apex's imagenet example and its many copies.
    """
    del machine
    torch = importlib.import_module("torch")
    stream = torch.cuda.Stream()

    def preload(number: int) -> Any:
        batch = torch.full((ROWS, plan.floats), float(number)).pin_memory()
        with torch.cuda.stream(stream):
            return batch.cuda(non_blocking=True)

    upcoming = preload(0)
    for number in range(plan.batches):
        torch.cuda.current_stream().wait_stream(stream)
        batch = upcoming
        upcoming = preload(number + 1)
        yield batch
        del batch


def spdl(plan: Plan, machine: Machine) -> Iterator[Any]:
    """SPDL's transfer on a thread of its own, which remembers four batches; the consumer's queued work is longer."""
    del machine
    torch = importlib.import_module("torch")
    transfer = importlib.import_module("spdl.io").transfer_tensor_h2d
    transfer(torch.zeros(1))
    with ThreadPoolExecutor(1) as thread:
        ahead: list[Any] = []
        for number in range(plan.batches):
            ahead.append(thread.submit(transfer, torch.full((ROWS, plan.floats), float(number)), num_caches=4))
            if len(ahead) > 2:
                yield ahead.pop(0).result()
        while ahead:
            yield ahead.pop(0).result()


def dali(to: str) -> Callable[[Plan, Machine], Iterator[Any]]:
    """Return DALI's iterator for a framework, with the executor that recycles outputs: it hands over copies."""

    def batches(plan: Plan, machine: Machine) -> Iterator[Any]:
        del machine
        module = importlib.import_module("nvidia.dali")
        plugin = importlib.import_module(f"nvidia.dali.plugin.{'pytorch' if to == 'torch' else to}")
        pipeline = module.Pipeline(
            batch_size=ROWS, num_threads=2, device_id=0, exec_dynamic=False, prefetch_queue_depth=2
        )

        def sample(info: Any) -> npt.NDArray[np.float32]:
            return np.full(plan.floats, info.iteration, np.float32)

        with pipeline:
            pipeline.set_outputs(module.fn.external_source(sample, batch=False, dtype=module.types.FLOAT).gpu())
        for entry in plugin.DALIGenericIterator([pipeline], ["batch"]):
            yield (entry[0] if isinstance(entry, list) else entry)["batch"]

    return batches


class Numbers:
    """A source whose batch `n` holds `n` everywhere."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __len__(self) -> int:
        return self.plan.batches * ROWS

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        return np.full(self.plan.floats, index // ROWS, np.float32)

    def read_into(self, indices: Sequence[int], out: npt.NDArray[np.float32]) -> None:
        """As in `SupportsReadInto`."""
        out[:] = np.asarray(indices, np.float32)[:, None] // ROWS


def feed(to: Any, **options: Any) -> Callable[[Plan, Machine], Iterator[Any]]:
    """Return Interlock's feed."""

    def batches(plan: Plan, machine: Machine) -> Iterator[Any]:
        del machine
        budget = 64 * ROWS * plan.floats * 4
        with interlock.Feed(Numbers(plan), batch_size=ROWS, to=to, workers=2, budget_bytes=budget, **options) as made:
            yield from made
            if CUDA and (syncs := made.statistics().host_syncs):
                raise AssertionError(f"the feed made the host wait {syncs} times")

    return batches


def put_run(plan: Plan, to: str, sink: Callable[[Plan, Path], Any]) -> int:
    """Compute batches on the device and write them; return how many are wrong in what was written."""
    machine = MACHINES[to](plan.batches)
    unkind = Unkind(plan, machine)
    with tempfile.TemporaryDirectory() as folder:
        with sink(plan, Path(folder)) as writer:
            for number in range(plan.batches):
                unkind.before()
                batch = machine.make(number, ROWS, PUT_FLOATS // ROWS)
                writer.put(np.arange(number * ROWS, (number + 1) * ROWS), batch)
                if plan.keep:
                    machine.change(batch)
            unkind.open()
        found: int = writer.wrong()
        return found


class IntoDrain:
    """Interlock's drain, and what it wrote."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder / "out"
        self.drain = interlock.Drain(f"npy:{self.folder}", budget_bytes=64 << 20)
        self.put = self.drain.put

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.drain.close()

    def wrong(self) -> int:
        """Return how many batches are missing or not what they should be."""
        right = np.zeros(self.plan.batches, np.int64)
        for shard in self.folder.glob("part-*"):
            numbers = np.load(shard / "id.npy") // ROWS
            held = np.load(shard / "output.npy", mmap_mode="r")
            np.add.at(right, numbers, (held == numbers[:, None]).all(axis=1))
        return int((right != ROWS).sum())


class IntoList:
    """The seed program's way out: copies to the host that are not waited for, and a thread that writes."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.path = folder / "out.bin"
        self.plan = plan
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.queue.put(None)
        self.thread.join()

    def put(self, ids: npt.NDArray[np.int64], batch: Any) -> None:
        """Move a batch to the host, and have it written."""
        del ids
        self.queue.put(batch.to("cpu", non_blocking=True))

    def _write(self) -> None:
        with self.path.open("wb") as file:
            while (batch := self.queue.get()) is not None:
                file.write(batch.numpy().tobytes())

    def wrong(self) -> int:
        """As in `IntoDrain`."""
        held = np.memmap(self.path, np.float32, "r").reshape(self.plan.batches, -1)
        return int((held != np.arange(self.plan.batches, dtype=np.float32)[:, None]).any(axis=1).sum())


def runs() -> dict[str, Callable[[Plan], int]]:
    """Return what is compared: name to a function that returns how many batches were wrong."""
    table: dict[str, Callable[[Plan], int]] = {
        "torch: recycled pinned buffer + non_blocking": lambda plan: feed_run(plan, "torch", recycled_pinned),
        "JAX: recycled NumPy buffer + device_put ahead": lambda plan: feed_run(plan, "jax", recycled_numpy),
        "torch: prefetcher with two streams": lambda plan: feed_run(plan, "torch", two_streams),
        "SPDL: transfer_tensor_h2d with 4 caches": lambda plan: feed_run(plan, "torch", spdl),
        "DALI to torch: exec_dynamic=False": lambda plan: feed_run(plan, "torch", dali("torch")),
        "DALI to JAX: exec_dynamic=False": lambda plan: feed_run(plan, "jax", dali("jax")),
        "torch to host: non_blocking + writer thread": lambda plan: put_run(plan, "torch", IntoList),
    }
    for to in ("torch", "jax", "cupy"):
        table[f"Interlock feed: {to}"] = lambda plan, to=to: feed_run(plan, to, feed(to))  # type: ignore[misc]
    table["Interlock feed: zero_copy to jax"] = lambda plan: feed_run(plan, "jax", feed("jax", zero_copy=True))
    for to in ("torch", "jax", "cupy"):
        table[f"Interlock drain: {to}"] = lambda plan, to=to: put_run(plan, to, IntoDrain)  # type: ignore[misc]
    return table


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run a variant here, dropped and kept; return its figures."""
    figures: dict[str, Any] = {"name": name}
    began = time.perf_counter()
    for how in HOW:
        try:
            figures[how] = runs()[name](Plan(given.batches, given.kib * 256 // ROWS, how == "kept"))
        except Exception as error:  # noqa: BLE001 - a peer that is not installed, or fails, is a row of the table
            text = str(error).strip() or type(error).__name__
            figures["note"] = f"not run: {text.splitlines()[0][:120]}"
            break
    figures["seconds"] = round(time.perf_counter() - began, 1)
    return figures


def measure_apart(name: str, device: int, given: argparse.Namespace) -> dict[str, Any]:
    """Do the same in a process of its own, so that no variant lives in what another left."""
    options = ["--only", name, "--batches", str(given.batches), "--kib", str(given.kib), "--jobs", "0"]
    command = [sys.executable, __file__, *options, *(["--smoke"] if given.smoke else [])]
    try:
        environment = {"CUDA_VISIBLE_DEVICES": str(device), **os.environ}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_S, env=environment)
    except subprocess.TimeoutExpired:
        return {"name": name, "seconds": LONGEST_S, "note": f"not done in {LONGEST_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return {"name": name, "seconds": 0.0, "note": f"not run: {last[:120]}"}
    print(lines[-1], file=sys.stderr, flush=True)
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


def main() -> None:
    """Print a table and a line of JSON; end with 1 if a batch of Interlock's was wrong."""
    given = arguments(
        __doc__,
        batches=(10_000, "batches a run"),
        kib=(1024, "size of a fed batch"),
        jobs=(max(2, (os.cpu_count() or 1) // 2), "variants at a time, each in its own process; 0 runs them here"),
    )
    if given.smoke:
        given.batches, given.kib = min(given.batches, 60), 64
    else:
        require_cuda()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    names = wanted(list(runs()), given.only)
    if not given.jobs:
        for name in names:
            print(json.dumps(measure(name, given)), flush=True)
        return
    with ThreadPoolExecutor(given.jobs) as pool:
        spread = [number % max(1, devices()) for number in range(len(names))]
        found = list(pool.map(partial(measure_apart, given=given), names, spread))
    report = Report("gpu-stress", "corrupted batches under stress", ("variant", *HOW, "s", "note"))
    report.lines.append(f"{given.batches:,} batches a run; {given.kib} KiB to the device, 16 KiB from it")
    for figures in found:
        counts = [f"{figures[how]:,}" if how in figures else "" for how in HOW]
        report.rows.append((figures["name"], *counts, f"{figures['seconds']}", figures.get("note", "")))
    ours = [figures for figures in found if figures["name"].startswith("Interlock")]
    total = sum(figures.get(how, 0) for figures in ours for how in HOW)
    report.goal("corrupted batches of Interlock's", total, 0, at_most=True, unit="")
    report.figures["variants"] = found
    report.show(save=given.save)
    print(json.dumps({"batches": given.batches, "variants": found}))
    if total or (CUDA and any("note" in figures for figures in ours)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
