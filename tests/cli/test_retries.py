"""`interlock predict --retries`: what becomes of rows on which the model fails, and of those beside them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from interlock.cli._attempts import is_lost, is_out_of_memory, reason_of
from interlock.errors import DeviceError, ModelError, UsageError

MODEL = """
import json, os, signal
import numpy as np
from interlock.errors import DeviceError

calls = 0

class OutOfMemoryError(RuntimeError):
    pass

def model(batch):
    global calls
    calls += 1
    first = batch.reshape(len(batch), -1)[:, 0]
    with open({marks!r}, "a") as marks:
        marks.write(json.dumps([int(one) // 2 for one in first]) + "\\n")
    rows = {{int(one) // 2 for one in first}}
    {body}
    return batch * 2
"""


def model_of(bench, body):
    """A model over rows [2n, 2n + 1] that notes which it is called with; `body` knows them as the set `rows`."""
    text = MODEL.format(marks=str(bench.folder / "marks"), body=body)
    return f"{bench.file(text)}:model"


def calls_of(bench):
    return [json.loads(line) for line in (bench.folder / "marks").read_text().splitlines()]


def failures_of(bench):
    return {one["id"]: one for one in bench.call("status", bench.sink, "--json").json["failures"]}


BAD = "if rows & {4, 7}: raise ValueError('row 4 or 7\\nand more')"


def test_rows_that_fail_by_themselves_are_recorded_and_all_others_written_in_order(bench):
    said = bench.predict(model_of(bench, BAD), "--batch-size", 5, "--retries", 1, "--writers", 1)
    assert (said.code, said.json["rows_committed"], said.json["rows_failed"]) == (3, 8, 2)
    assert "2 of 10 rows are not in" in said.err
    assert "the first is 4: ValueError: row 4 or 7\n" in said.err
    table = ds.dataset(bench.folder / "out", format="parquet").to_table()
    assert table["id"].to_pylist() == [0, 1, 2, 3, 5, 6, 8, 9]
    (values,) = (table[name] for name in table.column_names if name != "id")
    assert values.to_pylist() == [[4.0 * row, 4.0 * row + 2] for row in [0, 1, 2, 3, 5, 6, 8, 9]]
    failed = {one: (failure["reason"], failure["attempts"]) for one, failure in failures_of(bench).items()}
    assert failed == dict.fromkeys([4, 7], ("ValueError: row 4 or 7", 1))
    calls = calls_of(bench)
    assert calls[:6] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1], [2, 3, 4], [2], [3, 4]]
    assert said.json["retries"] == len(calls) - 2


def test_a_batch_that_works_the_next_time_is_not_halved(bench):
    body = "if calls in {1, 3, 4}: raise ConnectionError('for now')"
    said = bench.predict(model_of(bench, body), "--batch-size", 5, "--retries", 2)
    assert (said.code, said.json["rows_failed"], said.json["retries"]) == (0, 0, 3)
    assert [len(call) for call in calls_of(bench)] == [5] * 5
    assert len(bench.read()) == 10
    assert failures_of(bench) == {}


def test_a_model_that_writes_to_its_batch_before_it_fails_gets_the_rows_as_they_were(bench):
    body = "batch += 1000\n    if calls in {1, 3}: raise ValueError('late')"
    said = bench.predict(model_of(bench, body), "--batch-size", 5, "--retries", 1)
    assert said.code == 0
    values = np.array([next(iter(row.values())) for _, row in sorted(bench.read().items())])
    assert np.array_equal(values, (bench.rows + 1000) * 2)


def test_without_retries_a_model_that_fails_ends_the_run_and_the_same_command_with_them_goes_on(bench):
    model = model_of(bench, BAD)
    said = bench.predict(model, "--batch-size", 2)
    assert (said.code, said.json["rows_failed"]) == (3, 2)
    assert "--retries 1" in said.err
    assert calls_of(bench) == [[0, 1], [2, 3], [4, 5]]
    said = bench.predict(model, "--batch-size", 4, "--retries", 1)
    assert (said.code, said.json["rows_resumed"], said.json["rows_committed"], said.json["rows_failed"]) == (3, 4, 8, 2)
    assert {one: failure["attempts"] for one, failure in failures_of(bench).items()} == {4: 2, 7: 1}
    assert bench.predict(model, "--retries", 1, "--max-attempts", 1).json["rows_given_up"] == 2


@pytest.mark.parametrize(
    "error",
    [
        "DeviceError('the stream failed')",
        "MemoryError('8 GiB')",
        "RuntimeError('CUDA error: device-side assert triggered')",
        "RuntimeError('INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS')",
    ],
)
def test_a_device_that_is_lost_ends_the_run_at_once(bench, error):
    body = f"if 4 in rows: raise {error}"
    said = bench.predict(model_of(bench, body), "--batch-size", 2, "--retries", 3)
    assert said.code == 3
    assert calls_of(bench) == [[0, 1], [2, 3], [4, 5]]
    assert sorted(bench.read()) == [0, 1, 2, 3]
    assert sorted(failures_of(bench)) == [4, 5], "so that --max-attempts can leave out what kills the device each time"
    assert "--retries" not in said.err


def test_a_batch_that_is_too_large_for_the_device_is_halved_and_not_repeated(bench):
    body = "if len(batch) > 2: raise OutOfMemoryError('tried to allocate 2.00 GiB')"
    said = bench.predict(model_of(bench, body), "--batch-size", 5, "--retries", 3)
    assert (said.code, said.json["rows_committed"]) == (0, 10), said.err
    assert [len(call) for call in calls_of(bench)] == [5, 2, 3, 1, 2] * 2


def test_the_memory_of_an_attempt_that_failed_is_free_before_the_next_one(bench):
    text = """
import weakref
import numpy as np

class Held(np.ndarray):
    pass

last = lambda: None
def model(batch):
    global last
    assert last() is None
    held = np.zeros(8).view(Held)
    last = weakref.ref(held)
    if len(batch) > 1:
        raise RuntimeError("CUDA out of memory")
    return batch
"""
    said = bench.predict(f"{bench.file(text)}:model", "--batch-size", 5, "--retries", 1)
    assert (said.code, said.json["rows_committed"]) == (0, 10), said.err


def test_a_model_that_does_no_row_ends_the_run_soon(bench):
    body = "raise ValueError('always')"
    said = bench.predict(model_of(bench, body), "--batch-size", 4, "--retries", 1, "--max-failures", 3)
    assert (said.code, said.json["rows_failed"]) == (3, 3)
    assert "failed on 3 rows in a row, each by itself: the last is 2: ValueError: always" in said.err
    assert "--max-failures" in said.err
    assert "raise ValueError('always')" in said.err, "the traceback of the user's code"
    assert calls_of(bench)[-1] == [2]


def test_only_failures_in_a_row_count(bench):
    body = "if any(row % 3 for row in rows): raise ValueError('two of three')"
    said = bench.predict(model_of(bench, body), "--batch-size", 4, "--retries", 1, "--max-failures", 3)
    assert (said.code, said.json["rows_failed"]) == (3, 6)
    assert sorted(bench.read()) == [0, 3, 6, 9]


def test_a_signal_between_two_attempts_leaves_the_rest_pending_and_not_failed(bench):
    body = "if calls == 4: os.kill(os.getpid(), signal.SIGINT)\n    if 1 in rows: raise ValueError('bad')"
    said = bench.predict(model_of(bench, body), "--batch-size", 4, "--retries", 1)
    assert said.code == 130
    assert calls_of(bench) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [0]]
    assert sorted(bench.read()) == [0]
    assert failures_of(bench) == {}


def test_outputs_that_fit_no_batch_fail_their_row_alone(bench):
    said = bench.predict(model_of(bench, "if 4 in rows: return batch[1:]"), "--batch-size", 4, "--retries", 1)
    assert (said.code, sorted(failures_of(bench))) == (3, [4])
    assert "returned 0 rows for a batch of 1" in failures_of(bench)[4]["reason"]
    assert len(bench.read()) == 9


def test_a_column_that_suddenly_looks_otherwise_fails_its_row_alone(bench):
    body = "if 4 in rows: return np.float64(batch)"
    said = bench.predict(model_of(bench, body), "--batch-size", 4, "--retries", 1)
    assert (said.code, sorted(failures_of(bench))) == (3, [4])
    assert "float64" in failures_of(bench)[4]["reason"]


SOURCE = """
import numpy as np

class Rows:
    times = {{}}

    def __len__(self):
        return 10

    def __getitem__(self, index):
        time = self.times[index] = self.times.get(index, 0) + 1
        if {fails}:
            raise OSError("not now")
        return np.array([2 * index, 2 * index + 1], np.float32)

    def id_of(self, index):
        return f"row {{9 - index}}"
"""


def test_a_sample_that_can_be_read_the_next_time_is_no_failure(bench):
    source = bench.file(SOURCE.format(fails="index in {0, 4} and time < 3"), "data.py")
    model = model_of(bench, "pass")
    said = bench.predict(model, "--batch-size", 3, "--retries", 2, source=f"{source}:Rows")
    assert (said.code, said.json["rows_committed"], said.json["retries"]) == (0, 10, 0)


@pytest.mark.parametrize("workers", [0, 3])
def test_rows_keep_their_ids_where_samples_before_them_cannot_be_read(bench, workers):
    """Samples 1 and 4 are never read, sample 7 not for the second time; the model fails on 5 and 6."""
    source = bench.file(SOURCE.format(fails="index in {1, 4} or (index == 7 and time > 1)"), "data.py")
    model = model_of(bench, "if rows & {5, 6}: raise ValueError('bad')")
    options = ("--batch-size", 4, "--retries", 1, "--workers", workers)
    said = bench.predict(model, *options, source=f"{source}:Rows")
    assert (said.code, said.json["rows_failed"]) == (3, 5)
    assert {one: next(iter(row.values()))[0] for one, row in bench.read().items()} == {
        f"row {9 - index}": 4.0 * index for index in (0, 2, 3, 8, 9)
    }
    reasons = {one: failure["reason"].partition(":")[0] for one, failure in failures_of(bench).items()}
    assert reasons == {f"row {9 - index}": "OSError" for index in (1, 4, 7)} | {
        f"row {9 - index}": "ValueError" for index in (5, 6)
    }
    assert {failure["attempts"] for failure in failures_of(bench).values()} == {1}


def test_a_batch_of_which_nothing_can_be_read_again_is_recorded_once(bench):
    source = bench.file(SOURCE.format(fails="index in {4, 5} and time > 1"), "data.py")
    model = model_of(bench, "if rows & {4, 5}: raise ValueError('bad')")
    said = bench.predict(model, "--batch-size", 2, "--retries", 1, source=f"{source}:Rows")
    assert (said.code, said.json["rows_failed"], said.json["rows_committed"]) == (3, 2, 8)
    assert {one: failure["attempts"] for one, failure in failures_of(bench).items()} == {"row 5": 1, "row 4": 1}
    assert calls_of(bench) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_rows_of_a_table_with_names_are_found_again_in_the_second_run(bench):
    path = bench.folder / "in.parquet"
    pq.write_table(pa.table({"key": list("jihgfedcba"), "x": np.arange(10.0) * 2}), path)
    model = model_of(bench, "if rows & {4, 7}: raise ValueError('bad')")
    options = ("--id-column", "key", "--columns", "x", "--batch-size", 5, "--retries", 1)
    for attempts in (1, 2):
        assert bench.predict(model, *options, source=str(path)).code == 3
        assert sorted(bench.read()) == sorted("jihgedba")
        assert {one: failure["attempts"] for one, failure in failures_of(bench).items()} == {
            "f": attempts,
            "c": attempts,
        }


def test_torch_and_jax_models_get_their_arrays_again(bench):
    text = """
import jax, torch
def bad(batch):
    if (batch[:, 0] == 8).any():
        raise ValueError("bad")
    return batch * 2
class Net(torch.nn.Module):
    def forward(self, batch):
        assert torch.is_inference_mode_enabled()
        return bad(batch)
def with_jax(batch):
    assert isinstance(batch, jax.Array)
    return bad(batch)
"""
    path = bench.file(text)
    for model, options in ((f"{path}:Net", ()), (f"{path}:with_jax", ("--to", "jax", "--restart"))):
        said = bench.predict(model, "--batch-size", 4, "--retries", 1, *options)
        assert said.code == 3
        assert sorted(bench.read()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_what_libraries_say_of_a_full_device_and_of_a_lost_one():
    import jax  # noqa: PLC0415 - only here
    import torch  # noqa: PLC0415

    full = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."),
        type("OutOfMemoryError", (MemoryError,), {})("Out of memory allocating 512 bytes"),  # CuPy's
    ]
    lost = [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
        jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"),
        ValueError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
        DeviceError("cuda:0 lost work"),
        MemoryError("Unable to allocate 8.00 GiB for an array"),
    ]
    neither = [KeyError("CUDA error"), RuntimeError("shape mismatch"), KeyError("x"), None]
    assert [(is_out_of_memory(one), is_lost(one)) for one in full] == [(True, False)] * len(full)
    assert [(is_out_of_memory(one), is_lost(one)) for one in lost] == [(False, True)] * len(lost)
    assert [(is_out_of_memory(one), is_lost(one)) for one in neither] == [(False, False)] * len(neither)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError("\n  first  line\nsecond"), "ValueError: first line"),
        (KeyError(), "KeyError"),
        (UsageError("the sink's"), "the model failed: why"),
        (None, "the model failed: why"),
    ],
)
def test_a_reason_is_the_type_and_the_first_line(cause, reason):
    error = ModelError("the model failed", why="why")
    error.__cause__ = cause
    assert reason_of(error) == reason
