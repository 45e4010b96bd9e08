"""The zeros in the predictions: a writer reads CPU memory before the copy from the device has landed.

A PyTorch Lightning program predicts on `cuda` and saves what it predicts. Lightning once moved predictions to the host
with `non_blocking=True`, and a writer that ran when all was predicted saved zeros: nothing had told it to wait. Here
`--naive` brings that move back, in one line of a module's own. Without it, predictions go to `interlock.Drain` as they
are, on the device; it writes them when they have landed, and the loop waits for nothing either.

    python examples/zeros_in_predictions.py --naive
    python examples/zeros_in_predictions.py --schedule pct:7
    python examples/zeros_in_predictions.py --naive --runs 20
    interlock check examples/zeros_in_predictions.py --naive

No GPU is needed: without one, the device is simulated, and its schedule decides when it runs what was queued. `lazy`
runs nothing before somebody waits for it, `eager` everything at once; see `interlock check --help`. Memory that nothing
has written holds poison there, where a GPU has zeros. A correct program gives the same under each schedule.

With a GPU, so small a model is so quick that its copies have landed before anybody looks. There its stream is held
with `interlock.testing.gate` while it predicts: what is queued waits, as it does behind the work of a large model.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import BasePredictionWriter
from torch.utils.data import DataLoader, TensorDataset

import interlock
from interlock import check
from interlock.testing import gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from interlock.testing import Gate

ROWS, WIDTH, CLASSES, BATCH = 1024, 32, 10, 64


class Classifier(lightning.LightningModule):
    """A small classifier, whose predictions stay on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES))

    def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the logits of a batch."""
        logits: torch.Tensor = self.layers(batch[0])
        return logits


class MovesWithoutWaiting(Classifier):
    """The same, with the move that Lightning once made."""

    def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the logits on the host, whether they are there yet or not."""
        return super().predict_step(batch).to("cpu", non_blocking=True)


class SaveAtTheEnd(BasePredictionWriter):
    """Writes all predictions when the epoch is over, as Lightning's guide does.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(write_interval="epoch")
        self.path = path

    def write_on_epoch_end(
        self,
        trainer: lightning.Trainer,  # noqa: ARG002 - Lightning's signature
        pl_module: lightning.LightningModule,  # noqa: ARG002
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],  # noqa: ARG002
    ) -> None:
        """Save them."""
        np.save(self.path, np.concatenate([logits.numpy() for logits in predictions]))


class PutIntoDrain(BasePredictionWriter):
    """Puts the predictions of each batch into a drain, under the numbers of their rows.

    Args:
        drain: Where they go.
    """

    def __init__(self, drain: interlock.Drain) -> None:
        super().__init__(write_interval="batch")
        self.drain = drain

    def write_on_batch_end(
        self,
        trainer: lightning.Trainer,  # noqa: ARG002 - Lightning's signature
        pl_module: lightning.LightningModule,  # noqa: ARG002
        prediction: torch.Tensor,
        batch_indices: Sequence[int] | None,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
        dataloader_idx: int,  # noqa: ARG002
    ) -> None:
        """Hand them over; nothing is waited for."""
        self.drain.put(batch_indices, {"logits": prediction})


class HoldTheStream(lightning.Callback):
    """Lets nothing run on the stream of a GPU from before the first batch until the predictions were written."""

    gate: Gate | None = None

    def on_predict_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:  # noqa: ARG002 - Lightning's signature
        """Close the gate, behind a first run of everything: what libraries do once would wait for the gate."""
        nothing = [torch.zeros(BATCH, WIDTH, device=pl_module.device)]
        warm = [pl_module.predict_step(nothing) for _ in range(ROWS // BATCH)]
        torch.cuda.synchronize()
        del warm
        self.gate = gate(torch.cuda.current_stream())

    def on_predict_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:  # noqa: ARG002
        """Open it. Comes after the writer's hook of that name."""
        if self.gate is not None:
            self.gate.open()


def inputs(run: int) -> torch.Tensor:
    """Return all rows."""
    return torch.from_numpy(np.random.default_rng(run).normal(size=(ROWS, WIDTH)).astype(np.float32))


def predict(run: int, kind: type[Classifier], writer: BasePredictionWriter) -> None:
    """Predict all rows on the device."""
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        callbacks=[writer, HoldTheStream()] if on_gpu() else [writer],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.predict(kind(), DataLoader(TensorDataset(inputs(run)), batch_size=BATCH), return_predictions=False)


def predict_naively(run: int, folder: Path) -> npt.NDArray[np.float32]:
    """Move without waiting, and save at the end."""
    predict(run, MovesWithoutWaiting, SaveAtTheEnd(folder / "predictions.npy"))
    read: npt.NDArray[np.float32] = np.load(folder / "predictions.npy")
    return read


def predict_with_interlock(run: int, folder: Path) -> npt.NDArray[np.float32]:
    """Let a drain write what has landed."""
    with interlock.Drain(f"npy:{folder / 'predictions'}") as drain:
        predict(run, Classifier, PutIntoDrain(drain))
    shards = sorted((folder / "predictions").glob("part-*"))
    ids = np.concatenate([np.load(shard / "id.npy") for shard in shards])
    logits: npt.NDArray[np.float32] = np.concatenate([np.load(shard / "logits.npy") for shard in shards])
    return logits[np.argsort(ids)]


def expected(run: int) -> npt.NDArray[np.float32]:
    """Return what is right, computed on the CPU."""
    torch.manual_seed(0)
    model = Classifier()
    with torch.inference_mode():
        return np.concatenate([model.predict_step([batch]).numpy() for batch in torch.split(inputs(run), BATCH)])


def on_gpu() -> bool:
    """Tell whether the device is a real one."""
    return check.current_session() is None and torch.cuda.is_available()


def device(schedule: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which there is a CUDA device: the real one, that of `interlock check`, or a simulated one."""
    if check.current_session() is not None or on_gpu():
        return contextlib.nullcontext()
    return check.simulate(schedule, raise_on_hazard=False)


def compare(run: int, schedule: str, *, naive: bool) -> int:
    """Predict, naively or with Interlock; say and return how many rows are wrong on disk."""
    right = expected(run)
    with tempfile.TemporaryDirectory() as folder, device(schedule):
        found = predict_naively(run, Path(folder)) if naive else predict_with_interlock(run, Path(folder))
        where = "on a GPU, its stream held" if on_gpu() else f"schedule {schedule}"
    close = np.isclose(found, right, rtol=1e-3, atol=1e-3)  # a GPU adds up in another order
    wrong = int((~close).any(axis=1).sum())
    print(f"{'naive' if naive else 'interlock'}: {wrong} of {ROWS} rows wrong on disk ({where})")
    return wrong


def main() -> None:
    """Do it once or more often; end with 1 if Interlock wrote a row that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", action="store_true", help="the usual form, without Interlock")
    parser.add_argument("--schedule", default="lazy", help="how the simulated device runs (default: lazy)")
    parser.add_argument("--runs", type=int, default=1, help="how often to do it (default: once)")
    arguments = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    found = [compare(run, arguments.schedule, naive=arguments.naive) for run in range(arguments.runs)]
    if arguments.runs > 1:
        print(f"wrong in {sum(map(bool, found))} of {arguments.runs} runs")
    if not arguments.naive and any(found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
