"""Every bad input ends in one clear line, the right exit code, no traceback of ours, and loses nothing committed."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import interlock
from interlock.cli._exits import guarded, user_traceback
from interlock.errors import InternalError, UsageError

SAME = "def same(batch):\n    return batch\n"
OURS = str(Path(interlock.__file__).parent)
MEAN = "def mean(batch):\n    return batch.mean(axis=(1, 2, 3))\n"


def assert_one_clear_line(said, *, code, traceback=False):
    """The contract of every bad input: one error line, the next step, the exit code, no frames of ours."""
    assert said.code == code, said.err
    errors = [line for line in said.err.splitlines() if line.startswith("interlock: error: ")]
    assert len(errors) == 1, said.err
    assert OURS not in said.err
    assert ("Traceback" in said.err) == traceback, said.err
    return errors[0]


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["predict", "m.py:f", "a.npy"], "Missing argument 'SINK'"),
        (["predict", "m.py:f", "a.npy", "parquet:o", "--no-such"], "No such option"),
        (["predict", "m.py:f", "a.npy", "parquet:o", "--batch-size", "0"], "--batch-size"),
        (["predict", "m.py:f", "a.npy", "parquet:o", "--to", "mxnet"], "--to"),
        (["predict", "m.py:f", "a.npy", "parquet:o", "--image-size", "9"], "is not HEIGHT,WIDTH"),
        (["predict", "m.py:f", "a.npy", "parquet:o", "--columns", "a,,b"], "--columns"),
        (["predct"], "No such command 'predct'"),
    ],
)
def test_a_command_that_cannot_be_meant(bench, arguments, text):
    said = bench.call(*arguments)
    assert text in assert_one_clear_line(said, code=2)
    assert "hint: see interlock" in said.err


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("missing.py:f", "there is no file missing.py"),
        ("no_such_module_1234:f", "there is no module 'no_such_module_1234'"),
        ("model.py", "does not name an object"),
        ("{path}:sme", "has no 'sme'"),
        ("{path}:number", "is not callable"),
        ("{path}:broken", "could not be made: KeyError"),
    ],
)
def test_a_model_that_is_none(bench, model, text):
    path = bench.file(SAME + "number = 3\ndef broken():\n    return {}['x']\n")
    said = bench.predict(model.format(path=path))
    traceback = "broken" in model
    assert text in assert_one_clear_line(said, code=2, traceback=traceback)
    assert not (bench.folder / "out").exists()


def test_a_model_file_that_fails_shows_the_traceback_of_the_user_alone(bench):
    path = bench.file("def helper():\n    return 1 / 0\nhelper()\n")
    said = bench.predict(f"{path}:f")
    assert_one_clear_line(said, code=2, traceback=True)
    assert "return 1 / 0" in said.err
    assert "ZeroDivisionError: division by zero" in said.err
    assert "importlib" not in said.err


def test_a_syntax_error_in_the_users_file_is_shown(bench):
    said = bench.predict(f"{bench.file('def f(:')}:f")
    assert_one_clear_line(said, code=2, traceback=True)
    assert "def f(:" in said.err


def test_a_device_that_is_none(bench):
    said = bench.predict(f"{bench.file(SAME)}:same", "--device", "tpu")
    assert "no device is called 'tpu'" in assert_one_clear_line(said, code=2)
    assert not (bench.folder / "out").exists()


def test_to_that_contradicts_the_model(bench):
    path = bench.file("import jax\n@jax.jit\ndef f(batch):\n    return batch\n")
    assert "it wants jax arrays" in assert_one_clear_line(bench.predict(f"{path}:f", "--to", "numpy"), code=2)


# ---------------------------------------------------------------- the source


def test_a_missing_source(bench):
    said = bench.predict(f"{bench.file(SAME)}:same", source=str(bench.folder / "none.npy"))
    assert "there is no source" in assert_one_clear_line(said, code=2)
    assert "hint: " in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((0, 3)), "has no rows"),
        (np.array([{}, 1], dtype=object), "dtype object"),
        (np.array(["a"]), "dtype <U1"),
    ],
)
def test_an_array_that_holds_no_samples(bench, array, text):
    np.save(bench.folder / "bad.npy", array, allow_pickle=True)
    said = bench.predict(f"{bench.file(SAME)}:same", source=str(bench.folder / "bad.npy"))
    assert text in assert_one_clear_line(said, code=2)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("np.zeros(3)", "has shape (3,), the first sample had (2,)"),
        ("np.zeros(2, np.int32)", "has dtype int32, the first sample had float64"),
        ("np.array([None, 1])", "has dtype object"),
        ("{'x': np.zeros(2)}", "the first sample had"),
        ("[1, [2]]", "the first sample had"),
        ("'text'", "has dtype <U4"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_sample_unlike_the_first_fails_alone_and_is_named(bench, bad, text):
    source = bench.file(
        f"""
