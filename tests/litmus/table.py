"""The litmus corpus: finds the programs, runs them under a schedule, and writes the table in `docs/litmus.md`.

    python tests/litmus/table.py

A program is a module in `programs/KIND/` with `ENTRY` (its number in the corpus of reports), `KIND`, `SCHEDULES` (those
that must find it), `buggy()` and `fixed()`. Its docstring says in half a line what goes wrong. The two guilty lines of
`buggy()` end in `# <- first` and `# <- second`, the earlier access in program order first; where one line is both, in
`# <- first, second`. A control is a module in `controls/` with `program()`: nothing may be said about it.
"""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from interlock import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from interlock.check import Report, Session

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "litmus.md"
FAMILIES = ("lazy", "eager", "starve", "pct")
PCT_SEEDS = (1, 2, 3)
MARK = re.compile(r"# <- (first, second|first|second)$")


@dataclass(frozen=True)
class Program:
    """A pair, or a control (`entry`, `kind` and `must` empty, one function).

    Attributes:
        path: Its file.
        what: What goes wrong, in half a line.
        entry: As `B011`.
        kind: As `early-read`.
        must: Families of schedules that must find it.
        first: Line of the earlier access.
        second: Line of the later one.
        source: The module.
    """

    path: Path
    what: str
    entry: str
    kind: str
    must: tuple[str, ...]
    first: int
    second: int
    source: Any

    @property
    def name(self) -> str:
        """File name without its ending."""
        return self.path.stem

    @property
    def guilty(self) -> tuple[str, tuple[str, int], tuple[str, int]]:
        """What a report must say: the kind and the two places."""
        return (self.kind, (str(self.path), self.first), (str(self.path), self.second))


def programs() -> list[Program]:
    """Return every pair, by entry."""
    found = [_load(path) for path in sorted((HERE / "programs").glob("*/*.py"))]
    return sorted(found, key=lambda program: (program.entry, program.name))


def controls() -> list[Program]:
    """Return every control, by name."""
    return [_load(path) for path in sorted((HERE / "controls").glob("*.py"))]


@cache
def _load(path: Path) -> Program:
    name = f"litmus_{path.parent.name}_{path.stem}".replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    marks = _marks(path)
    return Program(
        path=path,
        what=(module.__doc__ or "").strip().splitlines()[0].rstrip("."),
        entry=getattr(module, "ENTRY", ""),
        kind=getattr(module, "KIND", ""),
        must=tuple(re.findall(r"\w+", getattr(module, "SCHEDULES", ""))),
        first=marks.get("first", 0),
        second=marks.get("second", 0),
        source=module,
    )


def _marks(path: Path) -> dict[str, int]:
    lines: dict[str, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark = MARK.search(line)
        for which in mark[1].split(", ") if mark else ():
            if which in lines:
                raise ValueError(f"{path}: two lines are marked {which}")
            lines[which] = number
    return lines


def watch(function: Callable[[], object], schedule: str) -> Session:
    """Run one function under one schedule, from the same seeds."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - programs of users draw from the global generator
    torch.manual_seed(0)
    with check.simulate(schedule, raise_on_hazard=False) as session:
        function()
    return session


def run(function: Callable[[], object], schedule: str) -> Report:
    """Return the report of one function under one schedule."""
    return watch(function, schedule).report()


def streams_of(function: Callable[[], object]) -> list[str]:
    """Return the streams that a program uses, as schedules name them."""
    return [name for name in watch(function, "lazy").streams() if not name.startswith("free-")]


def schedules_of(function: Callable[[], object]) -> Iterator[tuple[str, str]]:
    """Yield family and text of every schedule that a program is run under."""
    yield "lazy", "lazy"
    yield "eager", "eager"
    for stream in streams_of(function):
        yield "starve", f"starve:{stream}"
    for seed in PCT_SEEDS:
        yield "pct", f"pct:{seed}"


def found_in(report: Report) -> set[tuple[str, tuple[str, int], tuple[str, int]]]:
    """Return what a report says, as `Program.guilty` puts it."""
    return {
        (
            hazard.kind,
            (str(Path(hazard.accesses[0].file).resolve()), hazard.accesses[0].line),
            (str(Path(hazard.accesses[1].file).resolve()), hazard.accesses[1].line),
        )
        for hazard in report.hazards
    }


@cache
def findings(program: Program) -> dict[str, set[tuple[str, tuple[str, int], tuple[str, int]]]]:
    """Return what `buggy()` is found guilty of, by family of schedules."""
    found: dict[str, set[tuple[str, tuple[str, int], tuple[str, int]]]] = {family: set() for family in FAMILIES}
    for family, schedule in schedules_of(program.source.buggy):
        found[family] |= found_in(run(program.source.buggy, schedule))
    return found


def render(corpus: Iterable[Program], silent: Iterable[Program]) -> str:
    """Return the document."""
    corpus, silent = list(corpus), list(silent)
    lines = [
        "# What the checker finds",
        "",
        "Small programs after public bug reports, each with a repaired twin; what is found under which schedule. Every",
        "twin and every control below is run under all of them, and nothing is said about it.",
        "`tests/litmus/table.py` writes this page from what the programs do.",
        "",
        f"{len(corpus)} pairs, {len({program.kind for program in corpus})} kinds.",
        "",
        "| entry | kind | what goes wrong | " + " | ".join(FAMILIES) + " |",
        "| --- | --- | --- | " + " | ".join(":---:" for _ in FAMILIES) + " |",
    ]
    for program in corpus:
        found = findings(program)
        cells = " | ".join("yes" if program.guilty in found[family] else "-" for family in FAMILIES)
        link = f"../{program.path.relative_to(HERE.parents[1]).as_posix()}"
        lines.append(f"| [{program.entry}]({link}) | {program.kind} | {program.what} | {cells} |")
    lines += [
        "",
        f"{len(silent)} controls, about which nothing is said:",
        "",
        "| control | what it does |",
        "| --- | --- |",
    ]
    for program in silent:
        link = f"../{program.path.relative_to(HERE.parents[1]).as_posix()}"
        lines.append(f"| [{program.name}]({link}) | {program.what} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the document."""
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render(programs(), controls()), encoding="utf-8")


if __name__ == "__main__":
    main()
