"""`landed`: somebody else's prediction writer gets landed values, in order, off the loop's thread, in a budget."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import runpy
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import BasePredictionWriter, Callback

from interlock import check
from interlock.errors import SinkError, UsageError
from interlock.integrations.lightning import landed
from interlock.lowlevel import HostWait, observe

EXAMPLE = Path(__file__).parents[2] / "examples" / "zeros_in_predictions.py"
INTERVALS = ("batch", "epoch", "batch_and_epoch")
SCHEDULES = ("lazy", "eager", "starve:default", "starve:drain", "pct:1")


class Save(BasePredictionWriter):
    """Saves each batch and the epoch, as writers do; knows nothing of Interlock."""

    def __init__(self, interval, folder):
        super().__init__(interval)
        self.folder = folder

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):  # noqa: ARG002
        np.save(self.folder / f"batch-{batch_idx}.npy", prediction.numpy())

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):  # noqa: ARG002
        np.save(self.folder / "epoch.npy", np.concatenate([one.numpy() for one in predictions]))


def on_the_device(logits, batch):  # noqa: ARG001
    return logits


def moved_without_waiting(logits, batch):  # noqa: ARG001
    return logits.to("cpu", non_blocking=True)


class Overwrites(Callback):
    """Overwrites each prediction as soon as the loop has it back, as a model does that has one output buffer."""

    def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):  # noqa: ARG002
        outputs.zero_()


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("form", [on_the_device, moved_without_waiting])
def test_every_value_is_right_under_every_schedule_and_nothing_is_reported(
    programs, tmp_path, schedule, interval, form
):
    with check.simulate(schedule, raise_on_hazard=False) as session:
        programs.predict(landed(Save(interval, tmp_path)), programs.Model(form), accelerator="gpu")
    report = session.report()
    assert (report.failure, report.hazards, report.unsupported) == (None, (), ())
    expected = programs.expected()
    if interval != "epoch":
        batches = [np.load(tmp_path / f"batch-{number}.npy") for number in range(5)]
        assert np.array_equal(np.concatenate(batches), expected)
    if interval != "batch":
        assert np.array_equal(np.load(tmp_path / "epoch.npy"), expected)


@pytest.mark.parametrize("interval", INTERVALS)
def test_without_it_the_old_move_is_found_or_wrong(programs, tmp_path, interval):
    """The control: the simulation finds the read that `landed` puts in order."""
    with check.simulate(raise_on_hazard=False) as session:
        programs.predict(Save(interval, tmp_path), programs.Model(moved_without_waiting), accelerator="gpu")
    assert {hazard.kind for hazard in session.report().hazards} == {"early-read"}


@pytest.mark.parametrize("schedule", ["lazy", "starve:drain", "pct:2"])
@pytest.mark.parametrize("kind", ["Classifier", "MovesWithoutWaiting"])
def test_the_program_that_writes_zeros_is_right_with_its_own_model_and_writer(tmp_path, schedule, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = runpy.run_path(str(EXAMPLE))
        with check.simulate(schedule, raise_on_hazard=False) as session:
            program["predict"](3, program[kind], landed(program["SaveAtTheEnd"](tmp_path / "predictions.npy")))
    assert session.report().hazards == ()
    assert np.allclose(np.load(tmp_path / "predictions.npy"), program["expected"](3), atol=1e-6)


def test_what_the_model_overwrites_on_its_device_was_taken_before(programs, tmp_path):
    with check.simulate("lazy"):
        trainer = programs.trainer(landed(Save("batch_and_epoch", tmp_path)), Overwrites(), accelerator="gpu")
        trainer.predict(programs.Model(), programs.loader(), return_predictions=False)
    assert np.array_equal(np.load(tmp_path / "epoch.npy"), programs.expected())


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_model_that_returns_one_buffer_again_and_again_is_right_on_the_cpu(programs, interval):
    buffer = torch.empty(programs.batch, 3)
    writer = programs.Remember(interval)
    programs.predict(landed(writer), programs.Model(lambda logits, _: buffer.copy_(logits)))
    found = [one[0] for one in writer.batches] if interval != "epoch" else writer.epochs[0][0]
    assert np.array_equal(torch.cat(found).numpy(), programs.expected())


def waits(programs, wrap, tmp_path):
    """Return how often the loop's thread waited for the model's stream between its first and its last batch."""
    events: list[Any] = []
    loop = f"host:{threading.get_ident()}"

    class Watch(Callback):
        def on_predict_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):  # noqa: ARG002
            if batch_idx == 1:
                self.stop = observe(events.append)

        def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):  # noqa: ARG002
            if batch_idx == 3:
                self.stop()

    with check.simulate("lazy"):
        trainer = programs.trainer(wrap(Save("epoch", tmp_path)), Watch(), accelerator="gpu")
        trainer.predict(programs.Model(), programs.loader(), return_predictions=False)
    assert events
    waited = [event for event in events if isinstance(event, HostWait) and event.timeline == loop]
    return sum(name == "cuda:0/default" for event in waited for name, _ in event.points)


def test_the_loop_waits_for_no_device_though_the_epoch_is_written(programs, tmp_path):
    assert waits(programs, landed, tmp_path) == 0
    assert waits(programs, lambda writer: writer, tmp_path) > 0


@dataclasses.dataclass
class Found:
    logits: torch.Tensor
    names: list[str]


class Graph:
    """Moves itself, as batches of other libraries do."""

    def __init__(self, nodes):
        self.nodes = nodes

    def to(self, device):
        return Graph(self.nodes.to(device, copy=True))


FORMS = {
    "tensor": on_the_device,
    "dict": lambda logits, _: {"logits": logits, "best": logits.argmax(1), "names": ["a", "b"], "none": None},
    "tuple": lambda logits, _: (logits, (logits.sum(1), 3)),
    "dataclass": lambda logits, _: Found(logits, ["x"]),
    "bfloat16": lambda logits, _: logits.to(torch.bfloat16),
    "float8": lambda logits, _: logits.to(torch.float8_e4m3fn),
    "complex": lambda logits, _: torch.complex(logits, logits).conj(),
    "bool": lambda logits, _: logits > 0,
    "transposed": lambda logits, _: logits.T,
    "one number": lambda logits, _: logits.sum(),
    "empty": lambda logits, _: logits[:0],
    "sparse": lambda logits, _: logits.relu().to_sparse(),
    "ragged": lambda logits, batch: [logits[: 1 + int(batch[1][0]) % 3], logits[:1]],
    "numpy": lambda logits, _: {"y": logits.numpy(), "text": np.array(["a", "b"])},
    "moves itself": lambda logits, _: {"graph": Graph(logits), "kind": torch.float32},
    "nothing": lambda _, __: None,
}


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.layout, one.device) == (other.dtype, other.shape, other.layout, other.device)
        assert one.to_dense().resolve_conj().float().equal(other.to_dense().resolve_conj().float()) or (
            one.is_complex() and torch.equal(one, other)
        )
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype
    elif isinstance(one, (list, tuple)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            same(left, right)
    elif isinstance(one, dict):
        same(list(one.items()), list(other.items()))
    elif dataclasses.is_dataclass(one) or isinstance(one, Graph):
        same(vars(one), vars(other))
    else:
        assert one == other


@pytest.mark.parametrize(("interval", "loaders"), [("batch", 1), ("epoch", 2), ("batch_and_epoch", 1)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.filterwarnings("ignore:predict returned None")
def test_a_writer_gets_what_it_gets_without_us(programs, form, interval, loaders):
    def run(wrap):
        writer = programs.Remember(interval)
        given = [programs.loader(0, 6), programs.loader(6, 20)] if loaders == 2 else programs.loader()
        programs.predict(wrap(writer), programs.Model(FORMS[form]), given)
        return writer

    found, expected = run(landed), run(lambda writer: writer)
    same(found.batches, expected.batches)
    same(found.epochs, expected.epochs)
    assert len(found.batches) == (0 if interval == "epoch" else 5 if loaders == 1 else 6)
    assert len(found.epochs) == (0 if interval == "batch" else 1)


def test_calls_come_in_order_on_one_thread_that_is_not_the_loop_s(programs):
    writer = programs.Remember("batch_and_epoch")
    programs.predict(landed(writer))
    assert [batch_idx for *_, batch_idx, _ in writer.batches] == [0, 1, 2, 3, 4]
    assert len(writer.threads) == 1
    assert threading.get_ident() not in writer.threads
    assert not any(thread.name.startswith("interlock the writer") for thread in threading.enumerate())


class Slow(BasePredictionWriter):
    """Takes its time, and counts the batches that were predicted and are not written."""

    def __init__(self):
        super().__init__("batch")
        self.predicted = self.written = self.most = 0

    def write_on_batch_end(self, *arguments):  # noqa: ARG002
        threading.Event().wait(0.01)
        self.written += 1

    def count(self, logits, _):
        self.predicted += 1
        self.most = max(self.most, self.predicted - self.written)
        return logits


def test_a_slow_writer_holds_the_loop_back_and_few_batches_live(programs):
    """Two batches fit the budget; a third is predicted and waits."""
    writer = Slow()
    size_bytes = 64  # of four rows of three floats, with what the alignment adds
    loader = programs.loader(0, 20)
    loader = torch.utils.data.DataLoader(loader.dataset, batch_size=1)
    programs.predict(
        landed(writer, batch=lambda _: None, budget_bytes=2 * size_bytes), programs.Model(writer.count), loader
    )
    assert writer.written == 20
    assert writer.most == 3


def test_a_batch_that_is_larger_than_the_budget_travels_alone(programs):
    writer = Slow()
    programs.predict(landed(writer, budget_bytes=1), programs.Model(writer.count))
    assert (writer.written, writer.most) == (5, 2)


@pytest.mark.parametrize("budget_bytes", [1, 200, 1 << 20])
def test_a_writer_may_keep_what_it_was_given(programs, budget_bytes):
    writer = programs.Remember()
    programs.predict(landed(writer, budget_bytes=budget_bytes))
    assert np.array_equal(torch.cat([one[0] for one in writer.batches]).numpy(), programs.expected())
    assert torch.cat([one[2][0] for one in writer.batches]).equal(programs.inputs)


def test_what_stands_for_the_batch_is_the_callers_choice(programs):
    writer = programs.Remember()
    programs.predict(landed(writer, batch=lambda batch: batch[1]))
    assert torch.cat([one[2] for one in writer.batches]).tolist() == list(range(20))


class Fails(BasePredictionWriter):
    def __init__(self, at, interval="batch"):
        super().__init__(interval)
        self.at = at
        self.written = []

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):  # noqa: ARG002
        if batch_idx == self.at:
            raise OSError("the disk is full")
        self.written.append(batch_idx)

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):  # noqa: ARG002
        raise OSError("no room")


@pytest.mark.parametrize("at", [0, 2, 4])
def test_an_error_of_the_writer_reaches_the_loop_with_the_batch_named(programs, at):
    writer = Fails(at)
    with pytest.raises(SinkError, match=f"writing batch {at} failed: OSError: the disk is full") as caught:
        programs.predict(landed(writer))
    assert isinstance(caught.value.__cause__, OSError)
    assert writer.written == list(range(at))


def test_an_error_at_the_epoch_is_named_and_one_of_several_dataloaders_too(programs):
    with pytest.raises(SinkError, match="writing the epoch failed: OSError: no room"):
        programs.predict(landed(Fails(-1, "epoch")))
    with pytest.raises(SinkError, match="batch 1 of dataloader 0"):
        programs.predict(landed(Fails(1)), loaders=[programs.loader(0, 8), programs.loader(8, 16)])


def raises_at(batch):
    def form(logits, given):
        if int(given[1][0]) == batch * 4:
            raise ArithmeticError("the model failed")
        return logits

    return form


def test_what_was_predicted_before_an_exception_is_written(programs):
    writer = Fails(None)
    with pytest.raises(ArithmeticError, match="the model failed"):
        programs.predict(landed(writer), programs.Model(raises_at(3)))
    assert writer.written == [0, 1, 2]


def test_an_exception_of_the_model_is_not_hidden_by_one_of_the_writer(programs):
    with pytest.raises(ArithmeticError) as caught:
        programs.predict(landed(Fails(2)), programs.Model(raises_at(3)))
    assert any("writing batch 2 failed" in note for note in caught.value.__notes__)


class Full(BasePredictionWriter):
    """Uses more of the interface than two methods."""

    def __init__(self):
        super().__init__("batch")
        self.seen = []
        self.place = "here"

    @property
    def state_key(self):
        return "full"

    def state_dict(self):
        return {"place": self.place}

    def setup(self, trainer, pl_module, stage):
        super().setup(trainer, pl_module, stage)
        self.seen.append(f"setup {stage}")

    def on_predict_start(self, trainer, pl_module):  # noqa: ARG002
        self.seen.append("start")

    def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        if batch_idx % 2 == 0:
            super().on_predict_batch_end(trainer, pl_module, outputs + 1, batch, batch_idx, dataloader_idx)

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):  # noqa: ARG002
        self.seen.append((batch_idx, prediction[0, 0].item()))

    def on_predict_end(self, trainer, pl_module):  # noqa: ARG002
        self.seen.append("end")

    def teardown(self, trainer, pl_module, stage):  # noqa: ARG002
        self.seen.append(f"teardown {stage}")


def test_the_writer_s_other_methods_run_where_they_ran_and_its_own_hooks_are_kept(programs):
    found, expected = Full(), Full()
    programs.predict(landed(found))
    programs.predict(expected)
    assert found.seen == expected.seen
    assert len(found.seen) == 7
    assert "write_on_batch_end" not in vars(found)


def test_it_is_a_prediction_writer_and_looks_like_the_one_inside():
    writer = Full()
    found: Any = landed(writer)
    assert issubclass(type(found), BasePredictionWriter)
    assert (found.place, found.state_key, found.state_dict()) == ("here", "full", {"place": "here"})
    found.place = "there"
    assert writer.place == "there"
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = found.nothing_of_that_name
    for twin in (copy.copy(found), pickle.loads(pickle.dumps(found))):  # noqa: S301 - our own
        assert issubclass(type(twin), BasePredictionWriter)
        assert twin.place == "there"


def test_what_is_no_prediction_writer_is_refused():
    with pytest.raises(UsageError, match="a Callback is no prediction writer"):
        landed(Callback())
    with pytest.raises(UsageError, match="budget_bytes is 0"):
        landed(Full(), budget_bytes=0)


def test_who_lets_lightning_keep_every_prediction_is_told(programs):
    trainer = programs.trainer(landed(programs.Remember()))
    with pytest.warns(RuntimeWarning, match="pass return_predictions=False"):
        trainer.predict(programs.Model(), programs.loader())


def test_a_dataloader_without_numbers_does_not_get_those_of_the_one_before(programs):
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self):
            return iter([(programs.inputs[0], torch.tensor(0))] * 4)

    writer = programs.Remember()
    loaders = [programs.loader(0, 4), torch.utils.data.DataLoader(Endless(), batch_size=4)]
    with pytest.warns(UserWarning, match="Couldn't infer the batch indices"):
        programs.predict(landed(writer), loaders=loaders)
    assert [indices for _, indices, *_ in writer.batches] == [[0, 1, 2, 3], []]


def test_it_may_be_used_for_one_run_after_another(programs):
    writer = programs.Remember()
    wrapped = landed(writer)
    for _ in range(2):
        programs.predict(wrapped)
    assert [batch_idx for *_, batch_idx, _ in writer.batches] == [*range(5)] * 2