import numpy as np
class Rows:
    def __len__(self): return 9
    def __getitem__(self, index): return ({bad}) if index == 4 else np.full(2, float(index))
""",
        "data.py",
    )
    said = bench.predict(f"{bench.file(SAME)}:same", "--batch-size", 3, source=f"{source}:Rows")
    line = assert_one_clear_line(said, code=3)
    assert "1 of 9 rows are not in" in line
    assert "the first is 4: " in line
    assert text in line
    assert said.json["rows_failed"] == 1
    assert sorted(bench.read()) == [0, 1, 2, 3, 5, 6, 7, 8]
    (failure,) = bench.call("status", bench.sink, "--json").json["failures"]
    assert failure["id"] == 4
    assert text in failure["reason"]


def test_a_source_without_any_good_sample(bench):
    source = bench.file("def rows():\n    return [None, None]\n", "data.py")
    said = bench.predict(f"{bench.file(SAME)}:same", source=f"{source}:rows")
    assert_one_clear_line(said, code=said.code if said.code in {2, 3} else -1)


def test_a_source_that_shrinks(bench):
    source = bench.file(
        """
class Rows:
    left = 9
    def __len__(self): return self.left
    def __getitem__(self, index):
        if index >= 6:
            self.left = 6
            raise IndexError(index)
        return float(index)
""",
        "data.py",
    )
    said = bench.predict(f"{bench.file(SAME)}:same", "--batch-size", 3, "--workers", 0, source=f"{source}:Rows")
    line = assert_one_clear_line(said, code=3)
    assert "3 of 9 rows" in line
    assert "it said that it has 9 samples" in line
    assert sorted(bench.read()) == list(range(6))


def test_a_file_that_shrinks(bench):
    path = bench.folder / "shrinks.npy"
    np.save(path, np.zeros((100, 1000)))
    text = f"import os\ndef cut(batch):\n    os.truncate({str(path)!r}, 128 + 8000 * 50)\n    return batch[:, 0]\n"
    said = bench.predict(f"{bench.file(text)}:cut", "--batch-size", 10, "--workers", 0, "--depth", 1, source=str(path))
    line = assert_one_clear_line(said, code=3)
    assert "did the file shrink" in line
    assert sorted(bench.read()) == list(range(50))


def test_a_broken_image_fails_alone_and_when_mended_is_the_only_one_that_is_predicted(bench):
    folder = bench.folder / "images"
    folder.mkdir()
    for number in range(5):
        Image.new("RGB", (4, 3), (number, 0, 0)).save(folder / f"{number}.png")
    whole = (folder / "2.png").read_bytes()
    (folder / "2.png").write_bytes(whole[:40])
    marks = bench.folder / "marks"
    text = f"""
def mean(batch):
    with open({str(marks)!r}, "a") as file:
        file.write("x" * len(batch))
    return batch[:, 0, 0, 0]
