"""The scripts of benchmarks/gpu run: in small, and on a machine without a GPU as far as that goes."""

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks" / "gpu"
ROWS = {
    "jax_feed": ["resident batches", "device_put", "Feed(zero_copy=True), in slots"],
    "torch_feed": ["DataLoader, pinned, non_blocking", "Feed, threads", "Feed, in slots"],
    "torch_drain": [
        "no output",
        "Lightning predict, writer calls .cpu()",
        "Interlock, null sink",
        "Interlock, npy: on the disk",
    ],
    "drain_storage": ["torch", "JAX"],
    "jax_drain": ["np.asarray", "device_put to pinned_host, warm", "Interlock, null sink"],
}


@pytest.fixture(scope="module")
def common():
    """The module that the scripts share."""
    spec = spec_from_file_location("_common_of_gpu_benchmarks", FOLDER / "_common.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class Counted:
    """A variant whose steps take the seconds that it was given, by its own clock."""

    def __init__(self, *seconds, fails=False):
        self.seconds = iter(seconds)
        self.fails = fails
        self.steps = []
        self.closed = False

    def run(self, steps):
        self.steps.append(steps)
        if self.fails:
            raise ValueError("no such luck\nand more")
        return next(self.seconds) * steps

    def close(self):
        self.closed = True


@pytest.mark.parametrize("script", list(ROWS))
def test_script_runs_in_small(script):
    run = subprocess.run(
        [sys.executable, FOLDER / f"{script}.py", "--smoke"], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in run.stdout.splitlines() if line.startswith("│")]
    figures = {cells[1]: cells[2] for cells in rows}
    for name in ROWS[script]:
        assert figures[name], run.stdout


@pytest.mark.parametrize("script", list(ROWS))
def test_without_a_device_script_says_so(script, common):
    if common.devices():
        pytest.skip("needs a machine without a CUDA device")
    run = subprocess.run([sys.executable, FOLDER / f"{script}.py"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "needs a CUDA device\n")


def test_ratio_is_the_median_within_rounds(common):
    """A round in which everything was slow does not change it."""
    makers = {"base": lambda: Counted(1.0, 10.0, 2.0), "other": lambda: Counted(1.5, 15.0, 4.0)}
    base, other = common.rounds(makers, count=3, steps=4, warm=0)
    assert base.seconds == [1.0, 10.0, 2.0]
    assert other.times(base) == 1.5


def test_variant_that_cannot_run_is_a_row_with_its_reason(common):
    def missing():
        raise ImportError("no peer here")

    broken = Counted(fails=True)
    outcomes = common.rounds({"a": missing, "b": lambda: broken, "c": lambda: Counted(1.0)}, count=1, steps=1, warm=0)
    assert [outcome.note for outcome in outcomes] == ["not run: no peer here", "not run: no such luck", ""]
    assert broken.closed


def test_slow_variants_take_a_tenth_of_the_steps(common):
    slow = Counted(1.0, 1.0)
    common.rounds({"slow": lambda: slow}, count=1, steps=20, warm=10, slow=["slow"])
    assert slow.steps == [1, 2]
    assert slow.closed


def test_when_time_is_up_each_variant_has_had_the_same_rounds(common, monkeypatch):
    monkeypatch.setattr(common, "BEGAN_S", common.time.perf_counter() - 10)
    makers = {name: lambda: Counted(1.0, 1.0, 1.0) for name in "ab"}
    rounds = [outcome.seconds for outcome in common.rounds(makers, count=3, steps=1, warm=0, seconds=5)]
    assert rounds == [[1.0], [1.0]]
    rounds = [outcome.seconds for outcome in common.rounds(makers, count=3, steps=1, warm=0, seconds=500)]
    assert rounds == [[1.0] * 3] * 2


def test_report_is_saved_with_the_machine_it_was_measured_on(common, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    report = common.Report("some-figure", "Some figure", ("variant", "note"), rows=[("mine", "fast")])
    report.goal("mine / theirs", 1.01, 1.05, at_most=True)
    report.goal("mine / link", 0.5, 0.9, at_most=False)
    report.show(save=True)
    saved = json.loads((tmp_path / "results" / "some-figure.json").read_text())
    assert saved["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert [goal["met"] for goal in saved["goals"].values()] == [True, False]
    assert (tmp_path / "results" / "some-figure.txt").read_text() == capsys.readouterr().out
