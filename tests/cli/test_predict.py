"""`interlock predict`: what it writes, how it goes on, what it says."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from interlock.cli import _job
from interlock.drain import Drain

DOUBLE = """
def double(batch):
    return {"y": batch * 2, "sum": batch.sum(axis=1)}
"""

TORCH = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.dropout = torch.nn.Dropout(0.5)
        torch.nn.init.constant_(self.linear.weight, 1.0)
        torch.nn.init.zeros_(self.linear.bias)
    def forward(self, batch):
        assert isinstance(batch, torch.Tensor)
        assert torch.is_inference_mode_enabled() and not self.training
        return self.dropout(self.linear(batch))
net = Net()
def make():
    return Net()
"""

JAX = """
import jax
@jax.jit
def double(batch):
    assert isinstance(batch, jax.Array)
    return batch * 2
"""


def test_a_callable_gets_numpy_arrays_and_its_outputs_are_read_back(bench):
    said = bench.predict(f"{bench.file(DOUBLE)}:double", "--batch-size", 3)
    assert said.code == 0
    assert bench.read() == {row: {"y": [4.0 * row, 4.0 * row + 2], "sum": 4.0 * row + 1} for row in range(10)}
    schema = ds.dataset(bench.folder / "out", format="parquet").schema
    assert schema.field("id").type == pa.int64()
    assert schema.field("y").type == pa.list_(pa.float32(), 2)


@pytest.mark.parametrize(("options", "wanted"), [((), "auto"), (("--writers", 2), 2)])
def test_the_drain_gets_the_number_of_writers(bench, monkeypatch, options, wanted):
    asked = []

    def opened(*args, writers, **others):
        asked.append(writers)
        return Drain(*args, writers=writers, **others)

    monkeypatch.setattr(_job, "Drain", opened)
    assert bench.predict(f"{bench.file(DOUBLE)}:double", *options).code == 0
    assert asked == [wanted]
    assert len(bench.read()) == 10


@pytest.mark.parametrize("name", ["net", "Net", "make"])
def test_a_torch_module_its_class_or_its_maker_predicts_in_eval_and_inference_mode(bench, name):
    assert bench.predict(f"{bench.file(TORCH)}:{name}", "--batch-size", 4).code == 0
    values = np.array([next(iter(row.values())) for _, row in sorted(bench.read().items())])
    assert np.array_equal(values, np.repeat(bench.rows.sum(axis=1, keepdims=True), 3, axis=1))


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_jitted_function_gets_jax_arrays(bench, size):
    assert bench.predict(f"{bench.file(JAX)}:double", "--batch-size", size).code == 0
    values = np.array([next(iter(row.values())) for _, row in sorted(bench.read().items())])
    assert np.array_equal(values, bench.rows * 2)


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
def test_to_says_whose_arrays_a_plain_callable_gets(bench, to):
    text = "def name(batch):\n    import interlock.lowlevel as low\n"
    text += f"    assert low.framework_of(batch).name == {to!r}\n    return batch\n"
    import torch  # noqa: F401, PLC0415 - loaded, so that its arrays are known

    assert bench.predict(f"{bench.file(text)}:name", "--to", to).code == 0


def test_a_callable_object_and_its_class_are_models(bench):
    path = bench.file("class Twice:\n    def __call__(self, batch):\n        return batch * 2\ntwice = Twice()\n")
    assert bench.predict(f"{path}:twice").code == 0
    assert bench.predict(f"{path}:Twice", "--restart").code == 0
    assert len(bench.read()) == 10


def test_the_summary_has_the_promised_keys_and_adds_up(bench):
    summary = bench.predict(f"{bench.file(DOUBLE)}:double").json
    assert list(summary) == [
        "rows_total",
        "rows_committed",
        "rows_resumed",
        "rows_failed",
        "rows_given_up",
        "retries",
        "bytes_written",
        "seconds",
        "rows_per_second",
        "waits",
        "writers",
        "writer",
        "limit",
        "explanation",
    ]
    assert sum(summary["writer"].values()) == pytest.approx(1.0, abs=0.01)
    assert set(summary["waits"]) == {"source", "model", "sink"}
    assert (summary["rows_total"], summary["rows_committed"]) == (10, 10)
    assert (summary["rows_resumed"], summary["rows_failed"]) == (0, 0)
    assert summary["bytes_written"] > 0
    assert summary["seconds"] >= sum(summary["waits"].values()) - 0.01


