"""``magnetar topics …``."""

import dataclasses

import typer

from magnetar_cli.connection import administered
from magnetar_cli.exit_codes import CommandError
from magnetar_cli.output import Columns, Format, Json, Output, note, show
from magnetar_common import topic_policies
from magnetar_common.topics import TOPICS

app = typer.Typer(help="Topics and what the broker keeps of them.", no_args_is_help=True)

VIOLATIONS: Columns = {
    "where": lambda row: row["topic"],
    "what": lambda row: row["what"],
    "found": lambda row: row["found"],
    "wanted": lambda row: row["wanted"],
    "loses data": lambda row: "yes" if row["loses_data"] else "no",
    "what to do": lambda row: row["command"],
}


@app.command()
def apply() -> None:
    """Create what is missing (tenants, namespaces, topics, schemas) and set the policies that differ."""
    with administered() as admin:
        topic_policies.apply(admin)
    kept = "as they should be" if admin is not None else "made on first use: the embedded broker has no policies"
    note(f"{len(TOPICS)} topics are {kept}")


@app.command()
def check(*, output: Output = Format.TABLE) -> None:
    """Compare the broker with what is wanted. Fails if anything could lose data."""
    with administered() as admin:
        rows: list[Json] = [dataclasses.asdict(violation) for violation in topic_policies.check(admin)]
    show(rows, VIOLATIONS, output, nothing="all topics are as they should be")
    dangerous = [row for row in rows if row["loses_data"]]
    if dangerous:
        raise CommandError(f"{len(dangerous)} policies would lose data", hint="magnetar topics apply")
