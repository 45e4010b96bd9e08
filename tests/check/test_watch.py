"""Hazards that need no device: each is named with both lines, and each innocent twin is passed over in silence."""

from __future__ import annotations

import concurrent.futures
import gc
import linecache
import mmap
import queue
import subprocess
import sys
import threading
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.utils.dlpack

from interlock._core import _events
from interlock.check import _watch
from interlock.check._explain import explain
from interlock.check._hazards import Fold

FLOATS = 4096


def findings(program):
    """Return what is found in `program`: kind, and the text of the two lines."""
    fold = Fold()
    remove = _events.observe(fold.add)
    try:
        with _watch.activate():
            program()
    finally:
        remove()
    hazards = [explain(finding, witness=None, replay="") for finding in fold.findings]
    return {
        (hazard.kind, *(linecache.getline(place.file, place.line).strip() for place in hazard.accesses))
        for hazard in hazards
    }


def aligned(floats=FLOATS):
    """Return an array that XLA can take as it is."""
    return np.frombuffer(mmap.mmap(-1, floats * 4), np.float32)


def unaligned(floats):
    """Return an array that XLA must copy."""
    return np.frombuffer(bytearray(floats * 4 + 64), np.uint8)[4 : 4 + floats * 4].view(np.float32)


# -------------------------------------------------------------------- JAX: what a computation still reads


@pytest.fixture(scope="module")
def total():
    return jax.jit(lambda array: jnp.tanh(array).sum())


@pytest.mark.parametrize("array", [aligned(), unaligned(FLOATS), unaligned(1 << 18), np.ones((4, 4), np.float32)])
def test_an_argument_of_a_computation_must_not_change_before_the_result_is_seen(total, array):
    """Whether XLA copied, and when it ran, is luck; the report is not."""

    def program():
        result = total(array)
        array[0] += 1
        return float(result)

    assert findings(program) == {("aliased-mutation", "result = total(array)", "array[0] += 1")}


@pytest.mark.parametrize(
    "see",
    [
        lambda result: result.block_until_ready(),
        float,
        np.asarray,
        lambda result: np.add(result, 1),
        lambda result: result.item(),
        lambda result: jax.block_until_ready({"loss": result}),
        lambda result: jax.device_get([result]),
        lambda result: f"{result:.3f}",
        lambda result: (result * 2 + 1).block_until_ready(),
        lambda _: jax.effects_barrier(),
    ],
)
def test_a_result_that_was_seen_gives_the_argument_back(total, see):
    """Also by way of anything computed from the result."""

    def program():
        array = aligned()
        result = total(array)
        see(result)
        array[0] += 1

    assert findings(program) == set()


def test_another_result_says_nothing(total):
    def program():
        first, second = aligned(), aligned()
        one, other = total(first), total(second)
        float(other)
        first[0] += 1
        return float(one)

    assert findings(program) == {("aliased-mutation", "one, other = total(first), total(second)", "first[0] += 1")}


def test_two_buffers_take_turns_if_the_older_result_is_waited_for(total):
    def program():
        buffers, results = [aligned(), aligned()], deque[jax.Array]()
        for step in range(6):
            if len(results) == 2:
                float(results.popleft())
            buffers[step % 2].fill(step)
            results.append(total(buffers[step % 2]))

    assert findings(program) == set()


def test_two_buffers_without_a_wait_are_found(total):
    def program():
        buffers, results = [aligned(), aligned()], []
        for step in range(6):
            buffers[step % 2].fill(step)
            results.append(total(buffers[step % 2]))
        return [float(result) for result in results]

    found = ("aliased-mutation", "results.append(total(buffers[step % 2]))", "buffers[step % 2].fill(step)")
    assert findings(program) == {found}


def test_a_training_state_orders_all_steps_before_the_loss_that_is_read():
    step = jax.jit(lambda state, batch: state + batch.mean())

    def program():
        state, batch = jnp.zeros(()), aligned()
        for _ in range(3):
            state = step(state, batch)
        float(state)
        batch.fill(1)

    assert findings(program) == set()


