"""What the scripts of this folder share: arguments, what they run on, repeats, one table, files of results."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

RESULTS = Path(__file__).resolve().parent.parent / "results"
PACKAGES = (
    *("interlock", "numpy", "torch", "jax", "cuda-core", "cuda-bindings"),
    *("pytorch-lightning", "spdl-core", "nvidia-dali-cuda130", "grain", "torchdata", "simplejpeg", "pillow"),
)
WIDTH = 118
_PIECE_BYTES = 16 << 20
SLOW_SHARE = 10
BEGAN_S = time.perf_counter()


def arguments(text: str | None, **whole_numbers: tuple[int, str]) -> argparse.Namespace:
    """Return the arguments that all scripts have, and `whole_numbers`: name to default and help."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run only variants that contain one of these words, comma-separated")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, without a GPU where that makes sense")
    parser.add_argument("--seconds", type=int, default=0, help="begin no round after so many seconds but the first")
    parser.add_argument("--save", action="store_true", help="write the figures and the table to benchmarks/results/")
    for name, (default, explanation) in whole_numbers.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=default, help=f"{explanation} (default {default})"
        )
    return parser.parse_args()


def devices() -> int:
    """Return the number of CUDA devices, as the driver counts them; no framework is loaded."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def require_cuda() -> None:
    """End the script, as one that did what it could, on a machine without a CUDA device."""
    if not devices():
        print("needs a CUDA device")
        raise SystemExit(0)


def machine() -> dict[str, str]:
    """Return what the figures were measured on and with."""
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found["gpu"] = "none"
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class Variant(Protocol):
    """One way to do the job that is measured."""

    def run(self, steps: int) -> float | None:
        """Do `steps` steps; return when their results are there.

        Returns:
            Seconds, where the variant knows better than a clock around the call.
        """
        ...

    def close(self) -> None:
        """Let go of threads, processes and memory."""
        ...


@dataclass
class Outcome:
    """What one variant gave.

    Attributes:
        name: As in the table.
        seconds: Of one step, one figure a round; empty if it could not run.
        note: What else there is to say, as why it could not run.
        extra: Further figures, by the name of their column.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.seconds)

    def times(self, base: Outcome) -> float:
        """How many times as long as `base` a step took: median of the ratios within one round."""
        return statistics.median(own / other for own, other in zip(self.seconds, base.seconds, strict=True))


def wanted(names: Sequence[str], only: str) -> list[str]:
    """Return those of `names` that `--only` names."""
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    return [name for name in names if not words or any(word in name.lower() for word in words)]


