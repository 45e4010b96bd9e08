"""How many batches arrive wrong when the device is slow, batches are kept and memory is scarce.

    python benchmarks/gpu/stress.py [--save] [--only interlock,spdl] [--batches 10000] [--seconds 80] [--jobs 3]

Batch `n` holds the number `n` everywhere. Its consumer looks at it on the device, late: before each look the device is
busy, now and then for milliseconds, or its stream is held at a gate for some batches (JAX shows nobody its stream, and
is only kept busy); the host never waits for it. Between looks memory is allocated, filled and dropped again. In the
runs "kept", one batch of three is kept for a while and looked at once more. A drain's batches are computed on the
device and, in the runs "kept", changed in place behind the put (JAX: deleted); what was written is read at the end.

Variants run in processes of their own, few at a time: a device that many share gives each a turn only now and then.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from _common import BEGAN_S, Report, arguments, devices, require_cuda, wanted
from _machines import CUDA, MACHINES, ROWS, Machine, Plan, Unkind

import interlock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

HOW = ("dropped", "kept")
PUT_FLOATS = 4096  # 16 KiB: what a drain's runs write fits into memory
WARM = 8
END_S = 8
"""What a process is given for its last look and its end, within `--seconds`."""


def feed_run(plan: Plan, to: str, batches: Callable[[Plan, Machine], Iterator[Any]]) -> tuple[int, int]:
    """Take batches; return how many were wrong, and how many there were."""
    machine = MACHINES[to](plan.batches)
    unkind = Unkind(plan, machine)
    done = 0
    with closing(batches(plan, machine)) as iterator:  # type: ignore[type-var] # all are generators
        for number, batch in enumerate(iterator):
            unkind.before()
            machine.look(number, batch)
            unkind.after(number, batch, machine.look)
            done = number + 1
            del batch
            if done == plan.batches or plan.is_over():
                break
        unkind.open()
        for entry in unkind.kept:
            machine.look(*entry)
        wrong = machine.wrong()
    if done != plan.batches and not plan.is_over():
        raise AssertionError(f"only {done} of {plan.batches} batches came")
    return wrong, done


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
            try:
                yield from made
            finally:
                if CUDA and (syncs := made.statistics().host_syncs):
                    raise AssertionError(f"the feed made the host wait {syncs} times")

    return batches


def put_run(plan: Plan, to: str, sink: Callable[[Path], Any]) -> tuple[int, int]:
    """Compute batches on the device and write them; return how many are wrong in what was written, of how many."""
    machine = MACHINES[to](plan.batches)
    unkind = Unkind(plan, machine)
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        with sink(Path(folder)) as writer:
            for number in range(plan.batches):
                unkind.before()
                batch = machine.make(number, ROWS, PUT_FLOATS // ROWS)
                writer.put(np.arange(number * ROWS, (number + 1) * ROWS), batch)
                if plan.keep:
                    machine.change(batch)
                done = number + 1
                if plan.is_over():
                    break
            unkind.open()
        return writer.wrong(done), done


class IntoDrain:
    """Interlock's drain, and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "out"
        self.drain = interlock.Drain(f"npy:{self.folder}", budget_bytes=64 << 20)
        self.put = self.drain.put

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.drain.close()

    def wrong(self, batches: int) -> int:
        """Return how many of so many batches are missing or not what they should be."""
        right = np.zeros(batches, np.int64)
        for shard in self.folder.glob("part-*"):
            numbers = np.load(shard / "id.npy") // ROWS
            held = np.load(shard / "output.npy", mmap_mode="r")
            np.add.at(right, numbers, (held == numbers[:, None]).all(axis=1))
        return int((right != ROWS).sum())


