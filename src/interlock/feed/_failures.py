"""What is said of a sample that could not be had."""

from __future__ import annotations

from interlock.errors import InterlockError, SampleError, WorkerError
from interlock.feed._stages import READ, StageFailure

_LONGEST_REASON = 500


def stage_of(error: Exception) -> str:
    """Return the name of the stage that raised an error; the source is `read`."""
    return error.stage if isinstance(error, StageFailure) else READ


def reason_of(error: Exception) -> str:
    """Return an error as one line."""
    if isinstance(error, StageFailure):
        return f"stage {error.stage!r}: {reason_of(error.error)}"[:_LONGEST_REASON]
    return " ".join(_text(error).split())[:_LONGEST_REASON]


def sample_error(index: int, name: int | str, error: Exception, tried: int | None) -> SampleError:
    """Return the error that ends an epoch at a bad sample.

    Args:
        index: Its index.
        name: Its id.
        error: What the source or a stage raised.
        tried: How many others were tried in its place; None if none should be.
    """
    label = f"sample {index}" if name == index else f"sample {index} ({name!r})"
    if isinstance(error, StageFailure):
        label, failed, error = f"{label}, stage {error.stage!r}", "failed", error.error
    elif isinstance(error, SampleError) and tried is None:
        return error
    else:
        failed = "could not be read"
    what, why, hint = f"{label} {failed}", _text(error), ""
    if isinstance(error, InterlockError) and not isinstance(error, WorkerError):
        what, why, hint = f"{label}: {error.what}", error.why, error.hint
    if tried is not None:
        hint = f"none of the {tried} samples after it can be read either"
    found = SampleError(what, index=index, why=why, hint=hint)
    found.__cause__ = error
    return found


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, InterlockError) else f"{type(error).__name__}: {error}"
