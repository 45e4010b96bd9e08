"""`interlock check SCRIPT|-m MODULE [ARGS…]`."""

from __future__ import annotations

from typing import Any

import click


class _Check(click.Command):
    """Leaves everything after SCRIPT, or after `-m MODULE`, to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in click, with the program's arguments set apart first."""
        takes_value = {
            name: not option.is_flag
            for option in self.params
            if isinstance(option, click.Option)
            for name in option.opts
        }
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] not in {"-", "--"}:
            one = args[index]
            index += 2 if takes_value.get(one, False) else 1
            if one.startswith("-m"):
                args = [*args[:index], "--", *args[index:]]
                break
        return super().parse_args(ctx, args)


@click.command(cls=_Check, context_settings={"allow_interspersed_args": False})
@click.option(
    "--schedules", metavar="LIST", help="Comma-separated orders to run under. [default: lazy,eager,starve,pct:8]"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="First seed of random orders.")
@click.option("--replay", metavar="SCHEDULE", help="Run under this one schedule, as a report names it.")
@click.option("--json", metavar="FILE", help="Write the report as JSON; - is stdout.")
@click.option("--sarif", metavar="FILE", help="Write the report as SARIF 2.1.0, for code scanners; - is stdout.")
@click.option("--html", metavar="FILE", help="Write the report as one HTML page; - is stdout.")
@click.option("--baseline", metavar="FILE", help="Hazards that were accepted before, with reasons.")
@click.option("--write-baseline", metavar="FILE", help="Accept every hazard found: write a baseline and exit with 0.")
@click.option("-q", "--quiet", is_flag=True, help="No report in the terminal.")
@click.option("-m", "module", metavar="MODULE", help="Check a module, as with python -m.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|-m MODULE [ARGS]...")
def check(program: tuple[str, ...], **options: Any) -> int:
    """Find the hazards of a program: run it on a simulated device whose order is as unkind as the rules allow.

    SCRIPT, or -m MODULE, runs once under each schedule, with ARGS as its own. No GPU is needed.

    Exit codes: 0 no hazard, 1 hazards, 2 wrong usage, 3 the program itself failed.
    """
    from interlock.cli._checking import run  # noqa: PLC0415 - what renders reports is slow to load

    return run(program, options)