@pytest.mark.parametrize("convert", [lambda array: array[::2], lambda array: array.astype(np.float64)])
def test_what_jax_copies_during_the_call_is_not_lent(total, convert):
    def program():
        array = convert(aligned())
        result = total(array)
        array[0] = 3
        return float(result)

    assert findings(program) == set()


def test_a_line_of_a_helper_is_named_and_the_library_is_not(total):
    def clear(array):
        np.copyto(array, 0)

    def program():
        array = aligned()
        array.fill(1)
        result = total(array)
        clear(array)
        return float(result)

    assert findings(program) == {("aliased-mutation", "result = total(array)", "np.copyto(array, 0)")}


def test_a_byte_array_is_rewritten_while_jax_holds_it():
    def program():
        memory = bytearray(1 << 18)
        array = jax.device_put(np.frombuffer(memory, np.float32))
        memory[4:8] = b"abcd"
        return array.sum()

    first = "array = jax.device_put(np.frombuffer(memory, np.float32))"
    assert findings(program) == {("aliased-mutation", first, 'memory[4:8] = b"abcd"')}


# -------------------------------------------------------------------- JAX: arrays that are NumPy memory


@pytest.mark.parametrize(("home", "name"), [(jax, "device_put"), (jnp, "from_dlpack"), (jax.dlpack, "from_dlpack")])
def test_an_array_that_shares_memory_is_changed_while_it_lives(home, name):
    def program():
        memory = aligned()
        array = getattr(home, name)(memory).block_until_ready()
        memory[5] = 1
        return array

    assert findings(program) == {
        ("aliased-mutation", "array = getattr(home, name)(memory).block_until_ready()", "memory[5] = 1"),
    }


@pytest.mark.parametrize("copy", [jnp.array, jnp.asarray, lambda memory: jax.device_put(memory.copy())])
def test_a_copy_is_nobody_else_s(copy):
    def program():
        memory = aligned()
        array = copy(memory)
        memory[5] = 1
        return float(array.sum())

    assert findings(program) == set()


def test_memory_is_free_again_when_the_array_has_died_and_its_last_use_was_seen():
    def program():
        memory = aligned()
        array = jax.device_put(memory)
        mean = array.mean()
        del array
        float(mean)
        memory.fill(1)

    assert findings(program) == set()


def test_memory_is_held_by_a_computation_that_outlives_the_array():
    def program():
        memory = aligned()
        mean = jax.device_put(memory).mean()
        memory.fill(1)
        return float(mean)

    assert findings(program) == {
        ("aliased-mutation", "mean = jax.device_put(memory).mean()", "memory.fill(1)"),
    }


def test_a_large_array_that_had_to_be_copied_is_free_when_the_transfer_was_seen():
    def program():
        memory = unaligned(1 << 18)
        array = jax.device_put(memory).block_until_ready()
        memory.fill(1)
        return array

    assert findings(program) == set()


def test_a_jax_array_is_written_through_what_it_was_exported_to():
    def program():
        array = jnp.zeros(FLOATS)
        view = torch.utils.dlpack.from_dlpack(array)
        view.add_(1)
        return float(array.sum())

    assert findings(program) == {("aliased-mutation", "view = torch.utils.dlpack.from_dlpack(array)", "view.add_(1)")}


# -------------------------------------------------------------------- donation


def test_memory_that_was_donated_is_changed():
    step = jax.jit(lambda state: state * 2, donate_argnums=0)

    def program():
        memory = aligned()
        after = step(jax.device_put(memory))
        memory.fill(3)
        return float(after.mean())

    assert findings(program) == {
        ("use-after-donate", "after = step(jax.device_put(memory))", "memory.fill(3)"),
    }


