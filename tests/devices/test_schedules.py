"""Schedules: their texts replay them, and each finds the bugs that it is made for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from interlock.errors import UsageError
from interlock.lowlevel import Fence, Memory, SimulatedDevice, open_device, parse_schedule, wait

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = [
    "lazy",
    "eager",
    "starve:copy",
    "starve:compute",
    *(f"{kind}:{seed}" for kind in ("random", "pct") for seed in range(8)),
]
SIZE = 8


def done(fence: Fence) -> None:
    wait(fence, timeout_s=10, what="the program")


def host(device: SimulatedDevice, value: int) -> Memory:
    memory = device.allocate_host(SIZE)
    memory.view()[:] = bytes([value]) * SIZE
    return memory


def content(memory: Memory) -> list[int]:
    return list(memory.view())


def kernel(device: SimulatedDevice, target: Memory, source: Memory, stream: str = "compute") -> None:
    """Queue `target = source + 100`."""

    def run() -> None:
        target.view()[:] = bytes((value + 100) % 256 for value in source.view())

    device.launch(device.stream(stream), run, reads=[source], writes=[target])


# ------------------------------------------------------------ texts


@pytest.mark.parametrize("text", [*TEXTS, "starve:a:b"])
def test_a_schedule_prints_the_text_that_makes_it(text: str):
    assert str(parse_schedule(text)) == text
    assert text in repr(SimulatedDevice(text))
    assert text in repr(open_device(f"simulated:{text}"))


@pytest.mark.parametrize(
    "text", ["", "hasty", "lazy:1", "eager:x", "starve", "starve:", "random", "random:", "random:x", "pct", "pct:x"]
)
def test_an_unknown_schedule_is_refused_with_those_that_there_are(text: str):
    with pytest.raises(UsageError, match="lazy, eager, starve:STREAM, random:SEED or pct:SEED"):
        parse_schedule(text)


def order_of_operations(text: str) -> list[str]:
    """Run one program with polls and waits on three streams; return what ran when, and what the host did."""
    device = SimulatedDevice(text)
    log: list[str] = []
    streams = [device.stream(name) for name in ("copy", "compute", "back")]
    fences = []
    for step in range(12):
        stream = streams[(step * step + 1) % 3]
        device.launch(stream, partial(log.append, f"{stream.name}:{step}"))
        if step % 3 == 0:
            device.wait(streams[step % 2], device.record(streams[2]))
        fences.append(device.record(stream))
        if step % 4 == 3:
            log.append(f"polled {fences[-3].poll()}")
    done(fences[5])
    log.append("waited")
    for stream in streams:
        done(device.record(stream))
    return log


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_text_and_program_give_the_same_order_of_operations(text: str):
    first, second = order_of_operations(text), order_of_operations(text)
    assert first == second
    assert sum(entry.startswith("simulated") for entry in first) == 12


def test_schedules_and_seeds_differ():
    orders = {tuple(order_of_operations(text)) for text in TEXTS}
    assert len(orders) > len(TEXTS) // 2


# ------------------------------------------------------------ power

Program = "Callable[[SimulatedDevice, bool], list[int]]"
"""Takes the device and whether the missing edge is there; returns what the program computed."""


def early_read(device: SimulatedDevice, fixed: bool) -> list[int]:  # noqa: FBT001 - see `Program`
    """The host reads the target of a copy that has not landed."""
    source, memory, out = host(device, 1), device.allocate(SIZE), device.allocate_host(SIZE)
    stream = device.stream("copy")
    device.copy(memory, source, stream)
    device.copy(out, memory, stream)
    if fixed:
        done(device.record(stream))
    return content(out)


def early_overwrite(device: SimulatedDevice, fixed: bool) -> list[int]:  # noqa: FBT001
    """The host rewrites the source of a copy that has not read it: the corrupted feed."""
    source, memory, out = host(device, 1), device.allocate(SIZE), device.allocate_host(SIZE)
    stream = device.stream("copy")
    device.copy(memory, source, stream)
    if fixed:
        done(device.record(stream))
    source.view()[:] = bytes([2]) * SIZE
    device.copy(out, memory, stream)
    done(device.record(stream))
    return content(out)


def unordered_read(device: SimulatedDevice, fixed: bool) -> list[int]:  # noqa: FBT001
    """A kernel reads what another stream has not copied yet."""
    source, memory, result = host(device, 1), device.allocate(SIZE), device.allocate(SIZE)
    out, copy, compute = device.allocate_host(SIZE), device.stream("copy"), device.stream("compute")
    device.copy(memory, source, copy)
    if fixed:
        device.wait(compute, device.record(copy))
    kernel(device, result, memory)
    device.copy(out, result, compute)
    done(device.record(compute))
    return content(out)


def slot_reused(device: SimulatedDevice, fixed: bool) -> list[int]:  # noqa: FBT001
    """The next batch is copied into a slot that the kernel of the last one has not read."""
    slot, result, copy, compute = (
        device.allocate(SIZE),
        device.allocate(SIZE),
        device.stream("copy"),
        device.stream("compute"),
    )
    outs = [device.allocate_host(SIZE) for _ in range(3)]
    read = Fence.EMPTY
    for number, out in enumerate(outs):
        if fixed:
            device.wait(copy, read)
        device.copy(slot, host(device, number), copy)
        device.wait(compute, device.record(copy))
        kernel(device, result, slot)
        device.copy(out, result, compute)
        read = device.record(compute)
    done(read)
    return [value for out in outs for value in content(out)]


def wrong_event(device: SimulatedDevice, fixed: bool) -> list[int]:  # noqa: FBT001
    """The reader waits for an event that was recorded before the write."""
    source, memory, out = host(device, 1), device.allocate(SIZE), device.allocate_host(SIZE)
    copy, compute = device.stream("copy"), device.stream("compute")
    device.copy(memory, host(device, 0), copy)
    fence = device.record(copy)
    device.copy(memory, source, copy)
    device.wait(compute, device.record(copy) if fixed else fence)
    device.copy(out, memory, compute)
    done(device.record(compute))
    return content(out)


def late_landing(device: SimulatedDevice, fixed: bool) -> list[int]:  # noqa: FBT001
    """A copy lands on what the host wrote after queueing it."""
    memory, out = device.allocate(SIZE), device.allocate_host(SIZE)
    copy = device.stream("copy")
    device.copy(memory, host(device, 1), copy)
    device.copy(out, memory, copy)
    if fixed:
        done(device.record(copy))
    out.view()[:] = bytes([7]) * SIZE
    done(device.record(copy))
    return content(out)


EXPECTED: list[tuple[Callable[[SimulatedDevice, bool], list[int]], list[int]]] = [
    (early_read, [1] * SIZE),
    (early_overwrite, [1] * SIZE),
    (unordered_read, [101] * SIZE),
    (slot_reused, [100] * SIZE + [101] * SIZE + [102] * SIZE),
    (wrong_event, [1] * SIZE),
    (late_landing, [7] * SIZE),
]

MUST_FIND = {
    "lazy": {early_read, early_overwrite, unordered_read, wrong_event, late_landing},
    "eager": set(),
    "starve:copy": {early_read, early_overwrite, unordered_read, wrong_event, late_landing},
    "starve:compute": {slot_reused},
}
"""Exactly what each finds; every bug is found by one of them, and by the seeds of `random` below."""

SEEDS = 12


@pytest.mark.parametrize("text", MUST_FIND)
@pytest.mark.parametrize(("program", "expected"), EXPECTED)
def test_a_schedule_finds_the_bugs_that_it_is_made_for(text: str, program, expected: list[int]):
    found = program(SimulatedDevice(text), False) != expected  # noqa: FBT003 - see `Program`
    assert found == (program in MUST_FIND[text])


@pytest.mark.parametrize(("program", "expected"), EXPECTED)
@pytest.mark.parametrize("kind", ["random", "pct"])
def test_seeds_find_every_bug(kind: str, program, expected: list[int]):
    finders = [seed for seed in range(SEEDS) if program(SimulatedDevice(f"{kind}:{seed}"), False) != expected]  # noqa: FBT003
    assert finders, f"none of {SEEDS} seeds found it"


@pytest.mark.parametrize("text", [*MUST_FIND, *(f"{kind}:{seed}" for kind in ("random", "pct") for seed in range(40))])
@pytest.mark.parametrize(("program", "expected"), EXPECTED)
def test_with_the_edge_the_program_is_right_bit_for_bit(text: str, program, expected: list[int]):
    assert program(SimulatedDevice(text), True) == expected  # noqa: FBT003
