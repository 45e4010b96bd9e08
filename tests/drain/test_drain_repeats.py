"""`repeats="first"`: a row whose id came before is dropped, whatever its bytes are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlock
from interlock import check
from interlock.errors import UsageError

FORMS = {
    "numpy": lambda rows: rows,
    "torch": torch.from_numpy,
    "on a device": lambda rows: torch.from_numpy(rows).cuda(),
}


@pytest.mark.parametrize("again", [[0, 1, 2], [0, 5, 6], [5, 0, 6], [6, 1, 7], [5, 5, 6]])
@pytest.mark.parametrize("form", FORMS)
def test_the_first_row_of_an_id_stays_and_the_others_are_written(tmp_path, rows, form, again):
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    expected = dict(enumerate(values.tolist()))
    for one, value in zip(again, (values + 100).tolist(), strict=True):
        expected.setdefault(one, value)
    with check.simulate("lazy"), interlock.Drain(f"npy:{tmp_path}", repeats="first") as drain:
        drain.put([0, 1, 2], FORMS[form](values))
        drain.put(again, FORMS[form](values + 100))
    assert rows(f"npy:{tmp_path}") == expected
    found = drain.statistics()
    assert (found.rows_put, found.rows_duplicate, found.host_syncs) == (6, 6 - len(expected), 0)


def test_a_row_that_was_committed_in_another_run_stays(tmp_path, rows):
    for value in (1.0, 2.0):
        with interlock.Drain(f"npy:{tmp_path}", repeats="first") as drain:
            drain.put([7, int(value)], np.full(2, value))
    assert rows(f"npy:{tmp_path}") == {7: 1.0, 1: 1.0, 2: 2.0}


def test_anything_else_is_refused(tmp_path):
    with pytest.raises(UsageError, match="repeats is 'last'; use same or first"):
        interlock.Drain(f"npy:{tmp_path}", repeats="last")  # type: ignore[arg-type]  # that is the test
