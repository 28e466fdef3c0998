"""The `rolloutpool` command and its subcommands."""

from __future__ import annotations

import typer

from rolloutpool_cli.commands import local
from rolloutpool_cli.commands.load import load
from rolloutpool_cli.commands.plan import plan
from rolloutpool_cli.commands.simulate import simulate
from rolloutpool_cli.commands.status import status

app = typer.Typer(
    name="rolloutpool",
    help="Pools of vLLM engines that serve mixed RL rollouts without bending the trainer's mixture.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.add_typer(local.app, name="local")
app.command()(load)
app.command()(plan)
app.command()(simulate)
app.command()(status)

if __name__ == "__main__":
    app()
