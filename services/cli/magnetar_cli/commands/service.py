"""``magnetar service …``."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from magnetar_cli.connection import connected
from magnetar_cli.exit_codes import NotFound
from magnetar_cli.output import Columns, Format, Json, Output, show
from magnetar_common.bus import EARLIEST, Bus, Message
from magnetar_common.discovery import Discovery
from magnetar_common.errors import BusUnavailable
from magnetar_common.probe import is_probe
from magnetar_common.render import plain
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD
from magnetar_events.codec import FINGERPRINT, Undecodable
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
    instances: set[str] = set()
    with connected() as bus:
        for message in _originals(bus):
            row = _row(message)
            if not row["serviceName"]:  # a tombstone names only the instance
                row["serviceName"] = last.get(row["instanceId"], row)["serviceName"]
            if name not in (row["serviceName"], row["instanceId"]):
                continue
            instances.add(row["instanceId"])
            before, last[row["instanceId"]] = last.get(row["instanceId"]), row
            if everything or before is None or _told(before) != _told(row):
                rows.append(row)
    if not instances:
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


def _originals(bus: Bus) -> Iterator[Message]:
    """Yield every message that the registry's topic still holds, in order; probes left out."""
    reader = bus.reader(SERVICE_REGISTRY.name, EARLIEST, name="magnetar-cli")
    try:
        while not reader.at_end():
            message = reader.read(_PATIENCE_S)
            if message is None:
                raise BusUnavailable("the registry's topic has more, and the broker does not send it")
            if not is_probe(message.key):
                yield message
    finally:
        reader.close()


def _row(message: Message) -> Json:
    row: Json = {
        "time": time_of(message.publish_ms),
        "messageId": str(message.id),
        "instanceId": message.key,
        "serviceName": "",
        "status": "(tombstone)",
        "declaredBy": "",
        "address": "",
        "metadata": {},
    }
    if not message.payload:
        return {**row, "declaredBy": "the registry service"}
    try:
        record = SERVICE_RECORD.decode(message.payload, message.properties.get(FINGERPRINT, ""))
    except Undecodable as error:
        return {**row, "status": f"(not a record: {error})"}
    return {
        **row,
        "serviceName": record.service_name,
        "status": record.status,
        "declaredBy": record.declared_by,
        "address": f"{record.address.host}:{record.address.port}",
        "metadata": dict(record.metadata),
    }


def _told(row: Json) -> tuple[Any, ...]:
    """What makes a message more than a heartbeat."""
    return (row["status"], row["declaredBy"], row["address"], row["metadata"])
