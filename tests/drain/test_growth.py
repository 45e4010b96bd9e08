"""When `auto` adds a writer: a clock and a storage that are made up."""

from __future__ import annotations

import pytest

from interlock.drain._growth import Growth


class Pretend:
    """A drain whose writers together write `speed(lanes)` bytes a second, and a producer that makes `made` of them."""

    def __init__(self, most: int, speed, made: float = 1e12):
        self.growth = Growth(most)
        self.speed = speed
        self.made = made
        self.now_s = 100.0
        self.waited_s = 0.0
        self.written_bytes = 0
        self.jobs = 0

    def run(self, seconds: float, step_s: float = 0.1) -> int:
        """Let some time pass; return how many writers there are then."""
        for _ in range(round(seconds / step_s)):
            rate = self.speed(self.growth.lanes)
            self.now_s += step_s
            self.written_bytes += int(min(rate, self.made) * step_s)
            self.waited_s += step_s if self.made > rate else 0.0
            self.jobs += 20
            self.growth.observe(self.now_s, self.waited_s, self.written_bytes, self.jobs)
        return self.growth.lanes


def test_writers_are_added_while_each_brings_something():
    assert Pretend(4, lambda lanes: 1e9 * lanes).run(10) == 4


@pytest.mark.parametrize("most", [1, 2, 3])
def test_there_are_never_more_than_may_be(most):
    pretend = Pretend(most, lambda lanes: 1e9 * lanes)
    assert max(pretend.run(0.1) for _ in range(100)) == most


def test_a_writer_that_brings_nothing_is_taken_back_and_none_is_tried_again():
    pretend = Pretend(4, lambda lanes: 1e9 * min(lanes, 2))
    seen = [pretend.run(0.1) for _ in range(200)]
    assert max(seen) == 3
    assert seen[-1] == 2
    assert seen.index(3) < 40
    assert 3 not in seen[40:]


def test_a_gain_of_less_than_a_tenth_is_none():
    assert Pretend(3, lambda lanes: 1e9 * (1.0, 1.5, 1.62)[lanes - 1]).run(10) == 2
    assert Pretend(3, lambda lanes: 1e9 * (1.0, 1.5, 1.72)[lanes - 1]).run(10) == 3


def test_a_second_writer_is_not_judged_by_the_moment_before_it():
    """In which the first seemed fast: what it had taken so far lay in buffers."""
    pretend = Pretend(2, lambda _: 1e10)
    while pretend.run(0.1) < 2:
        pass
    pretend.speed = lambda lanes: 1e9 * lanes
    assert pretend.run(10) == 2


def test_a_producer_that_is_slower_gets_no_second_writer():
    assert Pretend(4, lambda lanes: 1e9 * lanes, made=0.9e9).run(10) == 1


def test_as_many_are_added_as_the_producer_needs():
    assert Pretend(4, lambda lanes: 1e9 * lanes, made=1.5e9).run(10) == 2


def test_a_writer_is_not_judged_by_what_the_producer_did():
    """It was added, then the producer slowed down: that says nothing of the writer."""
    pretend = Pretend(2, lambda lanes: 1e9 * lanes)
    while pretend.run(0.1) < 2:
        pass
    pretend.made = 0.5e9
    assert pretend.run(10) == 2
    pretend.made = 1e12
    assert pretend.run(10) == 2


def test_few_jobs_say_nothing():
    growth = Growth(4)
    assert [growth.observe(float(second), float(second), second << 30, second) for second in range(4)] == [1] * 4
    assert growth.observe(4.0, 4.0, 4 << 30, 4) == 2


def test_a_moment_says_nothing():
    growth = Growth(4)
    assert [growth.observe(at / 1000, at / 1000, at << 20, at) for at in range(50)] == [1] * 50
    assert growth.observe(0.05, 0.05, 50 << 20, 50) == 2
    assert [growth.observe(at / 1000, at / 1000, at << 21, at) for at in range(51, 550)] == [2] * 499
    assert growth.observe(0.55, 0.55, 550 << 21, 550) == 3


def test_a_second_writer_comes_sooner_than_a_third_but_not_for_a_few_jobs():
    growth = Growth(4)
    assert [growth.observe(at / 50, at / 50, at << 20, at) for at in range(8)] == [1] * 8
    assert growth.observe(0.16, 0.16, 8 << 20, 8) == 2
