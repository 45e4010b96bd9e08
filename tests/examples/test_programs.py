"""The two programs that the project exists for: wrong in their usual form every time, right with Interlock."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def counts(*command: str) -> list[int]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in re.findall(r"\d+", done.stdout.split("(")[0])]


def test_the_naive_feed_is_corrupted_and_ours_is_not():
    program = str(EXAMPLES / "corrupted_feed.py")
    corrupted, total, changed = counts(program, "--naive", "--batches", "40")
    assert total == 40
    assert corrupted > 0
    assert changed > 0
    assert counts(program, "--batches", "40") == [0, 40, 0]


@pytest.mark.parametrize("schedule", ["lazy", "eager", "starve:drain", "starve:default", "random:1"])
def test_predictions_through_a_drain_are_right_under_every_schedule(schedule):
    assert counts(str(EXAMPLES / "zeros_in_predictions.py"), "--schedule", schedule) == [0, 1024]


def test_naive_predictions_are_wrong_when_the_copy_is_late():
    program = str(EXAMPLES / "zeros_in_predictions.py")
    assert counts(program, "--naive") == [1024, 1024]
    assert counts(program, "--naive", "--schedule", "starve:default") == [1024, 1024]
