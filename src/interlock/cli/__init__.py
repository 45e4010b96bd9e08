"""The command line: `interlock` with `bench`, `check`, `compact`, `doctor`, `merge`, `predict` and more.

One file a command: parse, call, render. `_exits` alone decides what an error looks like and which exit code it has.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import click

from interlock.cli._bench import bench
from interlock.cli._check import check
from interlock.cli._doctor import doctor
from interlock.cli._exits import Exit, guarded
from interlock.cli._merge import compact, merge, resume_plan_of
from interlock.cli._predict import predict
from interlock.cli._status import status
from interlock.cli._trace import trace
from interlock.cli._verify import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("interlock"), prog_name="interlock")
@click.pass_context
def _commands(context: click.Context) -> int:
    """Hand tensors between host, accelerator and framework: find hazards, predict to a committed, resumable dataset."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return Exit.USAGE
    return Exit.DONE


_commands.add_command(bench)
_commands.add_command(check)
_commands.add_command(compact)
_commands.add_command(doctor)
_commands.add_command(merge)
_commands.add_command(predict)
_commands.add_command(resume_plan_of)
_commands.add_command(status)
_commands.add_command(trace)
_commands.add_command(verify)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Default: those of the process.

    Returns:
        The exit code, see `Exit`.
    """
    return guarded(lambda: _commands.main(arguments, prog_name="interlock", standalone_mode=False))
