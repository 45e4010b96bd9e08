"""`DrainWriter`: what `predict_step` returns, in a sink, each row under the id of its sample."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import BasePredictionWriter, Callback
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import interlock
from interlock import check
from interlock.drain import Ragged, open_sink, read_committed
from interlock.errors import SinkConflictError, UsageError
from interlock.integrations.lightning import DrainWriter

SCHEDULES = ("lazy", "eager", "starve:default", "starve:drain", "pct:1")
MOVES = {
    "on the device": lambda logits, _: logits,
    "moved without waiting": lambda logits, _: logits.to("cpu", non_blocking=True),
}
IDS = {
    "of Lightning": None,
    "a key": 1,
    "a function": lambda batch, indices: [one + 0 for one in indices],  # noqa: ARG005
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_row_is_right_under_every_schedule_and_nothing_is_reported(
    programs, tmp_path, stored, schedule, ids, move
):
    """At a key of the batch, ids are on the device like the rest of it."""
    with check.simulate(schedule, raise_on_hazard=False) as session:
        writer: Any = DrainWriter(f"npy:{tmp_path / 'out'}", IDS[ids], writers=3)
        programs.predict(writer, programs.Model(MOVES[move]), accelerator="gpu")
    report = session.report()
    assert (report.failure, report.hazards, report.unsupported) == (None, (), ())
    rows, numbers = stored(tmp_path / "out")
    assert numbers == list(range(20))
    assert np.array_equal(rows, programs.expected())
    assert writer.drain is None
    assert (writer.statistics().rows_committed, writer.statistics().host_syncs) == (20, 0)
    assert writer.explain().done == writer.statistics()
    assert writer.statistics().writers == 3


def test_what_the_model_overwrites_right_away_was_taken_before(programs, tmp_path, stored):
    class Overwrites(Callback):
        def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):  # noqa: ARG002
            outputs.zero_()
            batch[1].zero_()

    with check.simulate("lazy"):
        trainer = programs.trainer(DrainWriter(f"npy:{tmp_path}", ids=1), Overwrites(), accelerator="gpu")
        trainer.predict(programs.Model(), programs.loader(), return_predictions=False)
    rows, numbers = stored(tmp_path)
    assert numbers == list(range(20))
    assert np.array_equal(rows, programs.expected())


def test_dicts_and_tuples_become_columns_and_some_may_be_chosen(programs, tmp_path, stored):
    def form(logits, _):
        return {"logits": logits, "pair": (logits.argmax(1), logits.half()), "text": ["a"] * len(logits)}

    with pytest.raises(UsageError, match="text"):
        programs.predict(DrainWriter(f"npy:{tmp_path / 'a'}"), programs.Model(form))
    programs.predict(DrainWriter(f"npy:{tmp_path / 'b'}", columns=["logits", "pair"]), programs.Model(form))
    expected = programs.expected()
    assert np.array_equal(stored(tmp_path / "b", "logits")[0], expected)
    assert np.array_equal(stored(tmp_path / "b", "pair.0")[0], expected.argmax(1))
    assert stored(tmp_path / "b", "pair.1")[0].dtype == np.float16
    with pytest.raises(UsageError, match="predict_step returned no 'other'"):
        programs.predict(DrainWriter(f"npy:{tmp_path / 'c'}", columns=["other"]), programs.Model(form))


@pytest.mark.parametrize("ids", ["of Lightning", "a key"])
def test_rows_of_any_length_come_through(programs, tmp_path, ids):
    """Their lengths are on the device, and so are the ids at a key of the batch: then all wait for these together."""

    def form(logits, batch):
        lengths = batch[1] % 4
        own, every = Ragged(logits, lengths=lengths), Ragged(list(logits))
        return {"own": own, "fed": {"values": logits, "lengths": lengths}, "all": every}

    with check.simulate("lazy", raise_on_hazard=False) as session:
        writer: Any = DrainWriter(f"npy:{tmp_path / 'out'}", IDS[ids])
        programs.predict(writer, programs.Model(form), accelerator="gpu")
    assert (session.report().failure, session.report().hazards) == (None, ())
    sink, folder = open_sink(f"npy:{tmp_path / 'out'}")
    found: dict[int, Any] = {}
    for shard in folder.glob("part-*"):
        numbers = sink.read_shard(shard).ids.tolist()
        columns = sink.read_rows(shard, range(len(numbers)))
        found |= {one: {name: rows[at] for name, rows in columns.items()} for at, one in enumerate(numbers)}
    assert sorted(found) == list(range(20))
    for one, row in enumerate(programs.expected()):
        assert np.array_equal(found[one]["own"], row[: one % 4])
        assert np.array_equal(found[one]["fed"], row[: one % 4])
        assert np.array_equal(found[one]["all"], row)


def test_lightning_moves_the_parts_of_predictions_that_it_returns(programs, tmp_path):
    trainer = programs.trainer(DrainWriter(f"npy:{tmp_path}"))
    model = programs.Model(lambda logits, batch: {"h": Ragged(logits, lengths=batch[1] % 4)})
    with pytest.warns(RuntimeWarning, match="keeps every prediction"):
        returned = trainer.predict(model, programs.loader())
    assert np.array_equal(np.concatenate([one["h"].values.numpy() for one in returned]), programs.expected())


def test_outputs_may_be_made_smaller_on_their_way(programs, tmp_path, stored):
    programs.predict(DrainWriter(f"npy:{tmp_path}", outputs={"output": interlock.drain.Argmax()}))
    assert np.array_equal(stored(tmp_path)[0], programs.expected().argmax(1))


def test_a_shuffled_loader_s_rows_have_the_numbers_of_their_samples(programs, tmp_path, stored):
    programs.predict(DrainWriter(f"npy:{tmp_path}"), loaders=programs.loader(shuffle=True))
    rows, numbers = stored(tmp_path)
    assert numbers == list(range(20))
    assert np.allclose(rows, programs.expected(), atol=1e-6)


def test_several_dataloaders_come_under_their_names(programs, tmp_path, stored):
    loaders = [programs.loader(0, 8), programs.loader(8, 20)]
    programs.predict(DrainWriter(f"npy:{tmp_path / 'list'}"), loaders=loaders)
    _, ids = stored(tmp_path / "list")
    assert sorted(ids) == sorted([*(f"0/{row}" for row in range(8)), *(f"1/{row}" for row in range(12))])
    programs.predict(DrainWriter(f"npy:{tmp_path / 'dict'}"), loaders={"left": loaders[0], "right": loaders[1]})
    rows, ids = stored(tmp_path / "dict")
    found = dict(zip(ids, rows.tolist(), strict=True))
    expected = programs.expected().tolist()
    assert found["left/3"] == expected[3]
    assert found["right/3"] == expected[11]
    programs.predict(DrainWriter(f"npy:{tmp_path / 'own'}", ids=1), loaders=loaders)
    assert stored(tmp_path / "own")[1] == list(range(20))


class Stream(IterableDataset[Any]):
    def __init__(self, inputs):
        self.inputs = inputs

    def __iter__(self):
        return iter([(row, f"row {number:02}") for number, row in enumerate(self.inputs)])


@pytest.mark.filterwarnings("ignore:Couldn't infer the batch indices")
def test_a_dataset_without_numbers_needs_ids_in_its_batches(programs, tmp_path, stored):
    loader = DataLoader(Stream(programs.inputs), batch_size=4)
    with pytest.raises(UsageError, match=r"does not say which samples it holds.*ids='id'"):
        programs.predict(DrainWriter(f"npy:{tmp_path / 'a'}"), loaders=loader)
    programs.predict(DrainWriter(f"npy:{tmp_path / 'b'}", ids=1), loaders=loader)
    rows, ids = stored(tmp_path / "b")
    assert ids == [f"row {number:02}" for number in range(20)]
    assert np.array_equal(rows, programs.expected())


def test_a_key_that_the_batch_lacks_is_named(programs, tmp_path):
    with pytest.raises(UsageError, match="the batch has no 'id': it is a list"):
        programs.predict(DrainWriter(f"npy:{tmp_path}", ids="id"))


def test_what_a_distributed_sampler_repeats_is_there_once(programs, tmp_path, stored):
    """With three ranks of 20 rows each has seven: the last rank begins again at the first row."""
    for rank in range(3):
        rows: Any = range(20)
        sampler: Any = DistributedSampler(rows, num_replicas=3, rank=rank, shuffle=False)
        loader = DataLoader(programs.loader().dataset, batch_size=4, sampler=sampler)
        programs.predict(DrainWriter(f"npy:{tmp_path}"), loaders=loader, use_distributed_sampler=False)
    assert stored(tmp_path)[1] == list(range(20))


def raises_at(batch):
    def form(logits, given):
        if int(given[1][0]) == batch * 4:
            raise ArithmeticError("the model failed")
        return logits

    return form


def test_a_run_that_fails_commits_what_it_has_and_the_next_does_the_rest(programs, tmp_path, stored):
    sink = f"npy:{tmp_path}"
    with pytest.raises(ArithmeticError):
        programs.predict(DrainWriter(sink), programs.Model(raises_at(3)))
    assert len(read_committed(sink)) == 12
    writer: Any = DrainWriter(sink)
    left = writer.pending(programs.loader().dataset)
    assert len(left) == 8
    programs.predict(writer, loaders=DataLoader(left, batch_size=3))
    assert writer.statistics().rows_committed == 8
    rows, numbers = stored(tmp_path)
    assert numbers == list(range(20))
    assert np.allclose(rows, programs.expected(), atol=1e-6)
    assert len(writer.pending(programs.loader().dataset)) == 0


def test_pending_works_inside_the_run_too_and_for_samples_with_names(programs, tmp_path, stored):
    class Named(torch.utils.data.TensorDataset):
        def id_of(self, index):
            return f"sample {index:02}"

    data = Named(programs.inputs, torch.arange(20))
    with interlock.Drain(f"npy:{tmp_path}") as drain:
        drain.put([f"sample {row:02}" for row in range(0, 20, 2)], np.zeros((10, 3), np.float32))
    writer = DrainWriter(f"npy:{tmp_path}")

    class LoadsLate(programs.Model):  # type: ignore[misc,name-defined]
        def predict_dataloader(self):
            return DataLoader(writer.pending(data), batch_size=4)

    programs.trainer(writer).predict(LoadsLate(), return_predictions=False)
    rows, names = stored(tmp_path)
    assert names == [f"sample {row:02}" for row in range(20)]
    assert np.allclose(rows[1::2], programs.expected()[1::2], atol=1e-6)
    assert not rows[::2].any()


def test_pending_of_one_of_several_dataloaders_goes_by_its_name(programs, tmp_path):
    with interlock.Drain(f"npy:{tmp_path}") as drain:
        drain.put(["a/0", "b/1"], np.zeros((2, 3), np.float32))
    writer = DrainWriter(f"npy:{tmp_path}")
    data = programs.loader().dataset
    assert writer.pending(data, "a").id_of(0) == 1
    assert [writer.pending(data, "b").id_of(row) for row in (0, 1)] == [0, 2]


def test_pending_says_what_it_cannot_do(programs, tmp_path):
    with pytest.raises(UsageError, match="TensorDataset does not tell the ids of its samples"):
        DrainWriter(f"npy:{tmp_path}", ids=1).pending(programs.loader().dataset)
    with pytest.raises(UsageError, match="Stream has no samples that can be left out"):
        DrainWriter(f"npy:{tmp_path}").pending(Stream(programs.inputs))


def test_a_sink_made_under_other_conditions_is_refused_before_anything_runs(programs, tmp_path):
    programs.predict(DrainWriter(f"npy:{tmp_path}", fingerprint={"model": 1}))
    with pytest.raises(SinkConflictError, match="model"):
        programs.predict(DrainWriter(f"npy:{tmp_path}", fingerprint={"model": 2}))
    programs.predict(DrainWriter(f"npy:{tmp_path}", fingerprint={"model": 2}, restart=True))


def test_it_is_a_prediction_writer_that_can_go_to_another_process(tmp_path):
    writer: Any = DrainWriter(f"npy:{tmp_path}", "id", shard_bytes=7)
    twin = pickle.loads(pickle.dumps(writer))  # noqa: S301 - our own
    for one in (writer, twin):
        assert issubclass(type(one), BasePredictionWriter)
        assert one.interval == "batch"
        assert one.explain() is one.statistics() is None


def test_lightning_s_command_line_makes_one_from_plain_values(programs, tmp_path, stored):
    pytest.importorskip("jsonargparse")
    from pytorch_lightning.cli import LightningCLI  # noqa: PLC0415

    config = {
        "trainer": {
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": [
                {
                    "class_path": "interlock.integrations.lightning.DrainWriter",
                    "init_args": {
                        "sink": f"npy:{tmp_path}",
                        "ids": 1,
                        "writers": 2,
                        "shard_bytes": 100,
                        "repeats": "same",
                    },
                }
            ],
        },
    }

    class Program(programs.Model):  # type: ignore[misc,name-defined]
        def __init__(self):
            super().__init__()

        def predict_dataloader(self):
            return programs.loader()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of jsonargparse, about Lightning
        LightningCLI(
            Program,
            seed_everything_default=1,
            save_config_callback=None,
            args={"subcommand": "predict", "predict": {**config, "return_predictions": False}},
        )
    rows, numbers = stored(tmp_path)
    assert numbers == list(range(20))
    assert np.array_equal(rows, programs.expected())


OTHER_NAME = """
import logging, sys, warnings
warnings.simplefilter("ignore")
import lightning.pytorch as lightning, torch
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
from lightning.pytorch.callbacks import BasePredictionWriter
from interlock.integrations.lightning import DrainWriter, landed

assert "pytorch_lightning" not in sys.modules
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Identity()
    def predict_step(self, batch):
        return batch
class Print(BasePredictionWriter):
    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
        print(prediction.tolist())
writer = DrainWriter("npy:" + sys.argv[1])
assert isinstance(writer, BasePredictionWriter) and isinstance(landed(Print()), BasePredictionWriter)
trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, callbacks=[writer, landed(Print())])
trainer.predict(Model(), torch.utils.data.DataLoader(torch.arange(6.0), batch_size=3), return_predictions=False)
"""


def test_both_work_under_lightning_s_other_name(tmp_path, stored):
    pytest.importorskip("lightning")
    done = subprocess.run(
        [sys.executable, "-c", OTHER_NAME, str(tmp_path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[0.0, 1.0, 2.0]", "[3.0, 4.0, 5.0]"]
    assert stored(tmp_path)[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_package_imports_no_library_by_itself():
    program = "import sys, interlock.integrations; assert not {'torch', 'lightning', 'accelerate'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
