"""Snapshots by reference, through threads, pools and queues: hazards are named, and innocent twins passed over."""

from __future__ import annotations

import concurrent.futures
import queue
import threading

import numpy as np
import pytest
import torch


def save(state, file):
    file.append({name: value.sum() for name, value in state.items()})


def test_a_thread_is_handed_a_state_that_changes(findings):
    def program():
        state, file = {"weight": torch.zeros(4)}, list[object]()
        writer = threading.Thread(target=save, args=(state, file))
        writer.start()
        state["weight"].add_(1)
        writer.join()

    assert findings(program) == {("moving-snapshot", "writer.start()", 'state["weight"].add_(1)')}


def test_a_closure_is_a_snapshot_too(findings):
    def program():
        state, file = {"weight": np.zeros(4)}, list[object]()
        writer = threading.Thread(target=lambda: save(state, file))
        writer.start()
        state["weight"] += 1
        writer.join()

    assert findings(program) == {("moving-snapshot", "writer.start()", 'state["weight"] += 1')}


@pytest.mark.parametrize("copies", [True, False])
def test_a_thread_that_was_joined_or_was_given_a_copy_holds_nothing(copies, findings):
    def program():
        state, file = {"weight": np.zeros(4)}, list[object]()
        given = {"weight": state["weight"].copy()} if copies else state
        writer = threading.Thread(target=save, args=(given, file))
        writer.start()
        if not copies:
            writer.join()
        state["weight"] += 1
        writer.join()

    assert findings(program) == set()


def test_a_pool_is_handed_a_state_that_changes(findings):
    def program():
        state, file = {"weight": np.zeros(4)}, list[object]()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            saved = pool.submit(save, state, file)
            state["weight"][0] = 1
            saved.result()

    assert findings(program) == {
        ("moving-snapshot", "saved = pool.submit(save, state, file)", 'state["weight"][0] = 1')
    }


@pytest.mark.parametrize(
    "see",
    [
        lambda future: future.result(),
        lambda future: concurrent.futures.wait([future]),
        lambda future: list(concurrent.futures.as_completed([future])),
    ],
)
def test_a_future_that_was_seen_done_gives_the_state_back(see, findings):
    def program():
        state, file = {"weight": np.zeros(4)}, list[object]()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            see(pool.submit(save, state, file))
            state["weight"][0] = 1

    assert findings(program) == set()


def test_leaving_a_pool_waits_for_all_of_it(findings):
    def program():
        state, file = {"weight": np.zeros(4)}, list[object]()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(save, state, file)
        state["weight"][0] = 1

    assert findings(program) == set()


def consume(items, sums, taken):
    while (item := items.get()) is not None:
        sums.append(float(item.sum()))
        taken.put(item.nbytes)


def run_consumer(produce, maxsize=0):
    items, taken, sums = queue.Queue[object](maxsize), queue.Queue[object](), list[float]()
    consumer = threading.Thread(target=consume, args=(items, sums, taken))
    consumer.start()
    try:
        produce(items, taken)
    finally:
        items.put(None)
        consumer.join()


def test_an_array_is_put_into_a_queue_and_changed(findings):
    def produce(items, taken):  # noqa: ARG001 - as the others
        buffer = np.zeros(4)
        for step in range(3):
            buffer[:] = step
            items.put(buffer)

    assert findings(lambda: run_consumer(produce)) == {
        ("moving-snapshot", "items.put(buffer)", "buffer[:] = step"),
    }


def test_copies_may_be_put_into_a_queue(findings):
    def produce(items, taken):  # noqa: ARG001
        buffer = np.zeros(4)
        for step in range(3):
            buffer[:] = step
            items.put(buffer.copy())

    assert findings(lambda: run_consumer(produce)) == set()


def test_an_answer_says_that_the_array_is_free_again(findings):
    def produce(items, taken):
        buffer = np.zeros(4)
        for step in range(3):
            buffer[:] = step
            items.put(buffer)
            taken.get()

    assert findings(lambda: run_consumer(produce)) == set()


