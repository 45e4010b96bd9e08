"""Small Lightning programs: a model, its data, a trainer, and a writer that remembers what it was given."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import BasePredictionWriter
from torch.utils.data import DataLoader, TensorDataset

ROWS, WIDTH, BATCH = 20, 6, 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Lightning says about small machines and its own dependencies is no concern of these tests."""
    for item in items:
        if "tests/integrations" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:pytorch_lightning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*LeafSpec:"))


@pytest.fixture(autouse=True)
def _silent():
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning.pytorch", "lightning")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


class Model(lightning.LightningModule):
    """Predicts with one layer; `form` makes of that what `predict_step` returns."""

    def __init__(self, form=lambda logits, batch: logits):  # noqa: ARG005 - what most forms are
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(WIDTH, 3)
        self.form = form

    def predict_step(self, batch, batch_idx, dataloader_idx=0):  # noqa: ARG002 - Lightning's signature
        return self.form(self.layer(batch[0]), batch)


class Remember(BasePredictionWriter):
    """Keeps what it is given, and on which thread."""

    def __init__(self, interval="batch"):
        super().__init__(interval)
        self.batches: list[Any] = []
        self.epochs: list[Any] = []
        self.threads: set[int] = set()

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):  # noqa: ARG002
        self.threads.add(threading.get_ident())
        self.batches.append((prediction, list(batch_indices), batch, batch_idx, dataloader_idx))

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):  # noqa: ARG002
        self.threads.add(threading.get_ident())
        self.epochs.append((predictions, batch_indices))


@dataclass
class Programs:
    """Makes the parts of a program."""

    Model: type = Model
    Remember: type = Remember
    rows: int = ROWS
    batch: int = BATCH
    inputs: torch.Tensor = field(
        default_factory=lambda: torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    )

    def loader(self, start=0, stop=ROWS, **options):
        return DataLoader(
            TensorDataset(self.inputs[start:stop], torch.arange(start, stop)), batch_size=BATCH, **options
        )

    def trainer(self, *callbacks, accelerator="cpu", **options):
        return lightning.Trainer(
            accelerator=accelerator,
            devices=1,
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )

    def predict(self, writer, model=None, loaders=None, accelerator="cpu", **options):
        trainer = self.trainer(writer, accelerator=accelerator, **options)
        loaders = self.loader() if loaders is None else loaders
        trainer.predict(model or Model(), loaders, return_predictions=False)
        return trainer

    def expected(self):
        with torch.inference_mode():
            return np.concatenate([Model().layer(part).numpy() for part in self.inputs.split(BATCH)])


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def stored():
    """Reads an `npy:` folder: rows of one output in the order of their ids, and the ids."""

    def read(folder, name="output"):
        shards = [path for path in sorted(folder.rglob("part-*")) if path.is_dir()]
        ids = np.concatenate([np.load(shard / "id.npy") for shard in shards])
        rows = np.concatenate([np.load(shard / f"{name}.npy") for shard in shards])
        order = np.argsort(ids)
        assert len(set(ids.tolist())) == len(ids), "a row is there twice"
        return rows[order], ids[order].tolist()

    return read