def test_a_view_of_a_donated_array_is_read():
    step = jax.jit(lambda state: state * 2, donate_argnums=0)

    def program():
        state = jnp.ones(FLOATS)
        view = np.asarray(state)
        state = step(state)
        return view.sum()

    assert findings(program) == {("use-after-donate", "state = step(state)", "return view.sum()")}


def test_a_copy_of_a_donated_array_may_be_read():
    step = jax.jit(lambda state: state * 2, donate_argnums=0)

    def program():
        state = jnp.ones(FLOATS)
        copied = np.array(state)
        state = step(state)
        return copied.sum() + float(state.sum())

    assert findings(program) == set()


# -------------------------------------------------------------------- producers that write their output again


def recycling(batches):
    memory = np.zeros(4, np.float32)
    for number in range(batches):
        memory[:] = number
        yield memory


def ring(batches, slots):
    memory = [np.zeros(4, np.float32) for _ in range(slots)]
    for number in range(batches):
        memory[number % slots][:] = number
        yield memory[number % slots]


REFILL = "memory[:] = number"


def test_batches_of_a_recycling_generator_are_kept_in_a_list():
    def program():
        kept = [batch for batch in recycling(3)]  # noqa: C416 - the loop is the point
        return np.stack(kept)

    assert {kind for kind, *_ in findings(program)} == {"recycled"}


def test_views_of_batches_are_kept():
    def program():
        kept = []
        for batch in recycling(3):
            kept.append(batch[:2])  # noqa: PERF401 - the loop is the point
        return np.stack(kept)

    assert findings(program) == {("recycled", "for batch in recycling(3):", REFILL)}


def test_a_list_is_made_of_a_recycling_generator():
    def program():
        return np.stack(list(recycling(3)))

    assert findings(program) == {("recycled", "return np.stack(list(recycling(3)))", REFILL)}


def test_one_batch_is_compared_with_the_next():
    def program():
        batches = recycling(3)
        before = next(batches)
        after = next(batches)
        return after - before

    assert findings(program) == {("recycled", "before = next(batches)", REFILL)}


def test_a_batch_that_is_used_before_the_next_is_asked_for_is_fine():
    def program():
        sums = []
        for number, batch in enumerate(recycling(5)):
            view = torch.from_numpy(batch).unsqueeze(0)
            half = batch[:2]
            sums.append(float(view.sum()) + float(half.sum()) + number)
        return sums

    assert findings(program) == set()


def test_copies_of_batches_may_be_kept():
    def program():
        return np.stack([batch.copy() for batch in recycling(3)])

    assert findings(program) == set()


def test_a_ring_is_fine_as_long_as_fewer_batches_are_kept_than_it_has_slots():
    def program(kept_batches):
        kept = deque[np.ndarray](maxlen=kept_batches)
        for batch in ring(6, slots=3):
            kept.append(batch)
            sum(float(one.sum()) for one in kept)

    assert findings(lambda: program(2)) == set()
    assert {kind for kind, *_ in findings(lambda: program(3))} == {"recycled"}


class Camera:
    def __init__(self):
        self.frame = np.zeros(4, np.float32)

    def grab(self, value):
        self.frame[:] = value
        return self.frame


def test_an_object_writes_over_the_memory_of_a_tensor_that_is_kept():
    def program():
        camera, kept = Camera(), []
        for value in range(3):
            kept.append(torch.from_numpy(camera.grab(value)))  # noqa: PERF401
        return torch.stack(kept)

    assert findings(program) == {
        ("recycled", "kept.append(torch.from_numpy(camera.grab(value)))  # noqa: PERF401", "self.frame[:] = value"),
    }


def test_a_tensor_that_is_not_kept_may_be_written_over():
    def program():
        camera = Camera()
        for value in range(3):
            frame = torch.from_numpy(camera.grab(value))
            assert frame.sum() == 4 * value

    assert findings(program) == set()


