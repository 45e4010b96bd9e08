"""The pytest plugin: tests that run in a simulation, once under each schedule.

`@pytest.mark.interlock(schedules=("lazy", "eager"))` is for one test, class or module; `pytest --interlock` is for
every test of a run. A test with hazards fails with the report; one that fails anyway carries the report as a section.

Nothing of Interlock is imported before a test asks for a simulation.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from interlock.check import Report, Session

DEFAULT_SCHEDULES = ("lazy", "eager")
"""What is read too early or overwritten too early; what is used too long."""

_FIXTURE = "_interlock_schedule"
_OPTION = "--interlock"
_SCHEDULE = re.compile(r"lazy|eager|starve:[^,]+|(pct|random):\d+")
_UNSIMULATED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--interlock[=SCHEDULES]`."""
    parser.getgroup("interlock").addoption(
        _OPTION,
        nargs="?",
        const=",".join(DEFAULT_SCHEDULES),
        metavar="SCHEDULES",
        help="run every test once under each schedule of a simulated device (default: lazy,eager)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Let `pytest --interlock tests/` mean the folder, not a schedule of that name."""
    if _OPTION not in args:
        return
    args[:] = [f"{_OPTION}={','.join(DEFAULT_SCHEDULES)}" if one == _OPTION else one for one in args]
    early_config.known_args_namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and check the option."""
    config.addinivalue_line(
        "markers",
        "interlock(schedules=('lazy', 'eager')): run the test once under each schedule of a simulated device, and fail "
        "it if there are hazards",
    )
    asked = config.getoption(_OPTION)
    if asked is not None:
        _checked(asked.split(","), _OPTION)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test one run for each schedule."""
    schedules = _schedules(metafunc)
    if schedules:
        metafunc.parametrize(_FIXTURE, schedules, indirect=True, ids=schedules)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count the tests that `--interlock` cannot reach, so that nobody takes them for checked."""
    if config.getoption(_OPTION) is not None:
        config.stash[_UNSIMULATED] = sum(not _is_simulated(item) for item in items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which tests ran without a simulation."""
    count = config.stash.get(_UNSIMULATED, 0)
    if count:
        terminalreporter.write_line(
            f"interlock: {count} collected tests (unittest, doctest and the like) cannot be parametrized and ran "
            "without a simulation",
            yellow=True,
        )


def _is_simulated(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and _FIXTURE in callspec.params


@pytest.fixture(name=_FIXTURE, autouse=True)  # a test that did not name it could not be parametrized with it otherwise
def _simulation(request: pytest.FixtureRequest) -> Generator[Session | None, None, None]:
    """Run the test, and the fixtures of its own scope, in a simulation; do nothing for a test that is in none."""
    if not hasattr(request, "param"):
        yield None
        return
    from interlock.check import simulate  # noqa: PLC0415 - only when asked for

    with simulate(request.param, raise_on_hazard=False) as session:
        yield session


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test with hazards."""
    session = cast("Session | None", pyfuncitem.funcargs.get(_FIXTURE))
    try:
        result = yield
    except BaseException:
        if session is not None and (text := _report_on(session, pyfuncitem)):
            pyfuncitem.add_report_section("call", "interlock", text)
        raise
    if session is not None and (text := _report_on(session, pyfuncitem)):
        pytest.fail(text, pytrace=False)
    return result


def _report_on(session: Session, item: pytest.Function) -> str:
    """Return the report if hazards count, else an empty text."""
    from interlock.check._report._review import review  # noqa: PLC0415 - only when asked for
    from interlock.check._report._text import as_text  # noqa: PLC0415

    report = dataclasses.replace(session.report(), program=item.nodeid)
    found = review(report, root=item.config.invocation_params.dir)
    return as_text(found, replay=partial(_replay, item)) if found.findings else ""


def _replay(item: pytest.Function, report: Report, schedule: str) -> str:  # noqa: ARG001 - what a report calls with
    option = "" if item.get_closest_marker("interlock") else f"{_OPTION}={schedule} "
    file = os.path.relpath(item.path, item.config.invocation_params.dir)
    return f"pytest {option}{shlex.quote('::'.join([file, *item.nodeid.split('::')[1:]]))}"


def _schedules(metafunc: pytest.Metafunc) -> Sequence[str]:
    marker = metafunc.definition.get_closest_marker("interlock")
    if marker is not None:
        chosen = marker.kwargs.get("schedules", marker.args[0] if marker.args else DEFAULT_SCHEDULES)
        names = (chosen,) if isinstance(chosen, str) else tuple(chosen)
        return _checked(names, f"the marker of {metafunc.definition.nodeid}")
    asked: str | None = metafunc.config.getoption(_OPTION)
    return () if asked is None else asked.split(",")


def _checked(names: Sequence[str], where: str) -> Sequence[str]:
    for name in names:
        if not _SCHEDULE.fullmatch(name):
            raise pytest.UsageError(
                f"{where} names the schedule {name!r}; there are lazy, eager, starve:STREAM, pct:SEED and random:SEED"
            )
    return names
