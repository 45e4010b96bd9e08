"""Lightning's predictions on a device: landed for writers of others, and in a drain. Or in simulations.

Its stream is held while the loop runs: a loop that waits for the device would never come to its end.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from interlock.testing import gate

lightning = pytest.importorskip("pytorch_lightning")
from pytorch_lightning.callbacks import BasePredictionWriter, Callback  # noqa: E402 - skipped where it is missing

from interlock.integrations.lightning import DrainWriter, landed  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("world"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:"),
]
ROWS, WIDTH, BATCH = 24, 8, 4
MOVES: dict[str, Any] = {
    "on the device": lambda logits: logits,
    "moved without waiting": lambda logits: logits.to("cpu", non_blocking=True),
}


@pytest.fixture(autouse=True)
def silent():
    logger = logging.getLogger("pytorch_lightning")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self, move: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(WIDTH, 3)
        self.move = move

    def predict_step(self, batch: Any) -> Any:
        return self.move(self.layer(batch[0]))


class Save(BasePredictionWriter):
    """Saves what it gets, once the loop has handed everything over."""

    def __init__(self, interval: Any) -> None:
        super().__init__(interval)
        self.go = threading.Event()
        self.batches: list[Any] = []
        self.epoch: Any = None

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):  # noqa: ARG002
        assert self.go.wait(60)
        self.batches.append(prediction.numpy().copy())

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):  # noqa: ARG002
        self.epoch = np.concatenate([one.numpy() for one in predictions])


class Hold(Callback):
    """Holds the stream from before the first batch until the loop is through. Comes before the writer."""

    def __init__(self, go: threading.Event, *, held: bool) -> None:
        self.go = go
        self.held = held
        self.gate: Any = None

    def on_predict_epoch_start(self, trainer, pl_module):  # noqa: ARG002
        if self.held:
            self.gate = gate(torch.cuda.current_stream(), timeout_s=30)

    def on_predict_epoch_end(self, trainer, pl_module):  # noqa: ARG002
        if self.gate is not None:
            self.gate.open()
        self.go.set()


INPUTS = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def predict(move: Any, *callbacks: Callback) -> None:
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(INPUTS), batch_size=BATCH)
    trainer.predict(Model(move), loader, return_predictions=False)


def expected() -> Any:
    with torch.inference_mode():
        return Model(None).layer(INPUTS).numpy()


@pytest.mark.parametrize(
    ("interval", "move"), [("batch", "on the device"), ("epoch", "on the device"), ("batch_and_epoch", [*MOVES][1])]
)
def test_a_writer_gets_what_has_landed_and_the_loop_waits_for_no_device(interval, move):
    """A first run does what waits for every stream: it pins as much as there is at once, and loads the kernels."""
    spare = [torch.empty(BATCH, 3).pin_memory() for _ in range(2 * ROWS // BATCH)]
    del spare
    warm, writer = Save("batch"), Save(interval)
    predict(MOVES[move], Hold(warm.go, held=False), landed(warm, batch=lambda _: None))
    predict(MOVES[move], Hold(writer.go, held=True), landed(writer, batch=lambda _: None))
    if interval != "epoch":
        assert np.allclose(np.concatenate(writer.batches), expected(), atol=1e-3)
    if interval != "batch":
        assert np.allclose(writer.epoch, expected(), atol=1e-3)


@pytest.mark.parametrize(
    ("ids", "move"),
    [(None, [*MOVES][1]), (lambda batch, indices: torch.tensor(indices).to(batch[0].device), "on the device")],
)
def test_rows_are_in_the_drain_under_their_ids(out, stored, move, ids):
    writer = DrainWriter(f"npy:{out}", ids)
    predict(MOVES[move], writer)
    assert np.allclose(stored(), expected(), atol=1e-3)
    found: Any = writer.statistics()
    assert (found.rows_committed, found.host_syncs) == (ROWS, 0)