def test_jax_holds_what_a_generator_writes_again():
    def program():
        means = []
        for batch in recycling(3):
            means.append(jnp.mean(jax.device_put(batch)))  # noqa: PERF401
        return [float(mean) for mean in means]

    assert findings(program) == {("recycled", "means.append(jnp.mean(jax.device_put(batch)))  # noqa: PERF401", REFILL)}


def test_a_tensor_and_an_array_that_share_memory_on_purpose():
    """Legal in torch, through either name, also where the owner of both is an object."""

    class Staging:
        def __init__(self):
            self.array = np.zeros(4, np.float32)
            self.tensor = torch.from_numpy(self.array)

        def fill(self, value):
            self.array[:] = value
            return self.tensor

    def program():
        array = np.zeros(4, np.float32)
        tensor = torch.from_numpy(array)
        tensor.add_(1)
        array += 1
        staging = Staging()
        return [float(staging.fill(value).sum() + tensor.sum()) for value in range(3)]

    assert findings(program) == set()


# -------------------------------------------------------------------- snapshots by reference


def save(state, file):
    file.append({name: value.sum() for name, value in state.items()})


def test_a_thread_is_handed_a_state_that_changes():
    def program():
        state, file = {"weight": torch.zeros(4)}, list[object]()
        writer = threading.Thread(target=save, args=(state, file))
        writer.start()
        state["weight"].add_(1)
        writer.join()

    assert findings(program) == {("moving-snapshot", "writer.start()", 'state["weight"].add_(1)')}


def test_a_closure_is_a_snapshot_too():
    def program():
        state, file = {"weight": np.zeros(4)}, list[object]()
        writer = threading.Thread(target=lambda: save(state, file))
        writer.start()
        state["weight"] += 1
        writer.join()

    assert findings(program) == {("moving-snapshot", "writer.start()", 'state["weight"] += 1')}


@pytest.mark.parametrize("copies", [True, False])
def test_a_thread_that_was_joined_or_was_given_a_copy_holds_nothing(copies):
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


def test_a_pool_is_handed_a_state_that_changes():
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
def test_a_future_that_was_seen_done_gives_the_state_back(see):
    def program():
        state, file = {"weight": np.zeros(4)}, list[object]()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            see(pool.submit(save, state, file))
            state["weight"][0] = 1

    assert findings(program) == set()


def test_leaving_a_pool_waits_for_all_of_it():
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


def test_an_array_is_put_into_a_queue_and_changed():
    def produce(items, taken):  # noqa: ARG001 - as the others
        buffer = np.zeros(4)
        for step in range(3):
            buffer[:] = step
            items.put(buffer)

    assert findings(lambda: run_consumer(produce)) == {
        ("moving-snapshot", "items.put(buffer)", "buffer[:] = step"),
    }


def test_copies_may_be_put_into_a_queue():
    def produce(items, taken):  # noqa: ARG001
        buffer = np.zeros(4)
        for step in range(3):
            buffer[:] = step
            items.put(buffer.copy())

    assert findings(lambda: run_consumer(produce)) == set()


def test_an_answer_says_that_the_array_is_free_again():
    def produce(items, taken):
        buffer = np.zeros(4)
        for step in range(3):
            buffer[:] = step
            items.put(buffer)
            taken.get()

    assert findings(lambda: run_consumer(produce)) == set()


@pytest.mark.parametrize(("buffers", "kinds"), [(3, set()), (2, {"moving-snapshot"})])
def test_room_in_a_bounded_queue_says_that_older_items_are_done(buffers, kinds):
    """One is in the queue and one in the reader's hands, so it takes three."""

    def produce(items, taken):  # noqa: ARG001
        memory = [np.zeros(4) for _ in range(buffers)]
        for step in range(8):
            memory[step % buffers][:] = step + 1
            items.put(memory[step % buffers])

    assert {kind for kind, *_ in findings(lambda: run_consumer(produce, maxsize=1))} == kinds


