"""Lightning with several processes: each writes its own rows, and a run that died is finished by another number."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

ROWS = 18

PROGRAM = """
import logging, os, sys, warnings

warnings.simplefilter("ignore")
import numpy as np
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import BasePredictionWriter
from torch.utils.data import DataLoader
from interlock.integrations.lightning import DrainWriter, landed

_, sink, folder, world, stop = sys.argv


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Identity()
        self.buffer = torch.empty(3, 2)

    def predict_step(self, batch):  # one buffer for all batches
        return {"y": self.buffer[: len(batch)].copy_(batch), "rank": torch.full((len(batch),), self.global_rank)}

    def on_predict_batch_end(self, outputs, batch, batch_idx):
        if batch_idx == int(stop):
            writer.drain.flush()
            self.trainer.strategy.barrier()
            os._exit(9)


class Save(BasePredictionWriter):
    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
        path = f"{folder}/batch-{trainer.global_rank}-{batch_idx}.npy"
        np.save(path, np.column_stack([batch_indices, prediction["y"]]))

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        ids = np.concatenate(batch_indices[0])
        values = np.concatenate([one["y"] for one in predictions])
        np.save(f"{folder}/epoch-{trainer.global_rank}.npy", np.column_stack([ids, values]))


writer = DrainWriter(sink)
rows = torch.arange(18.0).repeat(2, 1).T.contiguous()
trainer = lightning.Trainer(
    accelerator="cpu", devices=int(world), strategy="ddp" if int(world) > 1 else "auto", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[writer, landed(Save("batch_and_epoch"))],
)
trainer.predict(Model(), DataLoader(writer.pending(rows), batch_size=3), return_predictions=False)
"""


def run(tmp_path, sink, folder, world, stop=-1):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    folder.mkdir()
    command = [sys.executable, str(program), sink, str(folder), str(world), str(stop)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.timeout(500)  # five processes import Lightning
def test_two_processes_die_and_three_do_the_rest_each_row_once(tmp_path, stored):
    sink = f"npy:{tmp_path / 'out'}"
    assert run(tmp_path, sink, tmp_path / "first", 2, stop=1).returncode == 9
    done_before = stored(tmp_path / "out", "y")[1]
    assert done_before == list(range(12))
    done = run(tmp_path, sink, tmp_path / "second", 3)
    assert done.returncode == 0, done.stderr[-3000:]
    rows, ids = stored(tmp_path / "out", "y")
    assert ids == list(range(ROWS))
    assert rows[:, 0].tolist() == ids
    assert set(stored(tmp_path / "out", "rank")[0].tolist()) == {0, 1, 2}
    for kind in ("batch", "epoch"):  # each process has a writer of its own, which gets what that predicts
        found = np.concatenate([np.load(path) for path in (tmp_path / "second").glob(f"{kind}-*.npy")])
        assert sorted(found[:, 1].tolist()) == [12, 13, 14, 15, 16, 17], kind
        assert np.array_equal(found[:, 0] + 12, found[:, 1]), kind
