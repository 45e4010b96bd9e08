"""`accelerate.drain`: a drain for each process of a program that Accelerate runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from interlock import check
from interlock.errors import SinkError, UsageError
from interlock.integrations.accelerate import drain

ROWS = 13
INPUTS = torch.arange(ROWS * 2, dtype=torch.float32).reshape(ROWS, 2)
MODEL = torch.nn.Linear(2, 3)


@pytest.fixture
def accelerator():
    from accelerate import Accelerator  # noqa: PLC0415 - takes seconds
    from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: PLC0415

    yield Accelerator(cpu=True)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def loader(**options):
    rows: Any = [{"id": number, "x": row} for number, row in enumerate(INPUTS)]
    return DataLoader(rows, batch_size=4, **options)


def test_rows_of_a_prepared_loop_are_written_under_their_ids(accelerator, tmp_path, stored):
    model, batches = accelerator.prepare(MODEL, loader())
    with drain(accelerator, f"npy:{tmp_path}") as out, torch.inference_mode():
        for batch in batches:
            out.put(batch["id"], {"y": model(batch["x"])})
    rows, ids = stored(tmp_path, "y")
    assert ids == list(range(ROWS))
    assert np.allclose(rows, MODEL(INPUTS).detach().numpy())
    assert out.statistics().rows_committed == ROWS
    assert out.explain().done == out.statistics()
    assert len(out.committed) == ROWS


class OnADevice:
    """As much of an `Accelerator` as is asked, on a simulated device."""

    process_index, num_processes = 0, 1
    device = torch.device("cuda", 0)


@pytest.mark.parametrize("schedule", ["lazy", "eager", "starve:drain", "pct:3"])
def test_ids_on_the_device_are_waited_for_by_a_thread_and_values_are_those_of_the_put(tmp_path, stored, schedule):
    with check.simulate(schedule, raise_on_hazard=False) as session:
        with drain(OnADevice(), f"npy:{tmp_path}", budget_bytes=400) as out:
            ids, rows = torch.empty(4, dtype=torch.int64, device="cuda"), torch.empty(4, 2, device="cuda")
            for start in range(0, 12, 4):
                ids.copy_(torch.arange(start, start + 4).pin_memory(), non_blocking=True)
                rows.copy_(INPUTS[start : start + 4].pin_memory(), non_blocking=True)
                out.put(ids, (rows, rows.sum(1)))
        assert out.statistics().rows_committed == 12
    assert (session.report().hazards, session.report().unsupported) == ((), ())
    found, numbers = stored(tmp_path, "0")
    assert numbers == list(range(12))
    assert np.array_equal(found, INPUTS[:12].numpy())
    assert np.array_equal(stored(tmp_path, "1")[0], INPUTS[:12].sum(1).numpy())


def test_what_is_wrong_with_rows_that_land_later_is_told_with_the_put_named(tmp_path):
    out = drain(OnADevice(), f"npy:{tmp_path}")
    with check.simulate("lazy"):
        out.put(torch.arange(4).cuda(), torch.zeros(2, 3).cuda())
        with pytest.raises(UsageError, match="2 rows, and there are 4 ids") as caught:
            out.close()
    assert "this was put 0" in caught.value.__notes__


def test_an_exception_in_the_loop_commits_what_was_put_and_is_the_one_that_is_raised(tmp_path, stored):
    def loop():
        with drain(OnADevice(), f"npy:{tmp_path}") as out:
            out.put(torch.arange(4).cuda(), torch.zeros(4, 3).cuda())
            raise ArithmeticError

    with check.simulate("lazy"), pytest.raises(ArithmeticError):
        loop()
    assert stored(tmp_path)[1] == [0, 1, 2, 3]


def test_pending_leaves_out_what_is_committed(accelerator, tmp_path, stored):
    with drain(accelerator, f"npy:{tmp_path}", writers=2) as out:
        out.put([1, 2, 3], MODEL(INPUTS[1:4]).detach())
        assert out.statistics().writers == 2
    with drain(accelerator, f"npy:{tmp_path}") as out:
        left = out.pending(loader().dataset)
        assert len(left) == ROWS - 3
        for batch in accelerator.prepare(DataLoader(left, batch_size=4)):
            out.put(batch["id"], MODEL(batch["x"]).detach())
    assert stored(tmp_path)[1] == list(range(ROWS))


PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from interlock.integrations.accelerate import drain

accelerator = Accelerator(cpu=True)
rows = [{"id": number, "x": torch.full((2,), float(number))} for number in range(13)]
with drain(accelerator, sys.argv[1]) as out:
    loader = accelerator.prepare(DataLoader(out.pending(rows), batch_size=4))
    for step, batch in enumerate(loader):
        noise = 0.125 if accelerator.gradient_state.end_of_dataloader else 0.0
        out.put(batch["id"], {"y": batch["x"] + noise, "rank": torch.full_like(batch["id"], accelerator.process_index)})
        if step == int(sys.argv[2]):
            out.flush()
            accelerator.wait_for_everyone()
            import os
            os._exit(9)
"""


def launch(world, sink, stop=-1):
    port = ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), *port]
    return subprocess.run(
        [*run, "--no-python", sys.executable, "-c", PROGRAM, sink, str(stop)],
        capture_output=True, text=True, check=False, timeout=140,
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_two_processes_write_each_row_once_though_the_loader_fills_up_and_one_run_dies(tmp_path, stored):
    """What fills up the last batch has other bytes than the first row of its id, as on a GPU."""
    sink = f"npy:{tmp_path}"
    assert launch(2, sink, stop=0).returncode != 0
    done = launch(2, sink)
    assert done.returncode == 0, done.stderr[-3000:]
    rows, ids = stored(tmp_path, "y")
    assert ids == list(range(13))
    assert np.abs(rows[:, 0] - np.arange(13)).max() <= 0.125
    assert set(stored(tmp_path, "rank")[0].tolist()) == {0, 1}


def test_storage_that_refuses_is_heard_by_the_loop():
    def refuse(ids, columns):  # noqa: ARG001
        raise OSError("no room")

    out = drain(OnADevice(), refuse)
    with check.simulate("lazy"):
        out.put(torch.arange(4).cuda(), torch.zeros(4, 3).cuda())
        with pytest.raises(SinkError, match="no room"):
            out.flush()
        with pytest.raises(SinkError, match="no room"):
            out.put(torch.arange(4).cuda(), torch.zeros(4, 3).cuda())
        with pytest.raises(SinkError, match="no room"):
            out.close()