def test_a_queue_within_one_thread_is_a_list():
    def program():
        items, buffer = queue.Queue[object](), np.zeros(4)
        items.put(buffer)
        buffer += 1
        return items.get()

    assert findings(program) == set()


def test_a_thread_that_fills_what_it_was_handed_shares_it():
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
def test_a_lock_that_is_held_at_the_change_orders_it(locks, kinds):
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
def test_an_event_that_the_reader_sets_orders_the_change(waits, kinds):
    def program():
        state, writer = np.zeros(4), Writer()
        thread = threading.Thread(target=writer.write, args=(state,))
        thread.start()
        if waits:
            writer.staged.wait()
        state += 1
        thread.join()

    assert {kind for kind, *_ in findings(program)} == kinds


def test_what_a_reader_signals_to_itself_tells_nobody_else():
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


def test_the_best_state_is_a_reference_to_the_last_one():
    def by_reference(model):
        return model.state_dict()

    assert findings(lambda: train(by_reference)) == {
        ("moving-snapshot", "return model.state_dict()", "optimiser.step()"),
    }


def test_the_best_state_is_a_copy():
    def copied(model):
        return {name: value.clone() for name, value in model.state_dict().items()}

    assert findings(lambda: train(copied)) == set()


# -------------------------------------------------------------------- the watcher itself


def test_everything_is_put_back():
    before = (jax.device_get, torch.from_numpy, threading.Thread.start, queue.Queue.put, jnp.from_dlpack)
    with _watch.activate():
        assert jax.device_get is not before[0]
    assert (jax.device_get, torch.from_numpy, threading.Thread.start, queue.Queue.put, jnp.from_dlpack) == before


def test_the_watcher_does_not_extend_the_life_of_arrays():
    ended = []

    class Marked(np.ndarray):
        def __del__(self):
            ended.append(True)

    def program():
        array = np.ones(FLOATS, np.float32).view(Marked)
        jax.device_put(np.ones(4, np.float32))
        torch.from_numpy(array.view(np.ndarray))
        del array
        gc.collect()
        assert ended

    assert findings(program) == set()


def test_values_are_what_they_are_without_a_watcher(total):
    array = np.linspace(0, 1, FLOATS, dtype=np.float32)
    plain = float(total(array))
    with _watch.activate():
        assert float(total(array)) == plain
        assert np.asarray(jnp.arange(3)).tolist() == [0, 1, 2]
    assert float(total(array)) == plain


def test_a_tracer_that_is_in_use_is_left_alone():
    """A debugger stays; hazards are still found, at the latest when memory is handed over again or the watch ends."""

    class Notes:
        def __init__(self):
            self.texts = []

        def note(self, text):
            self.texts.append(text)

    def tracer(*_):
        return None

    notes = Notes()
    sys.settrace(tracer)
    try:
        with _watch.activate(notes):
            assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert any("tracer" in text for text in notes.texts)


def test_threads_that_fill_parts_of_one_array_share_it():
    def fill(array, part):
        array[part] = part

    def program():
        array = np.zeros(4)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(fill, [array] * 4, range(4)))
        workers = [threading.Thread(target=fill, args=(array, part)) for part in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        array += 1

    assert findings(program) == set()


def test_frameworks_that_are_loaded_later_are_watched_from_then_on(tmp_path):
    source = """
import sys
from interlock._core import _events
from interlock.check import _watch
events = []
_events.observe(events.append)
with _watch.activate():
    assert "jax" not in sys.modules and "torch" not in sys.modules
    exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
assert [type(event).__name__ for event in events] == ["Handoff", "Access", "Handoff"], events
assert "torch" not in sys.modules
"""
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\nimport jax\nmemory = np.zeros(64, np.float32)\n"
        "array = jax.device_put(memory)\nmemory[0] = 1\n"
    )
    done = subprocess.run([sys.executable, "-c", source, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
