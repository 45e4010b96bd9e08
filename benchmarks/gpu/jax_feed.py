"""How much of a JAX training step is spent on getting the batch to the GPU.

    python benchmarks/gpu/jax_feed.py [--save] [--only feed,dali] [--batch-mib 128] [--step-us 9000]

A step is some bf16 matrix products and one read of its whole float32 batch, which they depend on. The base is the same
step on batches that stay on the device. Every variant gets its batches from arrays that are in host memory already and
are never rewritten, so that `device_put` is safe. All run in one process, in turn, in each of several rounds; `x
resident` is the median of the ratios within a round.

`Feed` copies each batch into a slot on several threads, as a loader does; in the rows with "in slots" its source writes
nothing, as when samples are decoded or received where they are wanted.
"""

from __future__ import annotations

import importlib
import os
import queue
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import Outcome, Report, Variant, arguments, devices, require_cuda, rounds, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import jax
    import numpy.typing as npt

    Step = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]

SAMPLE_FLOATS = 131072  # 512 KiB
POOL_BATCHES = 4
WORKERS = 12
MANY = 10**7


class Problem:
    """The step, and the batches that are in host memory."""

    def __init__(self, batch_bytes: int, step_s: float, width: int) -> None:
        import jax  # noqa: PLC0415 - the workers that DALI starts import this file too, and need no JAX

        self.jax = jax
        self.rows = max(1, batch_bytes // (SAMPLE_FLOATS * 4))
        generator = np.random.default_rng(0)
        shape = (self.rows, SAMPLE_FLOATS)
        self.pool = [generator.random(shape, np.float32) + number for number in range(POOL_BATCHES)]
        self.state = jax.numpy.asarray(generator.standard_normal((width, width)), jax.numpy.bfloat16)
        weights = jax.numpy.asarray(generator.standard_normal((width, width)) / width**0.5, jax.numpy.bfloat16)
        self.products, self.step = self._calibrated(weights, step_s)

    def _calibrated(self, weights: jax.Array, step_s: float) -> tuple[int, Step]:
        """Return the number of products that takes `step_s` with the read of the batch, and that step."""
        batch = self.jax.device_put(self.pool[0])
        few, more = (self._time(self._step(weights, products), batch) for products in (8, 40))
        each = max((more - few) / 32, 1e-7)
        products = max(1, round(8 + (step_s - few) / each))
        return products, self._step(weights, products)

    def _step(self, weights: jax.Array, products: int) -> Step:
        def step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
            mean = batch.mean()
            state = state * (1 + 1e-9 * mean).astype(state.dtype)
            return self.jax.lax.fori_loop(0, products, lambda _, held: held @ weights, state), mean

        jitted: Step = self.jax.jit(step)
        return jitted

    def _time(self, step: Step, batch: jax.Array) -> float:
        step(self.state, batch)[0].block_until_ready()
        state, began = self.state, time.perf_counter()
        for _ in range(10):
            state, _ = step(state, batch)
        state.block_until_ready()
        return (time.perf_counter() - began) / 10


class Loop:
    """Steps over an endless iterator of batches."""

    def __init__(self, problem: Problem, batches: Iterator[Any], close: Callable[[], None] = lambda: None) -> None:
        self.problem = problem
        self.batches = batches
        self.close = close
        self._check()

    def _check(self) -> None:
        """Compare the first batches with what was sent: a fast wrong feed is no feed."""
        known = [batch.mean(dtype=np.float64) for batch in self.problem.pool]
        for _ in range(POOL_BATCHES):
            got = float(self.problem.step(self.problem.state, next(self.batches))[1])
            if min(abs(got - mean) for mean in known) > 1e-2:
                raise AssertionError(f"a batch has the mean {got}, which none of those sent has")

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        state = self.problem.state
        for _ in range(steps):
            state, _ = self.problem.step(state, next(self.batches))
        state.block_until_ready()


def resident(problem: Problem) -> Variant:
    batches = [problem.jax.device_put(batch) for batch in problem.pool]
    return Loop(problem, (batches[number % POOL_BATCHES] for number in count()))


def put(problem: Problem, *, block: bool) -> Variant:
    def batches() -> Iterator[jax.Array]:
        for number in count():
            batch = problem.jax.device_put(problem.pool[number % POOL_BATCHES])
            yield batch.block_until_ready() if block else batch

    return Loop(problem, batches())


def thread(problem: Problem) -> Variant:
    """`device_put` and the wait for it on a thread of its own, two batches ahead."""
    ready: queue.Queue[jax.Array] = queue.Queue(2)
    ended = threading.Event()

    def work() -> None:
        for number in count():
            batch = problem.jax.device_put(problem.pool[number % POOL_BATCHES]).block_until_ready()
            while not ended.is_set():
                try:
                    ready.put(batch, timeout=0.1)
                    break
                except queue.Full:
                    continue
            else:
                return

    worker = threading.Thread(target=work, daemon=True)
    worker.start()

    def close() -> None:
        ended.set()
        worker.join()

    return Loop(problem, iter(ready.get, None), close)


class DaliSamples:
    """Samples from memory for DALI's worker processes; each of them makes its own memory at its first sample."""

    def __init__(self) -> None:
        self.pool: npt.NDArray[np.float32] | None = None

    def __call__(self, info: Any) -> npt.NDArray[np.float32]:
        """Return the sample that DALI asks for."""
        if self.pool is None:
            self.pool = np.full((64, SAMPLE_FLOATS), 0.5, np.float32)
        sample: npt.NDArray[np.float32] = self.pool[info.idx_in_epoch % 64]
        return sample


def dali(problem: Problem) -> Variant:
    """External source in worker processes, dynamic executor, JAX plugin."""
    module = importlib.import_module("nvidia.dali")
    plugin = importlib.import_module("nvidia.dali.plugin.jax")
    pipeline = module.Pipeline(
        batch_size=problem.rows,
        num_threads=8,
        device_id=0,
        exec_dynamic=True,
        prefetch_queue_depth=2,
        py_num_workers=WORKERS,
        py_start_method="spawn",
    )
    with pipeline:
        samples = module.fn.external_source(
            DaliSamples(), parallel=True, batch=False, prefetch_queue_depth=2, dtype=module.types.FLOAT, ndim=1
        )
        pipeline.set_outputs(samples.gpu())
    iterator = plugin.DALIGenericIterator([pipeline], ["batch"])
    return Loop(problem, (entry["batch"] for entry in iterator))


class InMemory:
    """The pool as a source for `Feed`: samples are copied where they are wanted, many at once."""

    def __init__(self, pool: Sequence[npt.NDArray[np.float32]], *, once: bool) -> None:
        self.pool = pool
        self.once = once
        self.filled: set[int] = set()

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        batch, row = divmod(index, len(self.pool[0]))
        sample: npt.NDArray[np.float32] = self.pool[batch % POOL_BATCHES][row]
        return sample

    def read_into(self, indices: Sequence[int], out: npt.NDArray[np.float32]) -> None:
        """As in `SupportsReadInto`; with `once`, memory that was filled before keeps what it holds."""
        if self.once:
            address = out.ctypes.data
            if address in self.filled:
                return
            self.filled.add(address)
        batch, row = divmod(indices[0], len(self.pool[0]))
        np.copyto(out, self.pool[batch % POOL_BATCHES][row : row + len(indices)])


class FeedLoop(Loop):
    """`Feed`, and how often it made the host wait."""

    def __init__(self, problem: Problem, *, in_slots: bool, zero_copy: bool) -> None:
        from interlock import Feed  # noqa: PLC0415 - as JAX, above

        self.feed = Feed(
            InMemory(problem.pool, once=in_slots),
            batch_size=problem.rows,
            to="jax",
            workers=WORKERS,
            depth=2,
            zero_copy=zero_copy,
            budget_bytes=16 * problem.pool[0].nbytes,
        )
        super().__init__(problem, iter(self.feed), self.feed.close)


def syncs(variant: Variant, outcome: Outcome) -> None:
    if isinstance(variant, FeedLoop):
        statistics = variant.feed.statistics()
        outcome.extra = {"host syncs": statistics.host_syncs, "batches": statistics.batches}
        outcome.note = f"{statistics.slots} slots, copied at {_copy_speed(variant):.0f} GB/s a thread"


def _copy_speed(variant: FeedLoop) -> float:
    statistics = variant.feed.statistics()
    busy = statistics.fetch_s + statistics.copy_s
    return statistics.nbytes / busy / 1e9 if busy else 0.0


def makers(problem: Problem) -> dict[str, Callable[[], Variant]]:
    return {
        "resident batches": lambda: resident(problem),
        "device_put": lambda: put(problem, block=False),
        "device_put + block_until_ready": lambda: put(problem, block=True),
        "device_put + block, own thread": lambda: thread(problem),
        "DALI, parallel source, dynamic executor": lambda: dali(problem),
        "Feed": lambda: FeedLoop(problem, in_slots=False, zero_copy=False),
        "Feed(zero_copy=True)": lambda: FeedLoop(problem, in_slots=False, zero_copy=True),
        "Feed, in slots": lambda: FeedLoop(problem, in_slots=True, zero_copy=False),
        "Feed(zero_copy=True), in slots": lambda: FeedLoop(problem, in_slots=True, zero_copy=True),
    }


def main() -> None:
    given = arguments(
        __doc__,
        batch_mib=(128, "size of a batch"),
        step_us=(9000, "length of a step on resident data"),
        rounds=(5, "rounds"),
        steps=(60, "steps that are timed together"),
    )
    width = 4096
    if given.smoke:
        given.batch_mib, given.step_us, given.rounds, given.steps, width = 2, 2000, 1, 3, 64
        if not devices():
            os.environ["JAX_PLATFORMS"] = "cpu"
    else:
        require_cuda()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    problem = Problem(given.batch_mib << 20, given.step_us / 1e6, width)
    table = makers(problem)
    chosen = dict.fromkeys(["resident batches", *wanted(list(table), given.only)])
    outcomes = rounds(
        {name: table[name] for name in chosen},
        count=given.rounds,
        steps=given.steps,
        warm=40,  # until the ring has grown to what the consumer runs ahead: pinning a slot takes 20 ms
        slow=["device_put", "device_put + block_until_ready"],  # not the thread: what it has ready flatters few steps
        seconds=given.seconds,
        finish=syncs,
    )
    report = Report("gpu-jax-feed", "JAX feed", ("variant", "ms a step", "x resident", "host syncs", "note"))
    report.lines.append(f"batches of {given.batch_mib} MiB; {problem.products} products of {width} x {width} a step")
    base = outcomes[0]
    for outcome in outcomes:
        if not outcome.seconds:
            report.rows.append((outcome.name, "", "", "", outcome.note))
            continue
        outcome.extra["x resident"] = outcome.times(base)
        report.rows.append(
            (
                outcome.name,
                f"{outcome.median_s * 1e3:.2f}",
                f"{outcome.times(base):.3f}",
                str(outcome.extra.get("host syncs", "")),
                outcome.note,
            )
        )
        if outcome.name in {"Feed", "Feed(zero_copy=True)"} and not given.smoke:
            bound = 1.015 if "zero" in outcome.name else 1.03
            report.goal(f"{outcome.name} / resident", outcome.times(base), bound, at_most=True)
            report.goal(f"{outcome.name}, host syncs", outcome.extra["host syncs"], 0, at_most=True, unit="")
    report.keep(outcomes)
    report.show(save=given.save)


if __name__ == "__main__":
    main()
