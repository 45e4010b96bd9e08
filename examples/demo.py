"""What `make demo` runs: train, predict, verify, search; then the two programs that Interlock exists for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

HERE = Path(__file__).parent
OUT = HERE.parent / "demo-out"
INTERLOCK = (sys.executable, "-m", "interlock")


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n== {title}", flush=True)


def run(*command: str | Path) -> None:
    """Run a program, showing what is run and what it prints; end the demo if it fails."""
    shown = ["interlock" if part == "-m interlock" else str(part) for part in _short(command)]
    print("$ " + " ".join(shown), flush=True)
    done = subprocess.run(  # noqa: S603 - our own programs
        [str(part) for part in command], cwd=HERE.parent, check=False, env=_environment()
    )
    if done.returncode:
        raise SystemExit(f"demo: that ended with exit code {done.returncode}")


def _environment() -> dict[str, str]:
    import os  # noqa: PLC0415 - only here

    return {**os.environ, "DIGITS": str(OUT)}


def _short(command: tuple[str | Path, ...]) -> list[str]:
    """Shorten a command for showing: paths from the project's root, `interlock` for the module."""
    parts = [str(part).replace(f"{HERE.parent}/", "") for part in command]
    if parts[:3] == [str(part).replace(f"{HERE.parent}/", "") for part in INTERLOCK]:
        return ["interlock", *parts[3:]]
    return ["python", *parts[1:]]


def accuracy(sink: Path) -> None:
    """Read predictions back and compare them with the labels."""
    table = pq.read_table(sink).sort_by("id")
    labels = np.load(OUT / "labels.npy")
    right = float((table["digit"].to_numpy() == labels[table["id"].to_numpy()]).mean())
    print(f"{sink.name}: {table.num_rows} rows, accuracy {right:.1%}")
    if table.num_rows != len(labels) or right < 0.9:
        raise SystemExit("demo: the predictions are not what they should be")


def predict(model: str, source: str | Path, sink: Path) -> None:
    """Predict into Parquet and verify the result."""
    run(*INTERLOCK, "predict", HERE / model, source, f"parquet:{sink}", "--restart")
    run(*INTERLOCK, "verify", f"parquet:{sink}")


def main() -> None:
    """Run everything; end with exit code 1 if anything is not as it should be."""
    shutil.rmtree(OUT, ignore_errors=True)
    say("train on scanned digits through Feed")
    run(sys.executable, HERE / "digits.py", OUT)
    for framework in ("jax", "torch"):
        say(f"predict with the {framework} network")
        predict(f"digits.py:{framework}_model", OUT / "images.npy", OUT / framework)
        accuracy(OUT / framework)
    say("embed real text with a real model")
    predict("embed_text.py:model", f"{HERE / 'embed_text.py'}:source", OUT / "text")
    run(sys.executable, HERE / "embed_text.py", OUT / "text", "flowers measured in the field")
    say("the corrupted feed: as usual, then with Interlock")
    run(sys.executable, HERE / "corrupted_feed.py", "--naive")
    run(sys.executable, HERE / "corrupted_feed.py")
    say("the zeros in the predictions: as usual, then with Interlock")
    run(sys.executable, HERE / "zeros_in_predictions.py", "--naive")
    run(sys.executable, HERE / "zeros_in_predictions.py")
    status = subprocess.run(  # noqa: S603
        [*INTERLOCK, "status", f"parquet:{OUT / 'text'}", "--json"], check=True, capture_output=True, text=True
    )
    rows = json.loads(status.stdout)["rows_committed"]
    say(f"done: every step was checked; {rows} paragraphs, two sets of digits and all shards are in {OUT.name}/")


if __name__ == "__main__":
    main()