"""
    model = f"{bench.file(text)}:mean"
    said = bench.predict(model, "--batch-size", 2, source=str(folder))
    line = assert_one_clear_line(said, code=3)
    assert "the first is 2.png" in line
    assert "cannot be decoded" in line
    assert sorted(bench.read()) == ["0.png", "1.png", "3.png", "4.png"]
    marks.unlink()
    assert bench.predict(model, source=str(folder)).code == 3
    (folder / "2.png").write_bytes(whole)
    again = bench.predict(model, source=str(folder))
    assert again.code == 0
    assert again.json["rows_resumed"] == 4
    assert marks.read_text() == "x"
    assert len(bench.read()) == 5


def test_links_out_of_the_source_are_left_out_and_counted(bench):
    folder = bench.folder / "images"
    folder.mkdir()
    Image.new("RGB", (4, 3)).save(folder / "a.png")
    Image.new("RGB", (4, 3)).save(bench.folder / "outside.png")
    (folder / "b.png").symlink_to(bench.folder / "outside.png")
    said = bench.predict(f"{bench.file(MEAN)}:mean", source=str(folder))
    assert said.code == 0
    assert "note: 1 links" in said.err
    assert sorted(bench.read()) == ["a.png"]


def test_images_of_different_sizes(bench):
    folder = bench.folder / "images"
    folder.mkdir()
    Image.new("RGB", (4, 3)).save(folder / "a.png")
    Image.new("RGB", (3, 4)).save(folder / "b.png")
    said = bench.predict(f"{bench.file(MEAN)}:mean", source=str(folder))
    line = assert_one_clear_line(said, code=2)
    assert "'a.png' is 3x4" in line
    assert "--image-size" in said.err
    assert bench.predict(f"{bench.file(MEAN)}:mean", "--image-size", "8,8", source=str(folder)).code == 0


def test_a_null_in_parquet_fails_its_row(bench):
    path = bench.folder / "in.parquet"
    pq.write_table(pa.table({"x": [1.0, None, 3.0]}), path)
    said = bench.predict(f"{bench.file(SAME)}:same", source=str(path))
    assert "column 'x' is null there" in assert_one_clear_line(said, code=3)
    assert sorted(bench.read()) == [0, 2]


def test_a_sink_inside_its_source(bench):
    folder = bench.folder / "data"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1.0]}), folder / "a.parquet")
    said = bench.predict(f"{bench.file(SAME)}:same", source=str(folder), sink=f"parquet:{folder / 'out'}")
    assert "lies in source" in assert_one_clear_line(said, code=2)


def test_the_sink_that_keeps_nothing_lies_nowhere(bench, monkeypatch):
    folder = bench.folder / "data"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1.0]}), folder / "a.parquet")
    monkeypatch.chdir(folder)
    assert bench.predict(f"{bench.file(SAME)}:same", source=".", sink="null:").code == 0


def test_rows_that_fail_into_nothing_are_told_all_the_same(bench):
    nan = "def model(batch):\n    return batch * float('nan')\n"
    said = bench.predict(f"{bench.file(nan)}:model", sink="null:")
    assert "10 of 10 rows failed; their outputs hold NaN" in assert_one_clear_line(said, code=3)


def test_frames_of_compiled_libraries_are_not_taken_for_the_user_s_code():
    """They name the files that they were compiled from, which are not on this machine."""
    frames: dict[str, Any] = {}
    exec(compile("def cuInit():\n    raise RuntimeError\n", "cuda/bindings/driver.pyx", "exec"), frames)  # noqa: S102
    with pytest.raises(RuntimeError) as caught:
        frames["cuInit"]()
    error = UsageError("no CUDA device can be opened")
    error.__cause__ = caught.value.with_traceback(caught.tb.tb_next)
    assert user_traceback(error) == ""


# ---------------------------------------------------------------- the model's outputs


def test_nan_is_a_failed_row_unless_allowed(bench):
    rows = bench.rows.copy()
    rows[3, 1] = np.nan
    np.save(bench.folder / "rows.npy", rows)
    said = bench.predict(f"{bench.file(SAME)}:same")
    line = assert_one_clear_line(said, code=3)
    assert "the first is 3: NaN in output" in line
    assert len(bench.read()) == 9
    assert bench.predict(f"{bench.file(SAME)}:same", "--allow-nan").code == 0
    assert len(bench.read()) == 10


LATER_BAD = """
import numpy as np
def model(batch):
    return {bad} if batch[0, 0] >= 8 else batch
"""


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("batch[:1]", "returned 1 rows for a batch of 2"),
        ("batch[0, 0].item()", "is one number"),
        ("None", "is of type NoneType"),
        ("['a', 'b']", "is of type str"),
        ("{}", "returned nothing"),
        ("{1: batch}", "cannot be named"),
        ("{'a.b': batch, 'a': {'b': batch}}", "cannot be named"),
        ("batch.astype(object)", "object"),
        ("batch.astype(np.float64)", "float64"),
        ("np.zeros((2, 5), np.float32)", "(5,)"),
        ("{'other': batch}", "other"),
    ],
)
def test_outputs_that_do_not_fit_fail_their_batch_and_what_came_before_is_committed(bench, bad, text):
    """Batches of two rows; the third one is bad."""
    said = bench.predict(f"{bench.file(LATER_BAD.format(bad=bad))}:model", "--batch-size", 2)
    assert text in assert_one_clear_line(said, code=3)
    assert sorted(bench.read()) == [0, 1, 2, 3]
    assert said.json["rows_committed"] == 4
    assert said.json["rows_failed"] == 2
    status = bench.call("status", bench.sink, "--json").json
    assert [one["id"] for one in status["failures"]] == [4, 5]
    assert status["rows_missing"] == 6


def test_a_model_that_raises_shows_its_own_traceback_and_the_ids(bench):
    text = "def helper(batch):\n    raise RuntimeError('no luck')\ndef model(batch):\n    return helper(batch)\n"
    said = bench.predict(f"{bench.file(text)}:model", "--batch-size", 2)
    line = assert_one_clear_line(said, code=3, traceback=True)
    assert "failed on the rows with ids 0, 1: RuntimeError: no luck" in line
    assert "return helper(batch)" in said.err
    assert "raise RuntimeError('no luck')" in said.err


def test_a_torch_model_that_raises_shows_no_frames_of_torch(bench):
    text = """
