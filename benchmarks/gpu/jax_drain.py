"""How fast JAX arrays come off the GPU.

    python benchmarks/gpu/jax_drain.py [--save] [--only interlock] [--array-mib 256]

Every variant brings the same number of fresh arrays to host memory, where their first value is looked at. Fresh, since
JAX keeps the host's copy of an array that was read before; they are made before the clock starts. `device_put` to
`pinned_host` is shown twice: cold, when the copies are kept, so that XLA pins memory for each, and warm, when the
copies before were dropped and their memory is used again. Interlock puts the arrays into a drain whose sink throws
landed rows away; its time ends when the sink has them all. The link is measured in the same run.
"""

from __future__ import annotations

import os
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import Outcome, Report, Variant, arguments, devices, one_by_one, pinned_link_gb_per_s, require_cuda, wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    import jax

ROWS = 64


class Problem:
    """Arrays to bring to the host."""

    def __init__(self, array_bytes: int) -> None:
        import jax  # noqa: PLC0415 - where it puts its arrays is set before

        self.jax = jax
        self.shape = (ROWS, array_bytes // 4 // ROWS)
        self.numbers = count()
        self.make = jax.jit(lambda number: jax.numpy.full(self.shape, number, jax.numpy.float32))

    @property
    def array_bytes(self) -> int:
        """Bytes of one array."""
        return self.shape[0] * self.shape[1] * 4

    def fresh(self, number: int) -> list[tuple[int, jax.Array]]:
        """Return that many new arrays and the value that fills each, after the device is done with them."""
        found = [(value, self.make(np.float32(value))) for _, value in zip(range(number), self.numbers, strict=False)]
        for _, array in found:
            array.block_until_ready()
        return found


def expect(value: int, landed: Any) -> None:
    if landed[0, 0] != value or landed[-1, -1] != value:
        raise AssertionError(f"an array of {value} arrived as one of {landed[0, 0]}")


class Arrays:
    """Brings fresh arrays to the host by `bring`."""

    def __init__(self, problem: Problem, bring: Callable[[list[tuple[int, jax.Array]]], None]) -> None:
        self.problem = problem
        self.bring = bring

    def run(self, steps: int) -> float:
        """As in `Variant`; making the arrays is not counted."""
        arrays = self.problem.fresh(steps)
        began = time.perf_counter()
        self.bring(arrays)
        return time.perf_counter() - began

    def close(self) -> None:
        """As in `Variant`."""


def one_after_the_other(arrays: list[tuple[int, jax.Array]]) -> None:
    for value, array in arrays:
        expect(value, np.asarray(array))


def all_at_once(arrays: list[tuple[int, jax.Array]]) -> None:
    for _, array in arrays:
        array.copy_to_host_async()
    one_after_the_other(arrays)


def to_pinned_host(problem: Problem, *, keep: bool) -> Variant:
    """Two copies are under way at a time; kept ones hold their memory, so that the next copy pins new memory."""
    [device] = problem.jax.local_devices()[:1]
    place = problem.jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    kept: list[jax.Array] = []

    def bring(arrays: list[tuple[int, jax.Array]]) -> None:
        before: list[tuple[int, jax.Array]] = []
        for value, array in arrays:
            before.append((value, problem.jax.device_put(array, place)))
            if len(before) == 2:
                land(before)
        while before:
            land(before)

    def land(before: list[tuple[int, jax.Array]]) -> None:
        value, landed = before.pop(0)
        landed.block_until_ready()
        expect(value, np.asarray(landed))
        if keep:
            kept.append(landed)

    return Arrays(problem, bring)


class Interlock(Arrays):
    """`Drain.put` of each array, and the flush at the end."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, self.put_all)
        from interlock import Drain  # noqa: PLC0415 - after JAX was told where its arrays live

        self.drain = Drain("null:", commit_interval_s=3600)

    def put_all(self, arrays: list[tuple[int, jax.Array]]) -> None:
        """Put arrays; each row is known by the array's value and its place in it."""
        for value, array in arrays:
            self.drain.put(range(value * ROWS, (value + 1) * ROWS), {"output": array})
        self.drain.flush()

    def close(self) -> None:
        """As in `Variant`."""
        self.drain.close()


def syncs(variant: Variant, outcome: Outcome) -> None:
    if isinstance(variant, Interlock):
        done = variant.drain.statistics()
        outcome.extra = {"host syncs": done.host_syncs, "wait_slot_s": done.wait_slot_s}
        outcome.note = f"{done.host_syncs} host syncs, {done.wait_slot_s:.2f} s waited for room"


def makers(problem: Problem) -> dict[str, Callable[[], Variant]]:
    return {
        "np.asarray": lambda: Arrays(problem, one_after_the_other),
        "copy_to_host_async + np.asarray": lambda: Arrays(problem, all_at_once),
        "device_put to pinned_host, cold": lambda: to_pinned_host(problem, keep=True),
        "device_put to pinned_host, warm": lambda: to_pinned_host(problem, keep=False),
        "Interlock, null sink": lambda: Interlock(problem),
    }


def main() -> None:
    given = arguments(
        __doc__,
        array_mib=(256, "size of an array"),
        steps=(40, "arrays that are timed together; the slow variants take a tenth"),
        rounds=(3, "rounds"),
    )
    on_gpu = devices() > 0
    if given.smoke:
        given.array_mib, given.steps, given.rounds = 1, 3, 1
        if not on_gpu:
            os.environ["JAX_PLATFORMS"] = "cpu"
    else:
        require_cuda()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    problem = Problem(given.array_mib << 20)
    table = makers(problem)
    slow = [name for name in table if "asarray" in name or "cold" in name]
    outcomes = one_by_one(
        {name: table[name] for name in wanted(list(table), given.only)},
        count=given.rounds,
        steps=given.steps,
        warm=min(20, given.steps),
        slow=slow,
        seconds=given.seconds,
        finish=syncs,
    )
    report = Report("gpu-jax-drain", "JAX drain", ("variant", "ms an array", "GB/s", "of the link", "note"))
    report.lines.append(f"arrays of {given.array_mib} MiB, float32")
    link = pinned_link_gb_per_s("d2h", problem.array_bytes) if on_gpu else None
    if link:
        report.lines.append(f"pinned link: {link:.1f} GB/s")
    report.figures["link_gb_per_s"] = link
    for outcome in outcomes:
        _add(report, outcome, problem.array_bytes, link, goal=not given.smoke)
    report.keep(outcomes)
    report.show(save=given.save)


def _add(report: Report, outcome: Outcome, array_bytes: int, link: float | None, *, goal: bool) -> None:
    if not outcome.seconds:
        report.rows.append((outcome.name, "", "", "", outcome.note))
        return
    speed = outcome.extra["gb_per_s"] = array_bytes / outcome.median_s / 1e9
    share = f"{speed / link:.3f}" if link else ""
    report.rows.append((outcome.name, f"{outcome.median_s * 1e3:.2f}", f"{speed:.2f}", share, outcome.note))
    if link and goal and outcome.name == "Interlock, null sink":
        report.goal("Interlock, null sink / pinned link", speed / link, 0.85, at_most=False)


if __name__ == "__main__":
    main()
