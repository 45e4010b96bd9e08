"""Hazards of arrays that JAX reads in place, and the watcher itself.

Each is named with both lines, and each innocent twin is passed over in silence.
"""

from __future__ import annotations

import concurrent.futures
import gc
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

from interlock.check import _watch

FLOATS = 4096


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
def test_an_argument_of_a_computation_must_not_change_before_the_result_is_seen(total, array, findings):
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
def test_a_result_that_was_seen_gives_the_argument_back(total, see, findings):
    """Also by way of anything computed from the result."""

    def program():
        array = aligned()
        result = total(array)
        see(result)
        array[0] += 1

    assert findings(program) == set()


def test_another_result_says_nothing(total, findings):
    def program():
        first, second = aligned(), aligned()
        one, other = total(first), total(second)
        float(other)
        first[0] += 1
        return float(one)

    assert findings(program) == {("aliased-mutation", "one, other = total(first), total(second)", "first[0] += 1")}


def test_two_buffers_take_turns_if_the_older_result_is_waited_for(total, findings):
    def program():
        buffers, results = [aligned(), aligned()], deque[jax.Array]()
        for step in range(6):
            if len(results) == 2:
                float(results.popleft())
            buffers[step % 2].fill(step)
            results.append(total(buffers[step % 2]))

    assert findings(program) == set()


def test_two_buffers_without_a_wait_are_found(total, findings):
    def program():
        buffers, results = [aligned(), aligned()], []
        for step in range(6):
            buffers[step % 2].fill(step)
            results.append(total(buffers[step % 2]))
        return [float(result) for result in results]

    found = ("aliased-mutation", "results.append(total(buffers[step % 2]))", "buffers[step % 2].fill(step)")
    assert findings(program) == {found}


def test_a_training_state_orders_all_steps_before_the_loss_that_is_read(findings):
    step = jax.jit(lambda state, batch: state + batch.mean())

    def program():
        state, batch = jnp.zeros(()), aligned()
        for _ in range(3):
            state = step(state, batch)
        float(state)
        batch.fill(1)

    assert findings(program) == set()


@pytest.mark.parametrize("convert", [lambda array: array[::2], lambda array: array.astype(np.float64)])
def test_what_jax_copies_during_the_call_is_not_lent(total, convert, findings):
    def program():
        array = convert(aligned())
        result = total(array)
        array[0] = 3
        return float(result)

    assert findings(program) == set()


def test_a_line_of_a_helper_is_named_and_the_library_is_not(total, findings):
    def clear(array):
        np.copyto(array, 0)

    def program():
        array = aligned()
        array.fill(1)
        result = total(array)
        clear(array)
        return float(result)

    assert findings(program) == {("aliased-mutation", "result = total(array)", "np.copyto(array, 0)")}


def test_a_byte_array_is_rewritten_while_jax_holds_it(findings):
    def program():
        memory = bytearray(1 << 18)
        array = jax.device_put(np.frombuffer(memory, np.float32))
        memory[4:8] = b"abcd"
        return array.sum()

    first = "array = jax.device_put(np.frombuffer(memory, np.float32))"
    assert findings(program) == {("aliased-mutation", first, 'memory[4:8] = b"abcd"')}


# -------------------------------------------------------------------- JAX: arrays that are NumPy memory


@pytest.mark.parametrize(("home", "name"), [(jax, "device_put"), (jnp, "from_dlpack"), (jax.dlpack, "from_dlpack")])
def test_an_array_that_shares_memory_is_changed_while_it_lives(home, name, findings):
    def program():
        memory = aligned()
        array = getattr(home, name)(memory).block_until_ready()
        memory[5] = 1
        return array

    assert findings(program) == {
        ("aliased-mutation", "array = getattr(home, name)(memory).block_until_ready()", "memory[5] = 1"),
    }


@pytest.mark.parametrize("copy", [jnp.array, jnp.asarray, lambda memory: jax.device_put(memory.copy())])
def test_a_copy_is_nobody_else_s(copy, findings):
    def program():
        memory = aligned()
        array = copy(memory)
        memory[5] = 1
        return float(array.sum())

    assert findings(program) == set()


def test_memory_is_free_again_when_the_array_has_died_and_its_last_use_was_seen(findings):
    def program():
        memory = aligned()
        array = jax.device_put(memory)
        mean = array.mean()
        del array
        float(mean)
        memory.fill(1)

    assert findings(program) == set()


def test_memory_is_held_by_a_computation_that_outlives_the_array(findings):
    def program():
        memory = aligned()
        mean = jax.device_put(memory).mean()
        memory.fill(1)
        return float(mean)

    assert findings(program) == {
        ("aliased-mutation", "mean = jax.device_put(memory).mean()", "memory.fill(1)"),
    }


def test_a_large_array_that_had_to_be_copied_is_free_when_the_transfer_was_seen(findings):
    def program():
        memory = unaligned(1 << 18)
        array = jax.device_put(memory).block_until_ready()
        memory.fill(1)
        return array

    assert findings(program) == set()


def test_a_jax_array_is_written_through_what_it_was_exported_to(findings):
    def program():
        array = jnp.zeros(FLOATS)
        view = torch.utils.dlpack.from_dlpack(array)
        view.add_(1)
        return float(array.sum())

    assert findings(program) == {("aliased-mutation", "view = torch.utils.dlpack.from_dlpack(array)", "view.add_(1)")}


# -------------------------------------------------------------------- donation


def test_memory_that_was_donated_is_changed(findings):
    step = jax.jit(lambda state: state * 2, donate_argnums=0)

    def program():
        memory = aligned()
        after = step(jax.device_put(memory))
        memory.fill(3)
        return float(after.mean())

    assert findings(program) == {
        ("use-after-donate", "after = step(jax.device_put(memory))", "memory.fill(3)"),
    }


def test_a_view_of_a_donated_array_is_read(findings):
    step = jax.jit(lambda state: state * 2, donate_argnums=0)

    def program():
        state = jnp.ones(FLOATS)
        view = np.asarray(state)
        state = step(state)
        return view.sum()

    assert findings(program) == {("use-after-donate", "state = step(state)", "return view.sum()")}


def test_a_copy_of_a_donated_array_may_be_read(findings):
    step = jax.jit(lambda state: state * 2, donate_argnums=0)

    def program():
        state = jnp.ones(FLOATS)
        copied = np.array(state)
        state = step(state)
        return copied.sum() + float(state.sum())

    assert findings(program) == set()


# -------------------------------------------------------------------- the watcher itself


def test_everything_is_put_back():
    before = (jax.device_get, torch.from_numpy, threading.Thread.start, queue.Queue.put, jnp.from_dlpack)
    with _watch.activate():
        assert jax.device_get is not before[0]
    assert (jax.device_get, torch.from_numpy, threading.Thread.start, queue.Queue.put, jnp.from_dlpack) == before


def test_the_watcher_does_not_extend_the_life_of_arrays(findings):
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


def test_threads_that_fill_parts_of_one_array_share_it(findings):
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