def test_without_json_the_summary_is_a_short_table_and_progress_is_off_stdout(bench):
    slow = "import time\ndef double(batch):\n    time.sleep(0.02)\n    return batch * 2\n"  # else too quick to tell
    said = bench.call("predict", f"{bench.file(slow)}:double", bench.source, bench.sink)
    assert said.code == 0
    assert said.out.startswith("rows     10 of 10 committed (0 from before, 0 failed)\n")
    lines = said.out.splitlines()
    assert [line.partition(" ")[0] for line in lines[:5]] == ["rows", "written", "time", "waited", "writer"]
    assert lines[5] == ""
    assert " is the limit" in lines[6]
    assert max(map(len, lines[5:])) <= 100


def test_the_same_command_again_does_nothing_and_says_so(bench):
    marks = bench.folder / "marks"
    text = f"""
def twice(batch):
    with open({str(marks)!r}, "a") as file:
        file.write("x")
    return batch * 2
"""
    model = f"{bench.file(text)}:twice"
    assert bench.predict(model, "--batch-size", 5).code == 0
    before = bench.read()
    said = bench.predict(model, "--batch-size", 5)
    assert said.code == 0
    assert (said.json["rows_resumed"], said.json["rows_committed"]) == (10, 10)
    assert said.json["bytes_written"] == 0
    assert marks.read_text() == "xx"
    assert bench.read() == before


def test_a_limit_takes_the_first_rows_and_a_later_run_the_rest(bench):
    model = f"{bench.file(DOUBLE)}:double"
    said = bench.predict(model, "--limit", 4)
    assert said.code == 0
    assert said.json["rows_total"] == 4
    assert sorted(bench.read()) == [0, 1, 2, 3]
    assert bench.predict(model, "--limit", 4).json["rows_resumed"] == 4
    said = bench.predict(model)
    assert said.code == 0
    assert (said.json["rows_resumed"], said.json["rows_committed"]) == (4, 10)
    assert len(bench.read()) == 10


def test_options_that_change_no_value_do_not_stand_against_going_on(bench):
    model = f"{bench.file(DOUBLE)}:double"
    assert bench.predict(model, "--limit", 3).code == 0
    assert bench.predict(model, "--batch-size", 7, "--workers", 0, "--depth", 1, "--device", "host").code == 0


def test_a_simulated_device_gives_the_same_rows(bench):
    assert bench.predict(f"{bench.file(DOUBLE)}:double", "--device", "simulated:random:3", "--batch-size", 3).code == 0
    assert bench.read()[9] == {"y": [36.0, 38.0], "sum": 37.0}


def test_parquet_columns_and_an_id_column(bench):
    path = bench.folder / "in.parquet"
    pq.write_table(pa.table({"key": ["c", "a", "b"], "x": [1.0, 2.0, 3.0], "y": [4, 5, 6]}), path)
    model = bench.file(
        "def both(batch):\n    return {'z': batch['x'] + batch['y']}\ndef one(batch):\n    return batch\n"
    )
    assert bench.predict(f"{model}:both", "--id-column", "key", source=str(path)).code == 0
    assert bench.read() == {"c": {"z": 5.0}, "a": {"z": 7.0}, "b": {"z": 9.0}}
    said = bench.predict(f"{model}:both", "--id-column", "key", "--columns", "x,y", source=str(path))
    assert said.code == 0, "the same columns by name are the same conditions"
    assert bench.predict(f"{model}:one", "--columns", "y", "--restart", source=str(path)).code == 0
    assert sorted(bench.read()) == [0, 1, 2]


def test_rows_of_any_length_are_lists(bench):
    model = bench.file("""
import numpy as np
from interlock.drain import Ragged

def model(batch):
    lengths = batch[:, 0].astype(int) % 3
    return {"own": Ragged(batch, lengths=np.minimum(lengths, 2)), "fed": {"values": batch[:1, 0], "offsets": [0, 1]}}
""")
    assert bench.predict(f"{model}:model", "--batch-size", 1).code == 0
    for row, values in bench.read().items():
        assert values["own"] == bench.rows[row].tolist()[: int(bench.rows[row][0]) % 3]
        assert values["fed"] == bench.rows[row].tolist()[:1]


