"""PyTorch Lightning, unmodified: fit with validation, then predict, on `cuda`.

interlock check examples/clean/lightning_fit.py
"""

from __future__ import annotations

import logging
import warnings

import pytorch_lightning as lightning
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.layers(rows)
        return logits

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        """Log the loss of a batch."""
        self.log("validation", functional.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the class of each row."""
        classes: torch.Tensor = self(batch[0]).argmax(dim=1)
        return classes

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    """Train for two epochs and predict."""
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 6), torch.randint(3, (48,)))
    batches = DataLoader(data, batch_size=8)
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, batches, batches)
    predictions = trainer.predict(model, batches) or []
    print(f"trained for {trainer.current_epoch} epochs, predicted {sum(len(part) for part in predictions)} rows")


if __name__ == "__main__":
    main()