class IntoList:
    """The seed program's way out: copies to the host that are not waited for, and a thread that writes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.bin"
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

    def wrong(self, batches: int) -> int:
        """As in `IntoDrain`."""
        held = np.memmap(self.path, np.float32, "r").reshape(batches, -1)
        return int((held != np.arange(batches, dtype=np.float32)[:, None]).any(axis=1).sum())


def runs() -> dict[str, Callable[[Plan], tuple[int, int]]]:
    """Return what is compared: name to a function that returns how many batches were wrong, and how many there were."""
    table: dict[str, Callable[[Plan], tuple[int, int]]] = {
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
    floats = given.kib * 256 // ROWS
    end = BEGAN_S + given.seconds - END_S if given.seconds else math.inf
    began = time.perf_counter()
    for how in ("warm", *HOW):
        now = time.perf_counter()
        until = (now + end) / 2 if how == "dropped" else end
        try:
            wrong, batches = runs()[name](Plan(WARM if how == "warm" else given.batches, floats, how == "kept", until))
        except Exception as error:  # noqa: BLE001 - a peer that is not installed, or fails, is a row of the table
            text = str(error).strip() or type(error).__name__
            figures["note"] = f"not run: {text.splitlines()[0][:120]}"
            break
        if how != "warm":  # imports and compilation
            figures[how] = {"wrong": wrong, "batches": batches}
    figures["seconds"] = round(time.perf_counter() - began, 1)
    return figures


def measure_apart(name: str, device: int, bound_s: float, given: argparse.Namespace) -> dict[str, Any]:
    """Do the same in a process of its own, so that no variant lives in what another left; say it when it is done."""
    left_s = max(2, int(bound_s - (time.perf_counter() - BEGAN_S))) if given.seconds else 0
    options = {"--only": name, "--batches": given.batches, "--kib": given.kib, "--jobs": 0, "--seconds": left_s}
    command = [sys.executable, __file__, *(str(part) for option in options.items() for part in option)]
    environment = {"CUDA_VISIBLE_DEVICES": str(device), "OMP_NUM_THREADS": "1", **os.environ}
    figures: dict[str, Any] = {"name": name, "seconds": 0.0}
    try:
        done = subprocess.run(
            [*command, *(["--smoke"] if given.smoke else [])],
            capture_output=True,
            text=True,
            check=False,
            timeout=left_s or None,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        figures["note"] = "not run: it did not come to an end in time"
    else:
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        figures.update(json.loads(lines[-1]) if lines else {"note": f"not run: {last[:120]}"})
    print(json.dumps(figures), flush=True)
    return figures


def shown(figures: dict[str, Any], how: str) -> str:
    """Return a cell of the table."""
    return f"{figures[how]['wrong']:,} of {figures[how]['batches']:,}" if how in figures else ""


def main() -> None:
    """Print a line of JSON for each variant, then a table; end with 1 if a batch of Interlock's was wrong."""
    given = arguments(
        __doc__,
        batches=(10_000, "batches a run"),
        kib=(1024, "size of a fed batch"),
        jobs=(3, "variants at a time, each in its own process; 0 runs them here"),
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
        waves = -(-len(names) // given.jobs)
        bounds = [given.seconds * (number // given.jobs + 1) / waves for number in range(len(names))]
        found = list(pool.map(partial(measure_apart, given=given), names, spread, bounds))
    report = Report("gpu-stress", "corrupted batches under stress", ("variant", *HOW, "s", "note"))
    report.lines.append(f"{given.kib} KiB a batch to the device, 16 KiB from it")
    for figures in found:
        cells = [shown(figures, how) for how in HOW]
        report.rows.append((figures["name"], *cells, f"{figures['seconds']}", figures.get("note", "")))
    ours = [figures for figures in found if figures["name"].startswith("Interlock")]
    total = sum(figures[how]["wrong"] for figures in ours for how in HOW if how in figures)
    report.goal("corrupted batches of Interlock's", total, 0, at_most=True, unit="")
    report.figures["variants"] = found
    report.show(save=given.save)
    if total or (CUDA and any("note" in figures for figures in ours)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
