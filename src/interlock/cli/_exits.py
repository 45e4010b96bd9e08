"""What the user sees when something goes wrong: one line, the next step, an exit code."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
import warnings
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from interlock.errors import InterlockError, InternalError, SinkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARIES = tuple(
    Path(path).resolve() for name, path in sysconfig.get_paths().items() if name in {"stdlib", "platstdlib"}
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_MOST_FRAMES = 8
_LONGEST_REASON = 300


class Exit(IntEnum):
    """Exit codes. A run that a signal ended has 128 plus its number, as shells have it."""

    DONE = 0
    """Every row is committed; nothing is damaged; no hazard was found."""
    DAMAGED = 1
    """From `interlock verify`: there is damage."""
    BUG = 1
    """From any command, with a traceback: our own bug."""
    HAZARDS = 1
    """From `interlock check`: there are hazards."""
    BROKEN = 1
    """From `interlock doctor`: something that is installed does not work."""
    USAGE = 2
    """The command, the model, the source or the sink is not what it should be."""
    FAILED = 3
    """Rows are not committed because rows, the model or the sink failed; the program under check failed."""
    INTERRUPTED = 130
    """Ctrl-C before there was anything to commit."""
    PIPE = 141
    """Whoever read our output went away."""


def guarded(command: Callable[[], int | None]) -> int:
    """Call `command`; say what went wrong, and return the exit code.

    Args:
        command: Returns an exit code; None counts as 0.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return int(command() or Exit.DONE)
        except click.ClickException as error:
            _show_click_error(error)
            return Exit.USAGE
        except (KeyboardInterrupt, click.Abort):
            return Exit.INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush does not fail too
            return Exit.PIPE
        except MemoryError as error:
            say(f"error: out of memory: {one_line(error)}", hint="try a smaller --batch-size or --depth")
            return Exit.FAILED
        except Exception as error:  # noqa: BLE001 - the last place where anything can be said about it
            return _show(error)


def say(text: str, *, hint: str = "") -> None:
    """Print one line to stderr, and a second one with the next step."""
    print(f"interlock: {text}", file=sys.stderr)  # noqa: T201 - this is the command line
    if hint:
        print(f"hint: {hint}", file=sys.stderr)  # noqa: T201


def one_line(error: BaseException, text: str | None = None) -> str:
    """Return an exception of others as one line of a bounded length; `text` in place of its own."""
    text = str(error) if text is None else text
    text = f"{type(error).__name__}: {' '.join(text.split())}".removesuffix(": ")
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"


def _show(error: Exception) -> Exit:
    if not isinstance(error, InterlockError) or isinstance(error, InternalError):
        traceback.print_exception(error)
        say(f"error: {one_line(error)}", hint="this is a bug in Interlock: please report it with the lines above")
        return Exit.BUG
    sys.stderr.write(user_traceback(error))
    line = f"{error.what}: {error.why}" if error.why else error.what
    say(f"error: {' '.join(line.split())}", hint=error.hint)
    return Exit.USAGE if isinstance(error, UsageError) else Exit.FAILED


def _show_click_error(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "interlock"
    say(f"error: {error.format_message()}", hint=f"see {command} --help")


def user_traceback(error: InterlockError) -> str:
    """Return the traceback of the exception of the user's code behind `error`, without frames of ours or of libraries.

    Returns:
        Empty if the cause is not in a file of the user's, and for storage, which runs none of their code.
    """
    cause: BaseException | None = None if isinstance(error, SinkError) else error
    while isinstance(cause, InterlockError):
        cause = cause.__cause__
    if cause is None:
        return ""
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_users(frame.filename)]
    if not frames and not isinstance(cause, SyntaxError):
        return ""
    lines = ["Traceback of your code (most recent call last):\n", *traceback.format_list(frames[-_MOST_FRAMES:])]
    return "".join([*lines, *traceback.format_exception_only(cause)])


def _is_users(name: str) -> bool:
    if name.startswith("<"):
        return False
    path = Path(name).resolve()
    if not path.is_file():  # compiled code names its sources, which are not here
        return False
    if path.is_relative_to(_PACKAGE) or _INSTALLED.intersection(path.parts):
        return False
    return not any(path.is_relative_to(library) for library in _LIBRARIES)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show our own warnings as one line, those of others as Python does."""
    if Path(filename).is_relative_to(_PACKAGE):
        say(f"warning: {message}")
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
