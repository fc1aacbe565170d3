"""``magnetar service …``."""

from typing import Annotated, Any

import typer

from magnetar_cli.connection import connected
from magnetar_cli.exit_codes import NotFound
from magnetar_cli.output import Columns, Format, Json, Output, show
from magnetar_common.discovery import Change, Discovery
from magnetar_common.discovery import history as originals
from magnetar_common.errors import BusUnavailable
from magnetar_common.render import plain
from magnetar_projector.places import time_of

app = typer.Typer(help="Service instances, as they registered.", no_args_is_help=True)

_PATIENCE_S = 10.0


@app.command("list")
def list_(*, output: Output = Format.TABLE) -> None:
    """Show every instance that is registered now."""
    with connected() as bus, Discovery(bus) as discovery:
        if not discovery.wait_ready(_PATIENCE_S):
            raise BusUnavailable(f"the registry was not read within {_PATIENCE_S:g} s")
        found = [plain(record) for records in discovery.services().values() for record in records]
    show(found, _INSTANCES, output, nothing="no service is registered")


@app.command()
def history(
    name: Annotated[str, typer.Argument(help="Name of a service, or an instance id.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="Mere heartbeats, too.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show what was said of a service's instances in the last days: every original, not what compaction left."""
    rows: list[Json] = []
    last: dict[str, Json] = {}
    with connected() as bus:
        for change in originals(bus, name):
            row = _row(change)
            before, last[change.instance] = last.get(change.instance), row
            if everything or before is None or _told(before) != _told(row):
                rows.append(row)
    if not last:
        raise NotFound(f"nothing was ever said of a service or an instance {name!r}", "magnetar service list")
    show(rows, _SAID, output)


_INSTANCES: Columns = {
    "service": lambda row: row["serviceName"],
    "instance": lambda row: row["instanceId"],
    "status": lambda row: row["status"],
    "address": lambda row: f"{row['address']['host']}:{row['address']['port']}",
    "metadata": lambda row: ", ".join(f"{key}={value}" for key, value in row["metadata"].items()),
}

_SAID: Columns = {
    "time": lambda row: row["time"],
    "instance": lambda row: row["instanceId"],
    "status": lambda row: row["status"],
    "by": lambda row: row["declaredBy"] or "itself",
    "address": lambda row: row["address"],
    "metadata": lambda row: ", ".join(f"{key}={value}" for key, value in row["metadata"].items()),
}


def _row(change: Change) -> Json:
    record = change.record
    row: Json = {
        "time": time_of(change.at_ms),
        "messageId": str(change.id),
        "instanceId": change.instance,
        "status": f"(not a record: {change.problem})" if change.problem else "(tombstone)",
        "declaredBy": "" if change.problem else "the registry service",
        "address": "",
        "metadata": {},
    }
    if record is None:
        return row
    return {
        **row,
        "status": record.status,
        "declaredBy": record.declared_by,
        "address": f"{record.address.host}:{record.address.port}",
        "metadata": dict(record.metadata),
    }


def _told(row: Json) -> tuple[Any, ...]:
    """What makes a message more than a heartbeat."""
    return (row["status"], row["declaredBy"], row["address"], row["metadata"])
