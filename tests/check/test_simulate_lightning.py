"""Unmodified Lightning programs: clean, and equal to the CPU; and the one that the project began with: found."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import BasePredictionWriter
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import interlock
from interlock import check

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:"),
]
SCHEDULES = ("lazy", "starve:default", "pct:1")


@pytest.fixture(autouse=True)
def _silent():
    logger = logging.getLogger("pytorch_lightning")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def is_right(report):
    return (report.failure, report.hazards, report.unsupported, report.schedules[0].outcome) == (None, (), (), "clean")


class Classifier(lightning.LightningModule):
    def __init__(self, *, waits=True):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        self.waits = waits

    def training_step(self, batch):
        loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch):
        self.log("validation", functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def predict_step(self, batch):
        logits = self.layers(batch[0])
        return logits if self.waits else logits.to("cpu", non_blocking=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Save(BasePredictionWriter):
    def __init__(self, path):
        super().__init__("epoch")
        self.path = path

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):  # noqa: ARG002 - Lightning's signature
        torch.save(torch.cat(predictions), self.path)


class Put(BasePredictionWriter):
    def __init__(self, drain):
        super().__init__("batch")
        self.drain = drain

    def write_on_batch_end(self, trainer, pl_module, prediction, *batch):  # noqa: ARG002 - Lightning's signature
        self.drain.put(batch[0], {"logits": prediction})
        prediction.zero_()  # what was put has the value that it had then


def loader(accelerator, workers=0):
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(24, 6), torch.randint(3, (24,)))
    return DataLoader(data, batch_size=8, pin_memory=accelerator == "gpu", num_workers=workers)


def trainer(accelerator, *callbacks):
    return lightning.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )


def fit_and_predict(accelerator, path):
    torch.manual_seed(1)
    model, run = Classifier(), trainer(accelerator, Save(path))
    run.fit(model, loader(accelerator), loader(accelerator))
    run.predict(model, loader(accelerator), return_predictions=False)
    return [torch.load(path), *(value.detach().cpu() for value in model.state_dict().values())]


def test_fit_and_predict_are_clean_and_equal_to_the_cpu(tmp_path):
    expected = fit_and_predict("cpu", tmp_path / "cpu.pt")
    for schedule in SCHEDULES:
        with check.simulate(schedule, raise_on_hazard=False) as session:
            found = fit_and_predict("gpu", tmp_path / "gpu.pt")
        assert is_right(session.report()), schedule
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), schedule


def test_predictions_moved_without_waiting_are_found_where_the_writer_reads(tmp_path):
    with check.simulate(raise_on_hazard=False) as session:
        trainer("gpu", Save(tmp_path / "p.pt")).predict(
            Classifier(waits=False), loader("gpu"), return_predictions=False
        )
    (hazard,) = session.report().hazards
    assert (hazard.kind, hazard.verdict) == ("early-read", "witnessed")
    assert [place.function.rpartition(".")[2] for place in hazard.accesses] == ["predict_step", "write_on_epoch_end"]


@pytest.mark.parametrize("schedule", [*SCHEDULES, "eager", "starve:drain"])
def test_predictions_on_the_device_go_into_a_drain_with_the_values_of_the_put(tmp_path, schedule):
    torch.manual_seed(1)
    model = Classifier()
    with torch.inference_mode():
        expected = torch.cat([model.predict_step(batch) for batch in loader("cpu")])
    with check.simulate(schedule, raise_on_hazard=False) as session:
        with interlock.Drain(f"npy:{tmp_path / 'out'}") as drain:
            trainer("gpu", Put(drain)).predict(model, loader("gpu"), return_predictions=False)
        rows = len(drain.committed)
    assert rows == 24
    assert is_right(session.report())
    (shard,) = (tmp_path / "out").glob("part-*")
    logits, ids = np.load(shard / "logits.npy"), np.load(shard / "id.npy")
    assert np.array_equal(logits[np.argsort(ids)], expected.numpy())


def test_a_dtype_that_numpy_lacks_is_refused_by_the_drain_with_a_hint(tmp_path):
    with (
        check.simulate(),
        pytest.raises(interlock.errors.UsageError, match="bfloat16"),
        interlock.Drain(f"npy:{tmp_path / 'out'}") as drain,
    ):
        drain.put([1, 2], {"y": torch.zeros(2, 3, dtype=torch.bfloat16, device="cuda")})