def test_an_npy_sink_and_a_python_source(bench):
    source = bench.file("import numpy as np\ndef source():\n    return [np.full(2, i) for i in range(3)]\n", "data.py")
    sink = f"npy:{bench.folder / 'out'}"
    assert bench.predict(f"{bench.file(DOUBLE)}:double", source=f"{source}:source", sink=sink).code == 0
    assert bench.call("verify", sink).code == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [("model", "model.file"), ("source", "source.content"), ("columns", "source.columns"), ("to", "model.to")],
)
def test_other_conditions_are_refused_and_named_and_restart_discards(bench, change, named):
    path = bench.folder / "in.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [3.0, 4.0]}), path)
    model = bench.file("def f(batch):\n    return batch\n")
    assert bench.predict(f"{model}:f", source=str(path)).code == 0
    before = bench.read()
    options = []
    if change == "model":
        bench.file("def f(batch):\n    return {'x': batch['x']}\n", "model2.py")
        model = str(bench.folder / "model2.py")
    elif change == "source":
        pq.write_table(pa.table({"x": [1.0, 2.0], "y": [3.0, 5.0]}), path)
    elif change == "columns":
        options = ["--columns", "x"]
    else:
        options = ["--to", "torch"]
    said = bench.predict(f"{model}:f", *options, source=str(path))
    assert said.code == 2
    assert named in said.err
    assert "--restart" in said.err
    assert bench.read() == before
    assert bench.predict(f"{model}:f", *options, "--restart", source=str(path)).code == 0


def test_other_weights_are_another_model(bench):
    text = f"""{TORCH}
import pathlib
torch.nn.init.constant_(net.linear.weight, float(pathlib.Path({str(bench.folder / "w")!r}).read_text()))
"""
    (bench.folder / "w").write_text("1")
    assert bench.predict(f"{bench.file(text)}:net").code == 0
    (bench.folder / "w").write_text("2")
    said = bench.predict(f"{bench.file(text, 'again.py')}:net")
    assert said.code == 2
    assert "model.weights" in said.err
    assert "model.file" not in said.err


def test_status_tells_what_is_there_and_what_is_missing(bench):
    bench.predict(f"{bench.file(DOUBLE)}:double", "--limit", 6)
    said = bench.call("status", bench.sink, "--json")
    assert said.code == 0
    assert said.json["rows_committed"] == 6
    assert "6" in bench.call("status", bench.sink).out


def test_verify_finds_one_flipped_byte_and_names_the_shard(bench):
    bench.predict(f"{bench.file(DOUBLE)}:double")
    assert bench.call("verify", bench.sink).code == 0
    (shard,) = (bench.folder / "out").glob("*.parquet")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    said = bench.call("verify", bench.sink)
    assert said.code == 1
    assert shard.name in said.out + said.err
    said = bench.call("verify", bench.sink, "--json")
    assert said.code == 1
    assert shard.name in json.dumps(said.json)


@pytest.mark.parametrize("command", ["status", "verify"])
def test_a_folder_that_is_no_sink_is_refused(bench, command):
    assert bench.call(command, f"parquet:{bench.folder}").code == 2
    assert bench.call(command, f"parquet:{bench.folder / 'missing'}").code == 2


def test_help_names_every_command_and_option(bench):
    said = bench.call("--help")
    assert said.code == 0
    assert all(command in said.out for command in ("predict", "status", "verify"))
    said = bench.call("predict", "--help")
    promised = "--batch-size --workers --depth --device --to --limit --restart --json --quiet --columns --id-column"
    assert all(option in said.out for option in [*promised.split(), "--image-size", "--allow-nan"])
    assert bench.call("--version").out.startswith("interlock")
    assert bench.call().code == 2


def test_the_command_line_imports_no_framework_before_it_knows_which():
    text = "import sys, interlock.cli; print(sorted({'torch', 'jax', 'pyarrow', 'PIL', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "[]\n"


NAN_MODEL = """
import numpy as np

def model(batch):
    return np.where(batch == 6, np.nan, batch)
"""


def test_rows_that_failed_in_enough_runs_are_left_out_and_still_missing(bench):
    model = f"{bench.file(NAN_MODEL, 'nan_model.py')}:model"
    for attempt in (1, 2):
        said = bench.predict(model, "--max-attempts", 2)
        assert (said.code, said.json["rows_failed"], said.json["rows_given_up"]) == (3, 1, 0)
        assert bench.call("status", bench.sink, "--json").json["failures"][0]["attempts"] == attempt
    said = bench.predict(model, "--max-attempts", 2)
    assert (said.code, said.json["rows_failed"], said.json["rows_given_up"]) == (3, 0, 1)
    assert "1 of 10 rows are not in" in said.err
    assert bench.predict(model).json["rows_failed"] == 1, "without the option it is tried again"
