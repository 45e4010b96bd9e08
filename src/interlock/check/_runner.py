"""What `check_program` starts: loads what the program will load, and forks one process for each schedule.

Run as a module with one argument: JSON with `program`, `module`, `schedules`, `seed` and `folder`. Each run leaves
`NUMBER.json` in the folder.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from interlock.check._program import crashed
from interlock.check._session import Session
from interlock.check._wire import from_text, to_text

_PRELOAD = ("torch", "pytorch_lightning", "lightning")
"""Slow to import, and safe to fork after: they start threads only when they compute."""
_MOST_STARVED = 4
_AT_A_TIME = max(1, os.cpu_count() or 1)


def main(text: str) -> None:
    """Run all schedules; see the module's text."""
    spec = json.loads(text)
    _preload(spec["program"][0], module=spec["module"])
    texts = _expanded(spec["schedules"], spec["seed"])
    first = next((text for text in texts if text != "starve"), "lazy")  # a run that shows which streams there are
    number = 0
    _wait([_start(spec, first, number, quiet=False)])
    starved = [f"starve:{name}" for name in _streams(spec["folder"], number)[:_MOST_STARVED]]
    todo = dict.fromkeys(name for text in texts for name in (starved if text == "starve" else [text]) if name != first)
    running: list[int] = []
    for schedule in todo:
        number += 1
        running.append(_start(spec, schedule, number, quiet=True))
        if len(running) >= _AT_A_TIME:
            _wait([running.pop(0)])
    _wait(running)


def _expanded(schedules: list[str], seed: int) -> list[str]:
    """Return one text a run; `starve` stays as it is: the streams are not known yet."""
    found: list[str] = []
    for text in schedules:
        count = re.fullmatch(r"pct:(\d+)", text)
        if count:
            found += [f"pct:{seed + index}" for index in range(int(count[1]))]
        else:
            found.append(text)
    return found or ["lazy"]


def _preload(program: str, *, module: bool) -> None:
    """Import what is slow to import, once for all runs, if the program names it."""
    source = ""
    if module:
        spec = importlib.util.find_spec(program.partition(".")[0])
        source = Path(spec.origin).read_text(encoding="utf-8", errors="replace") if spec and spec.origin else ""
    else:
        source = Path(program).read_text(encoding="utf-8", errors="replace")
    for name in _PRELOAD:
        if re.search(rf"^\s*(import|from)\s+{name}\b", source, re.MULTILINE):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _start(spec: dict[str, Any], schedule: str, number: int, *, quiet: bool) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if quiet:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
        _run(spec, schedule, Path(spec["folder"]) / f"{number:04d}.json")
        code = 0
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(spec: dict[str, Any], schedule: str, result: Path) -> None:
    """Run the program in this process and leave the report."""
    name, *arguments = spec["program"]
    result.write_text(to_text(crashed(name, schedule, "the process ended before the program did")), encoding="utf-8")
    sys.argv = [name, *arguments]
    sys.path[0] = os.getcwd() if spec["module"] else str(Path(name).resolve().parent)  # noqa: PTH109 - as Python does
    session = Session(schedule, program=name)
    session.__enter__()  # a failure here is not the program's: it ends the run, and the report above stays
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
        stack.push(session)
        try:
            if spec["module"]:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
        except SystemExit as leaving:
            if leaving.code:
                raise RuntimeError(f"the program ended with exit code {leaving.code}") from leaving
    result.write_text(to_text(session.report(), session.streams()), encoding="utf-8")


def _streams(folder: str, number: int) -> tuple[str, ...]:
    return from_text((Path(folder) / f"{number:04d}.json").read_text(encoding="utf-8"))[1]


def _wait(children: list[int]) -> None:
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1])