@pytest.mark.parametrize(("buffers", "kinds"), [(3, set()), (2, {"moving-snapshot"})])
def test_room_in_a_bounded_queue_says_that_older_items_are_done(buffers, kinds, findings):
    """One is in the queue and one in the reader's hands, so it takes three."""

    def produce(items, taken):  # noqa: ARG001
        memory = [np.zeros(4) for _ in range(buffers)]
        for step in range(8):
            memory[step % buffers][:] = step + 1
            items.put(memory[step % buffers])

    assert {kind for kind, *_ in findings(lambda: run_consumer(produce, maxsize=1))} == kinds


def test_a_queue_within_one_thread_is_a_list(findings):
    def program():
        items, buffer = queue.Queue[object](), np.zeros(4)
        items.put(buffer)
        buffer += 1
        return items.get()

    assert findings(program) == set()


def test_a_thread_that_fills_what_it_was_handed_shares_it(findings):
    def fill(array):
        array[:] = 1

    def program():
        array = np.zeros(4)
        worker = threading.Thread(target=fill, args=(array,))
        worker.start()
        worker.join()
        array += 1

    assert findings(program) == set()


LOCK = threading.Lock()


def read_under_lock(array, sums):
    with LOCK:
        sums.append(array.sum())


@pytest.mark.parametrize(("locks", "kinds"), [(True, set()), (False, {"moving-snapshot"})])
def test_a_lock_that_is_held_at_the_change_orders_it(locks, kinds, findings):
    def program():
        array, sums = np.zeros(4), list[float]()
        reader = threading.Thread(target=read_under_lock, args=(array, sums))
        reader.start()
        if locks:
            with LOCK:
                array += 1
        else:
            array += 1
        reader.join()

    assert {kind for kind, *_ in findings(program)} == kinds


class Writer:
    def __init__(self):
        self.staged = threading.Event()

    def write(self, given):
        self.copied = given.copy()
        self.staged.set()


@pytest.mark.parametrize(("waits", "kinds"), [(True, set()), (False, {"moving-snapshot"})])
def test_an_event_that_the_reader_sets_orders_the_change(waits, kinds, findings):
    def program():
        state, writer = np.zeros(4), Writer()
        thread = threading.Thread(target=writer.write, args=(state,))
        thread.start()
        if waits:
            writer.staged.wait()
        state += 1
        thread.join()

    assert {kind for kind, *_ in findings(program)} == kinds


def test_what_a_reader_signals_to_itself_tells_nobody_else(findings):
    """It marks an item as done and asks for the next; who put it in has not looked, so it knows nothing."""

    def consume_and_mark(items, sums):
        while (item := items.get()) is not None:
            sums.append(float(item.sum()))
            items.task_done()

    def program(*, joins):
        items, sums, buffer = queue.Queue[object](), list[float](), np.zeros(4)
        consumer = threading.Thread(target=consume_and_mark, args=(items, sums))
        consumer.start()
        items.put(buffer)
        items.put(buffer.copy())
        while len(sums) < 2:  # it has asked twice, though no edge says so
            pass
        if joins:
            items.join()
        buffer += 1
        items.put(None)
        consumer.join()

    assert findings(lambda: program(joins=True)) == set()
    assert findings(lambda: program(joins=False)) == {("moving-snapshot", "items.put(buffer)", "buffer += 1")}


def train(keep):
    model = torch.nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    best = keep(model)
    model(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    model.load_state_dict(best)


def test_the_best_state_is_a_reference_to_the_last_one(findings):
    def by_reference(model):
        return model.state_dict()

    assert findings(lambda: train(by_reference)) == {
        ("moving-snapshot", "return model.state_dict()", "optimiser.step()"),
    }


def test_the_best_state_is_a_copy(findings):
    def copied(model):
        return {name: value.clone() for name, value in model.state_dict().items()}

    assert findings(lambda: train(copied)) == set()
