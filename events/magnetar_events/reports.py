"""Reports on ``agent-events``: what happened at a server, and which command it answers."""

from typing import Annotated

from pydantic import FailFast, Field

from magnetar_events.base import Count, Identifier, Labels, Memory, Millis, Name, Text, Told, Wire

ModelKey = Annotated[str, Field(pattern=r"^[a-z0-9.-]{1,63}/[a-z0-9.-]{1,63}$")]
"""``tenant/name``."""

_Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class DeviceMemory(Wire):
    """Memory of one replica on one device, in bytes.

    Attributes:
        device: uuid.
        declared: what the specification says.
        measured: what the load was seen to take: by what the server's processes grew, or (accelerators whose driver
            does not tell whose memory it is) free before less free after; 0 = unknown.
        observed: what the device says the server's processes hold now; 0 = unknown.
    """

    device: Identifier
    declared: Memory = 0
    measured: Memory = 0
    observed: Memory = 0


class DeviceFree(Wire):
    """Bytes that a device had free at one moment."""

    device: Identifier
    free: Memory = 0


class LoadTimes(Wire):
    """How long the phases of a load took, in milliseconds."""

    fetch_ms: Millis = 0
    load_ms: Millis = 0
    verify_ms: Millis = 0


class _OfReplica(Wire):
    model: ModelKey
    generation: Count
    position: Count


class ModelLoading(_OfReplica):
    """The command was taken up; the load has begun."""


class ModelLoaded(_OfReplica):
    """The model is in the server's own index and answers ready.

    Attributes:
        digest: sha256 of the artifact's tree.
        memory: per device.
        parallel: workers or instances that serve it.
        http_port: where it answers, if it has a port of its own; 0 = the server's.
        times: how long each phase took.
    """

    digest: _Digest = ""
    memory: Annotated[tuple[DeviceMemory, ...], Field(max_length=256)] = ()
    parallel: Count = 1
    http_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    times: LoadTimes = Field(default_factory=LoadTimes)


class ModelLoadFailed(_OfReplica):
    """The load did not succeed; nothing is left in the server.

    Attributes:
        code: LOAD_FAILED, LOAD_FAIL_MEMORY, ARTIFACT_MISSING, … (the agent's table).
        retriable: whether another attempt, here or elsewhere, may succeed.
        message: what the server or the store said.
        attempt: how many tries the agent made.
        free: what its devices had free before it, if no other load ran meanwhile.
    """

    code: Text
    retriable: bool = True
    message: Told = ""
    attempt: Count = 1
    free: Annotated[tuple[DeviceFree, ...], Field(max_length=256)] = ()


class ModelUnloading(_OfReplica):
    """The unload has begun."""


class ModelUnloaded(_OfReplica):
    """The model is no longer in the server's index.

    Attributes:
        free: what the accelerators had free before the unload.
    """

    free: Annotated[tuple[DeviceFree, ...], Field(max_length=256)] = ()


class ModelUnloadFailed(_OfReplica):
    """The model may still be in the server."""

    code: Text
    message: Told = ""


class ArtifactRemoved(_OfReplica):
    """The artifact is no longer on the agent's disk."""


class ArtifactRemoveFailed(_OfReplica):
    """The artifact may still be on the agent's disk."""

    code: Text
    message: Told = ""


class CommandSuperseded(_OfReplica):
    """A command came after a newer one for the same version (``newest``) and was not obeyed."""

    newest: Count


class InventoryModel(Wire):
    """One of Magnetar's models in the server's index, loaded or being so.

    Attributes:
        model: key.
        generation: version.
        ready: whether it answers.
        busy: a load or unload of it is in progress at the agent.
        digest: sha256 of the artifact's tree; empty = not known to this life of the agent.
    """

    model: ModelKey
    generation: Count
    ready: bool
    busy: bool = False
    digest: _Digest = ""


class InventoryReported(Wire):
    """The server's whole index: on start, on a change that nobody commanded, and when asked.

    Attributes:
        position: of the ``ReportInventory`` that asked; 0 = nobody did.
        models: Magnetar's.
        strangers: names in the index that are not Magnetar's.
        digest: of the index; heartbeats carry the same.
    """

    position: Count = 0
    models: Annotated[tuple[InventoryModel, ...], Field(max_length=20_000), FailFast()] = ()
    strangers: Annotated[tuple[Text, ...], Field(max_length=20_000), FailFast()] = ()
    digest: Text = ""
    cause: Text = ""


class ResyncRequested(Wire):
    """The agent asks for every command that is outstanding for it."""

    cause: Text = ""


class ModelMemory(Wire):
    """What one version was seen to hold on a device some time after its load, in bytes."""

    model: ModelKey
    generation: Count
    device: Identifier
    observed: Memory = 0


class LoadObserved(Wire):
    """How busy the server is, per model where known.

    Attributes:
        in_flight: requests in progress.
        mean_ms: mean duration.
        labels: free.
        memory: what versions hold, where that can be told apart; only those that differ from what was last reported.
    """

    in_flight: Count = 0
    mean_ms: Annotated[float, Field(ge=0)] = 0.0
    labels: Labels = Field(default_factory=dict)
    memory: Annotated[tuple[ModelMemory, ...], Field(max_length=1_000)] = ()


ReportKind = (
    ModelLoading
    | ModelLoaded
    | ModelLoadFailed
    | ModelUnloading
    | ModelUnloaded
    | ModelUnloadFailed
    | ArtifactRemoved
    | ArtifactRemoveFailed
    | CommandSuperseded
    | InventoryReported
    | ResyncRequested
    | LoadObserved
)


class AgentEvent(Wire):
    """The envelope of a report.

    Attributes:
        cluster: of the server.
        server: its name.
        replica: its index.
        incarnation: of the agent; reports of a superseded one are ignored.
        number: 1, 2, 3, … within the incarnation.
        time: the agent's clock, for people only.
        term: newest term that the agent has seen.
        traceparent: W3C trace context.
        report: what happened.
    """

    cluster: Name = "local"
    server: Name
    replica: Count = 0
    incarnation: Identifier
    number: Count
    time: Millis
    term: Count = 0
    traceparent: Text = ""
    report: ReportKind

    @property
    def server_key(self) -> str:
        """``cluster/server/replica``."""
        return f"{self.cluster}/{self.server}/{self.replica}"
