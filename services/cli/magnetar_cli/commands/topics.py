"""``magnetar topics …``."""

import dataclasses
import re
from typing import Annotated

import typer

from magnetar_cli.connection import administered
from magnetar_cli.exit_codes import CommandError, ExitCode, Misused
from magnetar_cli.output import Columns, Format, Json, Output, note, show
from magnetar_common import grants, topic_policies
from magnetar_common.admin import Admin
from magnetar_common.amounts import counted
from magnetar_common.topics import TOPICS, commands_topic

app = typer.Typer(help="Topics and what the broker keeps of them.", no_args_is_help=True)

VIOLATIONS: Columns = {
    "where": lambda row: row["topic"],
    "what": lambda row: row["what"],
    "found": lambda row: row["found"],
    "wanted": lambda row: row["wanted"],
    "loses data": lambda row: "yes" if row["loses_data"] else "no",
    "what to do": lambda row: row["command"],
}


_GRANTS: Columns = {
    "role": lambda row: row["role"],
    "may": lambda row: ", ".join(row["actions"]),
    "on": lambda row: row["place"],
}

_NOT_COMPARED = "nothing was compared: the embedded broker has no policies; for a Pulsar set MAGNETAR_PULSAR_ADMIN_URL"

Role = Annotated[str, typer.Argument(metavar="ROLE", help="The subject (sub) of its token.")]


@app.command()
def apply() -> None:
    """Create what is missing (tenants, namespaces, topics, schemas) and set the policies that differ."""
    with administered() as admin:
        before = topic_policies.check(admin)
        topic_policies.apply(admin)
        after = topic_policies.check(admin)
    for each in before:
        if each not in after:
            note(f"{each.topic}: {each.what}: {each.found} → {each.wanted}")
    kept = "as they should be" if admin is not None else "made on first use: the embedded broker has no policies"
    note(f"{len(TOPICS)} topics are {kept}")


@app.command()
def check(*, output: Output = Format.TABLE) -> None:
    """Compare the broker with what is wanted. Fails if anything could lose data."""
    with administered() as admin:
        rows: list[Json] = [dataclasses.asdict(violation) for violation in topic_policies.check(admin)]
    compared = "all topics are as they should be" if admin is not None else _NOT_COMPARED
    show(rows, VIOLATIONS, output, nothing=compared)
    dangerous = [row for row in rows if row["loses_data"]]
    if dangerous:
        raise CommandError(
            f"{counted(len(dangerous), 'policy', 'policies')} would lose data", hint="magnetar topics apply"
        )


@app.command()
def grant(
    role: Role,
    *,
    part: Annotated[grants.Part, typer.Option("--as", help="What it is used for.")],
    server: Annotated[str, typer.Option(metavar="NAME/REPLICA", help="For an agent: of which server.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Permit a role what it needs for one part, and no more; what it was permitted before stays.

    The topics must have been applied. A server's command topic is created with its agent's grant.
    """
    own_commands = _own_commands(part, server)
    with administered() as admin:
        given = grants.give(_with_permissions(admin), role, part, own_commands)
    show([dataclasses.asdict(each) for each in given], _GRANTS, output, nothing=f"{role} administers the tenant")


@app.command()
def revoke(role: Role, *, output: Output = Format.TABLE) -> None:
    """Take from a role whatever it may do with the topics. Who is connected stays so until it connects anew."""
    with administered() as admin:
        taken = grants.take(_with_permissions(admin), role)
    show([dataclasses.asdict(each) for each in taken], _GRANTS, output, nothing=f"{role} may do nothing here")


@app.command("grants")
def list_grants(*, output: Output = Format.TABLE) -> None:
    """Show who may do what with the topics. Superusers and the tenant's administrators may do everything."""
    with administered() as admin:
        rows: list[Json] = [dataclasses.asdict(each) for each in grants.granted(_with_permissions(admin))]
    show(rows, _GRANTS, output, nothing="nobody is permitted anything")


def _own_commands(part: grants.Part, server: str) -> str:
    if part is not grants.Part.AGENT:
        if server:
            raise Misused(f"--server is for an agent, not for --as {part}")
        return ""
    match = re.fullmatch(r"([a-z0-9][a-z0-9.-]{0,62})/(\d{1,6})", server)
    if match is None:
        raise Misused("an agent obeys one server's commands: --server NAME/REPLICA, as in mlserver/0")
    return commands_topic(match[1], int(match[2]))


def _with_permissions(admin: Admin | None) -> Admin:
    if admin is None:
        raise CommandError("the embedded broker knows no roles: whoever reaches it may do everything", ExitCode.USAGE)
    return admin
