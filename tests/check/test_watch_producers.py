"""Producers that write their output again: hazards are named with both lines, and innocent twins passed over."""

from __future__ import annotations

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import torch


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


def test_batches_of_a_recycling_generator_are_kept_in_a_list(findings):
    def program():
        kept = [batch for batch in recycling(3)]  # noqa: C416 - the loop is the point
        return np.stack(kept)

    assert {kind for kind, *_ in findings(program)} == {"recycled"}


def test_views_of_batches_are_kept(findings):
    def program():
        kept = []
        for batch in recycling(3):
            kept.append(batch[:2])  # noqa: PERF401 - the loop is the point
        return np.stack(kept)

    assert findings(program) == {("recycled", "for batch in recycling(3):", REFILL)}


def test_a_list_is_made_of_a_recycling_generator(findings):
    def program():
        return np.stack(list(recycling(3)))

    assert findings(program) == {("recycled", "return np.stack(list(recycling(3)))", REFILL)}


def test_one_batch_is_compared_with_the_next(findings):
    def program():
        batches = recycling(3)
        before = next(batches)
        after = next(batches)
        return after - before

    assert findings(program) == {("recycled", "before = next(batches)", REFILL)}


def test_a_batch_that_is_used_before_the_next_is_asked_for_is_fine(findings):
    def program():
        sums = []
        for number, batch in enumerate(recycling(5)):
            view = torch.from_numpy(batch).unsqueeze(0)
            half = batch[:2]
            sums.append(float(view.sum()) + float(half.sum()) + number)
        return sums

    assert findings(program) == set()


def test_copies_of_batches_may_be_kept(findings):
    def program():
        return np.stack([batch.copy() for batch in recycling(3)])

    assert findings(program) == set()


def test_a_ring_is_fine_as_long_as_fewer_batches_are_kept_than_it_has_slots(findings):
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


def test_an_object_writes_over_the_memory_of_a_tensor_that_is_kept(findings):
    def program():
        camera, kept = Camera(), []
        for value in range(3):
            kept.append(torch.from_numpy(camera.grab(value)))  # noqa: PERF401
        return torch.stack(kept)

    assert findings(program) == {
        ("recycled", "kept.append(torch.from_numpy(camera.grab(value)))  # noqa: PERF401", "self.frame[:] = value"),
    }


def test_a_tensor_that_is_not_kept_may_be_written_over(findings):
    def program():
        camera = Camera()
        for value in range(3):
            frame = torch.from_numpy(camera.grab(value))
            assert frame.sum() == 4 * value

    assert findings(program) == set()


def test_jax_holds_what_a_generator_writes_again(findings):
    def program():
        means = []
        for batch in recycling(3):
            means.append(jnp.mean(jax.device_put(batch)))  # noqa: PERF401
        return [float(mean) for mean in means]

    assert findings(program) == {("recycled", "means.append(jnp.mean(jax.device_put(batch)))  # noqa: PERF401", REFILL)}


def test_a_tensor_and_an_array_that_share_memory_on_purpose(findings):
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
