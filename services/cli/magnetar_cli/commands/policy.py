"""``magnetar policy …``."""

from typing import Any

import typer

from magnetar_cli.connection import following
from magnetar_cli.output import Columns, Format, Output, show, write
from magnetar_events.policy import Policy

app = typer.Typer(help="The policy: limits, leases and intervals that decisions depend on.", no_args_is_help=True)

_RULES: Columns = {
    "rule": lambda row: row["rule"],
    "in force": lambda row: row["value"],
    "as shipped": lambda row: "" if row["value"] == row["shipped"] else row["shipped"],
}


@app.command("show")
def show_(*, output: Output = Format.TABLE) -> None:
    """Show the rules in force, and of those that were set what they are as shipped. Whoever sets the policy sets all of it."""
    with following() as log:
        rules: dict[str, Any] = log.catch_up().policy.model_dump(mode="json", by_alias=True)
    if output is not Format.TABLE:
        write(rules, output)
        return
    shipped: dict[str, Any] = Policy().model_dump(mode="json", by_alias=True)
    show(
        [{"rule": rule, "value": value, "shipped": shipped[rule]} for rule, value in rules.items()],
        _RULES,
        output,
        nothing="there are no rules",
    )
