"""Hand-made reports over a real source file, so that renderers are tested without running anything; and a watcher."""

from __future__ import annotations

import linecache
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from interlock._core import _events
from interlock.check import _watch
from interlock.check._explain import explain
from interlock.check._hazards import Fold
from interlock.check._model import CODES, Hazard, Place, Report, ScheduleRun

PROGRAM = '''\
"""A loop that predicts and saves."""

import numpy as np


def predict(model, batches, stream):
    for batch in batches:
        output = model(batch)
        host = output.to("cpu", non_blocking=True)
        save(host)


def save(host):
    np.save("predictions.npy", host.numpy())


def main():
    predict(None, [], None)
'''
COPY, READ, MAIN = 9, 14, 18
LIBRARY = str(Path(sysconfig.get_path("purelib")) / "torch" / "nn" / "modules" / "module.py")


class Maker:
    """Makes reports about `predict.py` in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "predict.py"
        self.file.write_text(PROGRAM, encoding="utf-8")

    def place(self, line, function, mode, timeline, operation, **changes) -> Place:
        frames = [
            (LIBRARY, 30, "to"),
            (str(self.file), line, function),
            (LIBRARY, 10, "_call"),
            (LIBRARY, 20, "forward"),
            (str(self.file), MAIN, "main"),
            ("<frozen runpy>", 88, "_run_code"),
        ]
        made = Place(str(self.file), line, function, operation, timeline, "0:4096", mode, tuple(frames))
        return replace(made, **changes)

    @property
    def copy(self) -> Place:
        return self.place(COPY, "predict", "write", "cuda:0/d2h", "aten::_to_copy")

    @property
    def read(self) -> Place:
        return self.place(READ, "save", "read", "host", "numpy read")

    def hazard(self, kind="early-read", *, accesses=None, **changes) -> Hazard:
        made = Hazard(
            code=CODES[kind],
            kind=kind,
            verdict="race",
            accesses=accesses or (self.copy, self.read),
            missing_edge="the host reads at predict.py:14, and nothing orders that after stream 'd2h'",
            fix="call event.synchronize() before predict.py:14",
            witness=None,
            replay="lazy",
        )
        return replace(made, **changes)

    def report(self, *hazards, **changes) -> Report:
        runs = (
            ScheduleRun("lazy", 1204, "hazards" if hazards else "clean"),
            ScheduleRun("eager", 1204, "clean"),
        )
        return replace(Report("predict.py", runs, hazards, ()), **changes)

    def edit(self, old, new) -> None:
        text = self.file.read_text(encoding="utf-8")
        assert old in text
        self.file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def made(tmp_path):
    return Maker(tmp_path)


def _findings(program):
    """Return what is found in `program`: kind, and the text of the two lines."""
    fold = Fold()
    remove = _events.observe(fold.add)
    try:
        with _watch.activate():
            program()
    finally:
        remove()
    hazards = [explain(finding, witness=None, replay="") for finding in fold.findings]
    return {
        (hazard.kind, *(linecache.getline(place.file, place.line).strip() for place in hazard.accesses))
        for hazard in hazards
    }


@pytest.fixture
def findings():
    """Runs a program under the watchers, as `_findings` says."""
    return _findings