def rounds(
    makers: Mapping[str, Callable[[], Variant]],
    *,
    count: int,
    steps: int,
    warm: int,
    slow: Collection[str] = (),
    seconds: int = 0,
    finish: Callable[[Variant, Outcome], None] = lambda *_: None,
) -> list[Outcome]:
    """Time every variant once in each round, in turn, so that what drifts drifts for all.

    Args:
        makers: Name to what makes the variant. One that fails, at any time, is left out from then on and says why.
        count: Rounds.
        steps: Steps that are timed together.
        warm: Steps before them, which use up what a variant has made ahead.
        slow: Variants of which a tenth of the steps is enough.
        seconds: As `--seconds`; 0 for no bound.
        finish: Called with each variant at the end, to add to its outcome.
    """
    outcomes = {name: Outcome(name) for name in makers}
    running: dict[str, Variant] = {}
    for name, make in makers.items():
        try:
            running[name] = make()
        except Exception as error:  # noqa: BLE001 - a peer that is not installed is a row of the table
            outcomes[name].note = _reason(error)
    for number in range(count):
        if number and seconds and time.perf_counter() - BEGAN_S > seconds:
            break
        for name, variant in list(running.items()):
            share = SLOW_SHARE if name in slow else 1
            try:
                outcomes[name].seconds.append(timed(variant, max(1, steps // share), warm // share))
            except Exception as error:  # noqa: BLE001 - as above
                outcomes[name] = Outcome(name, note=_reason(error))
                _close(running.pop(name))
    for name, variant in running.items():
        finish(variant, outcomes[name])
        _close(variant)
    return list(outcomes.values())


def one_by_one(
    makers: Mapping[str, Callable[[], Variant]],
    *,
    count: int,
    steps: int,
    warm: int,
    slow: Collection[str] = (),
    seconds: int = 0,
    finish: Callable[[Variant, Outcome], None] = lambda *_: None,
) -> list[Outcome]:
    """As `rounds`, but each variant has all its rounds on end: for those that would disturb the others."""
    outcomes = []
    for name, make in makers.items():
        outcomes += rounds({name: make}, count=count, steps=steps, warm=warm, slow=slow, seconds=seconds, finish=finish)
    return outcomes


def timed(variant: Variant, steps: int, warm: int) -> float:
    """Return seconds of one step."""
    if warm:
        variant.run(warm)
    gc.collect()
    began = time.perf_counter()
    own = variant.run(steps)
    return (time.perf_counter() - began if own is None else own) / steps


def _close(variant: Variant) -> None:
    try:
        variant.close()
    except Exception as error:  # noqa: BLE001 - its figures stand
        print(f"closing {type(variant).__name__}: {_reason(error)}")
    gc.collect()


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"not run: {text.splitlines()[0][:160]}"


@dataclass
class Report:
    """One table, what it stands on, and whether it reached what it should.

    Attributes:
        name: Of the files under benchmarks/results/.
        title: Of the table.
        columns: Names of its columns.
        rows: Their texts.
        lines: What is said below the table.
        figures: For the JSON file.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def goal(self, what: str, reached: float, bound: float, *, at_most: bool, unit: str = "x") -> None:
        """Say whether a goal is met."""
        met = reached <= bound if at_most else reached >= bound
        word = "at most" if at_most else "at least"
        verdict = "met" if met else "NOT MET"
        self.lines.append(f"{what}: {reached:.3f}{unit}, goal {word} {bound:g}{unit}: {verdict}")
        self.figures.setdefault("goals", {})[what] = {"reached": reached, word: bound, "met": met}

    def keep(self, outcomes: Sequence[Outcome]) -> None:
        """Put the variants' figures into the JSON."""
        self.figures["variants"] = [asdict(outcome) for outcome in outcomes]

    def show(self, *, save: bool) -> None:
        """Print everything; with `save`, also write it to `benchmarks/results/`."""
        console = Console(width=WIDTH, record=True)
        hardware = machine()
        console.print("; ".join(f"{name} {value}" for name, value in hardware.items()), highlight=False)
        table = Table(*self.columns, title=self.title)
        for column in table.columns[1:]:
            column.justify = "left" if column.header == "note" else "right"
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        took = f"{time.perf_counter() - BEGAN_S:.0f} s in all"
        for line in (*self.lines, took):
            console.print(line, highlight=False, markup=False)
        if save:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{self.name}.txt").write_text(console.export_text(), encoding="utf-8")
            content = {"machine": hardware, **self.figures}
            (RESULTS / f"{self.name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def pinned_link_gb_per_s(direction: str, size_bytes: int, copies: int = 24) -> float:
    """Return what copies between pinned memory and the device reach on end, by torch.

    Args:
        direction: `h2d` or `d2h`.
        size_bytes: Of one copy.
        copies: That are timed together.
    """
    import torch  # noqa: PLC0415 - the JAX scripts need it for this alone

    host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    target, source = (device, host) if direction == "h2d" else (host, device)
    best = 0.0
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(copies):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, size_bytes * copies / (time.perf_counter() - began) / 1e9)
    return best


def storage_gb_per_s(place: Path, threads: int, size_bytes: int) -> float:
    """Return how fast so many threads write large files there and sync each at its end."""
    piece = memoryview(os.urandom(min(_PIECE_BYTES, size_bytes)))
    pieces = max(1, size_bytes // len(piece) // threads)

    def write(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(pieces):
                file.write(piece)
            os.fsync(file.fileno())

    with tempfile.TemporaryDirectory(prefix="interlock-benchmark-", dir=place) as folder:
        began_s = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(write, [Path(folder) / str(number) for number in range(threads)]))
        return threads * pieces * len(piece) / (time.perf_counter() - began_s) / 1e9
