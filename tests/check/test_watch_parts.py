"""The pieces that the watchers are made of."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from interlock.check._watch._ledger import Ledger, Loan, always
from interlock.check._watch._liveness import constant_keys, live_names, names_in_line, strength_of_line
from interlock.check._watch._memory import Memory, keeper_of, leaves, span_of
from interlock.check._watch._numpy import _runs_elsewhere
from interlock.check._watch._patches import Patches

# -------------------------------------------------------------------- which variables are read again


def alive():
    """Return the live variables of the caller."""
    return live_names(sys._getframe(1))


def test_a_variable_that_is_written_before_it_is_read_is_dead():
    kept = overwritten = 1
    found = alive()
    overwritten = 2
    assert "kept" in found
    assert "overwritten" not in found
    assert kept + overwritten == 3


def test_a_loop_variable_is_dead_while_the_next_item_is_asked_for():
    seen = []

    def items():
        for number in range(3):
            seen.append(live_names(sys._getframe(1)))
            yield number

    total = 0
    for item in items():
        twice = item * 2
        total += twice
    assert total == 6
    assert all("total" in names and not {"item", "twice"} & names for names in seen)


def test_a_variable_that_another_turn_of_a_loop_reads_is_alive():
    before, found = 0, set()
    for number in range(2):
        found |= alive()
        assert before <= number
        before = number
    assert "before" in found


def test_a_variable_of_an_inner_function_is_alive():
    shared = 1

    def inner():
        return shared

    found = alive()
    assert "shared" in found
    assert inner() == 1


# -------------------------------------------------------------------- what a line does


@pytest.mark.parametrize(
    ("source", "strength"),
    [
        ("a[0] = 1", 2),
        ("a += 1", 2),
        ("a.fill(1)", 2),
        ("t.add_(1)", 2),
        ("np.add(a, 1, out=a)", 2),
        ("optimiser.step()", 2),
        ("f(a)", 1),
        ("b = a + 1", 1),
        ("b = a", 0),
        ("pass", 0),
    ],
)
def test_how_likely_a_line_writes_memory(source, strength):
    code = compile(source, "program", "exec")
    assert strength_of_line(code, 1) == strength


def test_the_variables_that_a_line_reads():
    code = compile("x = 1\ny = np.sum(kept) + x", "program", "exec")
    assert names_in_line(code, 2) == {"np", "kept", "x"}


def test_the_elements_that_a_function_asks_for():
    state = {"a": 1, 0: 2}

    def two():
        return state["a"] + state[0]

    def whole():
        return state["a"] + len(state)

    assert constant_keys(two.__code__, "state") == frozenset[object](("a", 0))
    assert constant_keys(whole.__code__, "state") is None


# -------------------------------------------------------------------- bytes


def memory_of(array):
    span = span_of(array)
    assert span is not None
    return Memory(span, keeper_of(array))


def test_a_change_is_told_once_with_its_bytes():
    array = np.zeros(100_000, np.uint8)
    memory = memory_of(array)
    assert memory.changed() is None
    array[[70_000, 90_000]] = 1
    region = memory.changed()
    assert region is not None
    assert (region.offset_bytes, region.size_bytes) == (70_000, 20_001)
    assert memory.changed() is None


def test_bytes_between_those_of_a_strided_view_are_not_watched():
    array = np.zeros((4, 4), np.float32)
    memory = memory_of(array[:, 1])
    array[:, 0] = 1
    assert memory.changed() is None
    array[2, 1] = 1
    assert memory.changed() is not None


def test_a_view_that_runs_backwards_is_watched():
    array = np.zeros(8, np.float32)
    memory = memory_of(array[::-1])
    array[0] = 1
    assert memory.changed() is not None


def test_memory_that_is_gone_is_not_looked_at():
    array = np.zeros(8)
    memory = memory_of(array)
    del array
    assert memory.holder() is None
    assert memory.changed() is None


@pytest.mark.parametrize("value", [np.empty(0), np.empty((3, 0)), "text", None, b"read only", 3])
def test_what_holds_no_memory_of_interest_has_no_span(value):
    assert span_of(value) is None or isinstance(value, bytes)


def test_arrays_are_found_in_nested_containers():
    one, two, three = np.zeros(1), np.zeros(2), bytearray(3)
    found = list(leaves({"a": [one, (two, {"b": three})], "c": "text"}))
    assert {id(leaf) for leaf in found} == {id(one), id(two), id(three)}


def test_a_container_that_holds_itself_ends():
    loop: list[object] = [np.zeros(1)]
    loop.append(loop)
    assert list(leaves(loop))


# -------------------------------------------------------------------- loans


def test_a_shared_loan_ends_with_its_last_close():
    ledger, array = Ledger(), np.zeros(4)
    memory = memory_of(array)
    site = (("program.py", 3, "main"),)
    loans = [ledger.open(Loan(memory, "jax", "alias", site, always, is_shared=True)) for _ in range(2)]
    assert loans[0] is loans[1]
    ledger.close(loans[0])
    assert len(ledger) == 1
    ledger.close(loans[1])
    assert len(ledger) == 0
    assert not loans[0].is_open


def test_a_loan_of_memory_that_is_gone_is_forgotten():
    ledger, array = Ledger(), np.zeros(4)
    ledger.open(Loan(memory_of(array), "jax", "alias", (), always))
    del array
    ledger.check(lambda _: (0, None, ()))
    assert len(ledger) == 0


# -------------------------------------------------------------------- patches


def test_patches_are_undone_in_the_opposite_order_and_inherited_ones_removed():
    class Base:
        def method(self):
            return "base"

    class Derived(Base):
        pass

    def adding(text):
        def make(original):
            return lambda self: f"{text} {original(self)}"

        return make

    patches = Patches()
    patches.wrap(Derived, "method", adding("first"))
    patches.wrap(Derived, "method", adding("second"))
    patches.wrap(Derived, "missing", lambda original: original)
    assert Derived().method() == "second first base"
    with pytest.raises(AttributeError, match="missing"):
        patches.wrap(Derived, "missing", lambda original: original, is_needed=True)
    patches.undo()
    assert Derived().method() == "base"
    assert "method" not in vars(Derived)


# -------------------------------------------------------------------- which thread a producer runs on


def test_a_producer_that_another_thread_is_inside_of_is_told_apart():
    """Between two items, and on the thread that asks, it is not."""
    inside, looked, own = threading.Event(), threading.Event(), []

    def producer():
        own.append(_runs_elsewhere(sys._getframe()))
        yield 0
        inside.set()
        assert looked.wait(10)
        yield 1

    items = producer()
    next(items)
    found = [_runs_elsewhere(items.gi_frame)]
    thread = threading.Thread(target=lambda: next(items))
    thread.start()
    assert inside.wait(10)
    found.append(_runs_elsewhere(items.gi_frame))
    looked.set()
    thread.join()
    found.append(_runs_elsewhere(items.gi_frame))
    assert (own, found) == ([False], [False, True, False])
