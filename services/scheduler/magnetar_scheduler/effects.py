"""Effects, computed from the state: the commands that are outstanding, and the routes that hold."""

from magnetar_common.state import Replica, Server, State
from magnetar_common.topics import commands_topic
from magnetar_events import Command
from magnetar_events.commands import CommandKind, LoadModel, ReportInventory, UnloadModel
from magnetar_events.compiled import trusted

_command, _load, _unload = trusted(Command), trusted(LoadModel), trusted(UnloadModel)


def command_topic(server: Server) -> str:
    """Return the topic on which a server's agent listens."""
    return commands_topic(server.info.server, server.info.replica)


def replica_command(state: State, term: int, replica: Replica) -> Command | None:
    """Return the command that is outstanding for a replica, or None."""
    kind = state.command_of(replica)
    if not kind:
        return None
    wanted: CommandKind
    if kind == "UnloadModel":
        wanted = _unload(model=replica.model, generation=replica.generation)
    else:
        version = state.models[replica.model].versions[replica.generation]
        spec = version.spec
        wanted = _load(
            model=replica.model,
            generation=replica.generation,
            storage_uri=spec.storage_uri,
            artifact_digest=version.digest,
            secret_name=spec.secret_name,
            requirements=spec.requirements,
            runtime_kind=spec.runtime.kind,
            parameters=spec.runtime.parameters,
            memory=spec.memory,
            devices=tuple(booking.device for booking in replica.bookings),
            timeout_ms=state.policy.load_timeout_ms,
        )
    return _envelope(state.servers[replica.server], term, replica.position, wanted)


def inventory_command(state: State, term: int, server: str) -> Command | None:
    """Return the request for a server's inventory that is outstanding, or None."""
    known = state.servers.get(server)
    if known is None or not known.inventory_asked:
        return None
    return _envelope(known, term, known.inventory_asked, ReportInventory())


def _envelope(server: Server, term: int, position: int, wanted: CommandKind) -> Command:
    info = server.info
    return _command(
        cluster=info.cluster,
        server=info.server,
        replica=info.replica,
        incarnation=info.incarnation,
        term=term,
        position=position,
        command=wanted,
    )
