"""`interlock predict` with the model on a device; the twins run where there is none.

Twins of those about failures: tests/cli/test_retries.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.dataset as ds
import pytest

from interlock.cli import main

if TYPE_CHECKING:
    from pathlib import Path

TORCH = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.eye_(self.linear.weight)
    def forward(self, batch):
        assert batch.device == self.linear.weight.device
        return {"y": self.linear(batch) * 2, "on_gpu": torch.full((len(batch),), batch.is_cuda, device=batch.device)}
net = Net()
def there():
    return Net().cuda()
"""


def predict(folder: Path, model: str, device: str, capfd: pytest.CaptureFixture[str]) -> bool:
    """Predict a hundred rows, check each, and tell whether they were computed on a GPU."""
    (folder / "model.py").write_text(TORCH)
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.save(folder / "rows.npy", rows)
    sink = folder / "out"
    command = ["predict", f"{folder / 'model.py'}:{model}", str(folder / "rows.npy"), f"parquet:{sink}"]
    assert main([*command, "--batch-size", "16", "--device", device, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rows_committed"] == 100
    table = ds.dataset(sink, format="parquet").to_table().sort_by("id").to_pydict()
    assert np.array_equal(np.array(table["y"], np.float32), rows * 2)
    (on_gpu,) = set(table["on_gpu"])
    return bool(on_gpu)


@pytest.mark.parametrize("device", ["auto", "host", "simulated:lazy"])
def test_a_model_on_the_host_stays_there(device, tmp_path, capfd):
    assert not predict(tmp_path, "net", device, capfd)


def test_a_model_is_moved_to_the_device_that_is_asked_for(cuda, tmp_path, capfd):
    assert predict(tmp_path, "net", cuda.name, capfd)


@pytest.mark.usefixtures("cuda")
def test_batches_go_where_the_model_is(tmp_path, capfd):
    assert predict(tmp_path, "there", "auto", capfd)


@pytest.mark.usefixtures("cuda")
def test_a_model_on_the_device_is_moved_to_the_host_if_asked_for(tmp_path, capfd):
    assert not predict(tmp_path, "there", "host", capfd)


FAILING = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), 2.0))
    def forward(self, batch):
        with open({marks!r}, "a") as marks:
            marks.write(f"{{len(batch)}}\\n")
        {body}
        return batch * self.weight
"""
WANTS_A_FIFTH_FOR_EACH_ROW = """
        total = torch.cuda.get_device_properties(0).total_memory
        held = torch.empty(len(batch) * total // 5, dtype=torch.uint8, device=batch.device)
"""
ASSERTS_ON_THE_DEVICE = """
        torch.arange(4, device="cuda")[torch.tensor([1 << 40], device="cuda")]
        torch.cuda.synchronize()
"""


def predict_failing(folder: Path, body: str) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Predict ten rows in a process of its own; return what it said and the size of each batch that the model got."""
    (folder / "model.py").write_text(FAILING.format(marks=str(folder / "marks"), body=body))
    np.save(folder / "rows.npy", np.arange(20, dtype=np.float32).reshape(10, 2))
    command = [sys.executable, "-m", "interlock", "predict", "model.py:Net", "rows.npy", "parquet:out", "--json"]
    options = ["--device", "cuda", "--batch-size", "8", "--retries", "2"]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    return done, [int(line) for line in (folder / "marks").read_text().splitlines()]


@pytest.mark.usefixtures("cuda")
def test_a_batch_for_which_the_device_has_no_memory_is_halved_until_it_has(tmp_path):
    done, sizes = predict_failing(tmp_path, WANTS_A_FIFTH_FOR_EACH_ROW)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retries"] > 0
    assert sizes[:2] == [8, 4]
    table = ds.dataset(tmp_path / "out", format="parquet").to_table().sort_by("id").to_pydict()
    (values,) = (values for name, values in table.items() if name != "id")
    assert np.array_equal(values, np.arange(20, dtype=np.float32).reshape(10, 2) * 2)


@pytest.mark.usefixtures("cuda")
def test_a_context_that_is_lost_ends_the_run_at_its_first_batch(tmp_path):
    done, sizes = predict_failing(tmp_path, ASSERTS_ON_THE_DEVICE)
    # PyTorch itself may abort a process whose context is lost, in a destructor when the interpreter ends.
    assert done.returncode in {3, -signal.SIGABRT}, done.stderr
    assert "failed on the rows with ids 0, 1" in done.stderr
    assert "ssert" in done.stderr, "what CUDA says, or what torch does"
    assert sizes == [8]