import torch
class Net(torch.nn.Module):
    def forward(self, batch):
        return batch @ torch.zeros(7, 7)
"""
    said = bench.predict(f"{bench.file(text)}:Net")
    assert_one_clear_line(said, code=3, traceback=True)
    assert "return batch @ torch.zeros(7, 7)" in said.err
    assert "site-packages" not in said.err


# ---------------------------------------------------------------- the sink


@pytest.mark.parametrize("sink", ["out", "csv:out", "parquet:", "s3:bucket"])
def test_a_sink_that_is_none(bench, sink, monkeypatch):
    monkeypatch.chdir(bench.folder)
    assert_one_clear_line(bench.predict(f"{bench.file(SAME)}:same", sink=sink), code=2)


def test_a_sink_written_by_something_else_is_not_touched(bench):
    other = bench.folder / "out"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    for options in ([], ["--restart"]):
        said = bench.predict(f"{bench.file(SAME)}:same", *options)
        assert "was written by something else" in assert_one_clear_line(said, code=2)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


def test_a_sink_of_another_format(bench):
    assert bench.predict(f"{bench.file(SAME)}:same").code == 0
    said = bench.predict(f"{bench.file(SAME)}:same", sink=f"npy:{bench.folder / 'out'}")
    assert "holds parquet shards" in assert_one_clear_line(said, code=2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that even root cannot write to")
def test_a_sink_folder_without_permission(bench):
    said = bench.predict(f"{bench.file(SAME)}:same", sink="parquet:/sys/interlock-test")
    line = assert_one_clear_line(said, code=3)
    assert "/sys/interlock-test" in line
    assert "permission" in said.err.lower() + line.lower()


def test_a_sink_below_a_file(bench):
    said = bench.predict(f"{bench.file(SAME)}:same", sink=f"parquet:{bench.source}/out")
    assert_one_clear_line(said, code=said.code if said.code in {2, 3} else -1)


def test_a_full_disk_keeps_what_is_committed_and_the_next_run_goes_on(bench, monkeypatch):
    model = f"{bench.file(SAME)}:same"
    assert bench.predict(model, "--limit", 4).code == 0

    def full(name, action):
        if name == "sync":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        action()

    with monkeypatch.context() as patch:
        patch.setattr("interlock.drain._publish.run_step", full)
        said = bench.predict(model)
    line = assert_one_clear_line(said, code=3)
    assert "No space left on device" in line
    assert "hint: free some space" in said.err
    assert said.json["rows_committed"] == 4
    assert sorted(bench.read()) == [0, 1, 2, 3]
    assert bench.predict(model).code == 0
    assert len(bench.read()) == 10


def test_a_sink_that_another_process_writes(bench):
    with interlock.Drain(bench.sink):
        said = bench.predict(f"{bench.file(SAME)}:same")
    assert_one_clear_line(said, code=2)


def test_a_committed_shard_that_is_gone(bench):
    assert bench.predict(f"{bench.file(SAME)}:same").code == 0
    for shard in (bench.folder / "out").glob("*.parquet"):
        shard.unlink()
    assert "is missing" in assert_one_clear_line(bench.predict(f"{bench.file(SAME)}:same"), code=2)
    assert bench.call("verify", bench.sink).code == 1


# ---------------------------------------------------------------- ourselves


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), InternalError("oops")])
def test_our_own_bugs_have_a_traceback_and_ask_for_a_report(capfd, error):
    def command():
        raise error

    assert guarded(command) == 1
    said = capfd.readouterr().err
    assert "Traceback" in said
    assert "please report" in said


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError("8 GiB"), 3)])
def test_what_is_nobodys_bug_has_no_traceback(capfd, error, code):
    def command():
        raise error

    assert guarded(command) == code
    assert "Traceback" not in capfd.readouterr().err
