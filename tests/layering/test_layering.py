"""The shape of the package, held by machine: what an import loads, who imports whom, sizes and forbidden calls."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import interlock.errors

PACKAGE = Path(interlock.errors.__file__).resolve().parent
REPOSITORY = PACKAGE.parent.parent
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {
    "torch",
    "jax",
    "jaxlib",
    "cupy",
    "pyarrow",
    "PIL",
    "rich",
    "click",
    "pytest",
    "hypothesis",
    "duckdb",
    "pandas",
}
COMMAND_LINE = {"cli", "__main__.py", "_runner.py"}  # the last starts a program as Python itself would
FOR_THE_COMMAND_LINE = {"print", "sys.exit", "exit", "quit", "os._exit", "os.getenv", "input"}
LONGEST_MODULE = 600
LONGEST_FUNCTION = 70
MOST_PUBLIC_NAMES = 20


def ident(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# ------------------------------------------------------------ import


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after `statement`."""
    program = (
        f"import sys, json\n{statement}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import interlock", "import interlock.lowlevel", "import interlock.testing"])
def test_importing_loads_no_framework_and_no_tool(statement: str):
    assert loaded_by(statement) & HEAVY == set()


def test_importing_starts_no_thread_and_warns_of_nothing():
    program = "import threading, interlock; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_the_time_that_an_import_takes_is_printed():
    """Machines differ, so nothing is asserted; `pytest -rP` shows the figure, which is to stay under 150 ms."""
    program = "import time; start = time.perf_counter(); import interlock; print(time.perf_counter() - start)"
    times = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"import interlock: {min(times) * 1000:.0f} ms, best of {len(times)}")  # noqa: T201 - the point of this test


def test_the_public_names_are_few_sorted_and_there():
    assert len(interlock.__all__) <= MOST_PUBLIC_NAMES
    assert interlock.__all__ == sorted(interlock.__all__)
    assert all(hasattr(interlock, name) for name in interlock.__all__)


# ------------------------------------------------------------ contracts


def test_the_import_contracts_hold():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_each_folder_says_its_purpose():
    folders = {path.parent for path in MODULES}
    for folder in folders:
        assert ast.get_docstring(parsed(folder / "__init__.py")), f"{ident(folder / '__init__.py')} has no docstring"


# ------------------------------------------------------------ each module


@pytest.mark.parametrize("path", MODULES, ids=ident)
def test_modules_and_functions_stay_small(path: Path):
    tree = parsed(path)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            docstring = ast.get_docstring(node, clean=False)
            length -= len(docstring.splitlines()) if docstring else 0
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", [path for path in MODULES if not COMMAND_LINE & set(path.parts)], ids=ident)
def test_only_the_command_line_prints_exits_and_reads_the_environment(path: Path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in FOR_THE_COMMAND_LINE, f"line {node.lineno}"
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in {"os.environ", "os.environb", "sys.argv"}, f"line {node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=ident)
def test_no_module_pickles_or_evaluates_what_it_is_given(path: Path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names: set[str | None] = {alias.name for alias in node.names}
            names.add(node.module if isinstance(node, ast.ImportFrom) else None)
            assert not names & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, f"line {node.lineno}"
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {"eval", "exec"}, f"line {node.lineno}"


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "_waiting.py"], ids=ident)
def test_nothing_sleeps(path: Path):
    """Waiting is for events; `_waiting` alone knows how."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {"time.sleep", "sleep"}, f"line {node.lineno}"


@pytest.mark.parametrize("path", [path for path in MODULES if "_core" in path.parts], ids=ident)
def test_the_core_never_blocks(path: Path):
    """No waits, joins or blocking gets: only locks that are held for a few lines of arithmetic."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"wait", "sleep", "Event", "Condition", "Semaphore", "Thread"}, (
                f"line {node.lineno}"
            )


@pytest.mark.parametrize("path", MODULES, ids=ident)
def test_a_framework_is_imported_only_in_files_named_after_it(path: Path):
    tree = parsed(path)
    for_types = {
        id(inner)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for inner in block.body
    }
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        roots = {name.partition(".")[0] for name in names} & {"torch", "jax", "cupy"}
        if id(node) not in for_types:
            assert all(path.stem.startswith(f"_{root}") for root in roots), f"{path.stem} imports {roots}"
