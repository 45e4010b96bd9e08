"""The script that compares writers runs in small, and a writer that loses or doubles rows is no result."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "drain"


@pytest.fixture
def arena(monkeypatch):
    """The modules that the script is made of."""
    monkeypatch.syspath_prepend(FOLDER)
    known = set(sys.modules)
    import _arena  # noqa: PLC0415 - found where the fixture says
    import _rows  # noqa: PLC0415 - as above
    import _writers  # noqa: PLC0415 - as above

    yield _arena, _rows, _writers
    for name in set(sys.modules) - known:
        if name.startswith("_") and FOLDER.parent in Path(getattr(sys.modules[name], "__file__", "") or "/").parents:
            del sys.modules[name]


def test_script_runs_in_small():
    command = [sys.executable, str(FOLDER / "throughput.py"), "--quick", "--only", "npy + borrow"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in run.stdout.splitlines() if line.startswith("│")]
    for kind in ("embeddings", "hidden states", "weather fields"):
        for writer in ("Drain: npy + borrow", "Drain: npy + borrow, no fsync"):
            found = [cells for cells in rows if cells[1] == kind and cells[3] == writer]
            assert len(found) >= 1, run.stdout
            assert all(float(cells[4]) > 0 for cells in found), run.stdout


@pytest.mark.parametrize("format_name", ["TorchFile", "NumpyFile", "ParquetFile"])
def test_every_format_of_the_others_is_read_back_and_compared(arena, tmp_path, format_name):
    arena, rows, writers = arena
    writer = writers.Pool(writers.Files(getattr(writers, format_name)()))
    arena._one(writer, arena.Order(rows.SMALL[1], tmp_path))


@pytest.mark.parametrize("sink", ["npy", "parquet"])
def test_what_interlock_wrote_is_read_back_and_compared(arena, tmp_path, sink):
    arena, rows, writers = arena
    run = arena._one(writers.PlainDrain(sink), arena.Order(rows.SMALL[1], tmp_path))
    assert run.synced


class Careless:
    """Writes one batch too few, twice, or with other numbers."""

    synced = False

    def __init__(self, files, fault):
        self.files, self.fault = files, fault

    def write(self, rows, folder):
        for step in range(rows.workload.steps):
            made = rows.make(step)
            if self.fault == "changed":
                made.view(len(made), -1)[-1, -1] += 1
            place = max(step, 1) if self.fault == "lost" else step
            self.files.save(folder, place, made, rows.ids(step))
            if self.fault == "doubled":
                self.files.save(folder, place + 1000, made, rows.ids(step))

    def read(self, folder, workload):
        return self.files.read(folder, workload)


@pytest.mark.parametrize(
    ("fault", "said"), [("lost", "bytes"), ("doubled", "ids in the files"), ("changed", "other values")]
)
def test_a_writer_that_loses_doubles_or_changes_rows_is_no_result(arena, tmp_path, fault, said):
    arena, rows, writers = arena
    careless = Careless(writers.Files(writers.NumpyFile()), fault)
    with pytest.raises(AssertionError, match=said):
        arena._one(careless, arena.Order(rows.SMALL[1], tmp_path))
    assert not list(tmp_path.iterdir())


def test_memory_shows_in_the_peak_though_it_was_let_go_of_and_only_in_its_own(arena):
    arena, _, _ = arena
    with arena._Peak() as large:
        bytearray(b"x") * (64 << 20)
    with arena._Peak() as small:
        bytearray(b"x") * (1 << 20)
    assert large.bytes > 60 << 20 > 32 << 20 > small.bytes
