"""`interlock predict` with the model on a device; the twins run where there is none."""

from __future__ import annotations

import json
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
