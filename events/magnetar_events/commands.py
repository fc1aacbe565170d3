"""Commands on ``commands-<server>-<replica>``: what one agent is to do.

A command is sent again until the report that answers it is in the log; an agent answers a repeat without acting twice.
"""

from pydantic import Field

from magnetar_events.base import Count, Identifier, Labels, Memory, Millis, Name, Text, Wire
from magnetar_events.reports import ModelKey


class LoadModel(Wire):
    """Fetch, load and verify this version.

    Attributes:
        model: key.
        generation: version.
        storage_uri: where the artifact is.
        artifact_digest: what its sha256 must be; empty = not pinned yet.
        secret_name: of a secret on the agent's host.
        requirements: the runtimes it needs.
        runtime_kind: kind of inference server; empty = any.
        parameters: for the server's adapter.
        memory: bytes per device.
        devices: uuids it was placed on.
        timeout_ms: after which the leader takes it for failed.
    """

    model: ModelKey
    generation: Count
    storage_uri: str
    artifact_digest: str = ""
    secret_name: str = ""
    requirements: tuple[str, ...] = ()
    runtime_kind: str = ""
    parameters: Labels = Field(default_factory=dict)
    memory: Memory = 0
    devices: tuple[str, ...] = ()
    timeout_ms: Millis = 0


class UnloadModel(Wire):
    """Unload this version, whatever state it is in; a load of it in progress is undone."""

    model: ModelKey
    generation: Count


class ReportInventory(Wire):
    """Answer with ``InventoryReported``."""


CommandKind = LoadModel | UnloadModel | ReportInventory

COMMAND_KINDS = ("LoadModel", "UnloadModel", "ReportInventory")
"""What this version of an agent knows."""


class Command(Wire):
    """The envelope of a command.

    Attributes:
        cluster: of the server.
        server: its name.
        replica: its index.
        incarnation: the life of the agent that is meant; another one ignores it.
        term: of the leader; an agent refuses one older than the newest it has seen.
        position: of the entry that decided it; with ``term``, the order of commands.
        traceparent: W3C trace context.
        command: what to do.
    """

    cluster: Name
    server: Name
    replica: Count
    incarnation: Identifier
    term: Count
    position: Count
    traceparent: Text = ""
    command: CommandKind
