"""Records on ``service-registry``: who is there. The key is the instance id; an empty payload is a tombstone."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from magnetar_events.base import Count, Identifier, Labels, Memory, Millis, Name, OptionalName, Text, Told, Wire

Status = Literal["STARTING", "UP", "DRAINING", "DOWN"]


class Address(Wire):
    """Where a service listens (the agent's own address, so that a proxy changes no schema)."""

    host: Text
    port: Annotated[int, Field(ge=0, le=65_535)]


class Device(Wire):
    """One memory that models are loaded into, as last read.

    Attributes:
        uuid: the accelerator's or MIG instance's uuid; ``cpu`` for host memory.
        kind: ``gpu``, ``mig`` or ``cpu``.
        gpu_type: product name, e.g. ``NVIDIA A100-SXM4-40GB``; empty for host memory.
        parent: the GPU that a MIG instance is cut from.
        total: bytes.
        free: bytes.
        largest_free: bytes of the largest free block; at most ``free``.
        utilisation: share of time busy, 0 to 1; -1 = unknown.
        error: why it could not be read; then its numbers are not to be trusted.
    """

    uuid: Identifier
    kind: Literal["gpu", "mig", "cpu"] = "cpu"
    gpu_type: Text = ""
    parent: Text = ""
    total: Memory = 0
    free: Memory = 0
    largest_free: Memory = 0
    utilisation: Annotated[float, Field(ge=-1, le=1)] = -1.0
    error: Told = ""


class RuntimeInfo(Wire):
    """The inference server beside an agent."""

    kind: OptionalName = ""
    version: Text = ""


class ServerInfo(Wire):
    """What an agent says of its inference server, in addition to what every service says.

    Attributes:
        cluster: which cluster the server belongs to.
        region: where it is.
        zone: where in the region.
        host: the machine; devices are booked per (host, device uuid).
        server: the server's name; its replicas share it.
        replica: index of this replica.
        incarnation: a random id for each life of the agent.
        http_port: inference over HTTP.
        grpc_port: inference over gRPC; 0 = none.
        runtime: kind and version of the server.
        agent_version: Magnetar's version.
        commands: kinds of command that the agent knows.
        capabilities: what it can load.
        max_models: at most this many; 0 = no limit.
        memory_bytes: at most this much for all models together; 0 = what its devices have.
        over_commit_percent: how much more than the memory may be promised.
        devices: memories, as last read.
        disk_bytes: room for artifacts.
        loads: loads in progress.
        digest: sha256 (hex, 16 characters) of the server's real index; see ``Inventory``.
        report: number of the agent's last report.
    """

    cluster: Name = "local"
    region: Text = ""
    zone: Text = ""
    host: Identifier
    server: Name
    replica: Count = 0
    incarnation: Identifier
    http_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    grpc_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    runtime: RuntimeInfo = Field(default_factory=RuntimeInfo)
    agent_version: Text = ""
    commands: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    capabilities: Annotated[tuple[Name, ...], Field(max_length=256)] = ()
    max_models: Count = 0
    memory_bytes: Memory = 0
    over_commit_percent: Annotated[int, Field(ge=0, le=1000)] = 0
    devices: Annotated[tuple[Device, ...], Field(max_length=256)] = ()
    disk_bytes: Memory = 0
    loads: Count = 0
    digest: Text = ""
    report: Count = 0

    @model_validator(mode="after")
    def _each_device_once(self) -> "ServerInfo":
        if len({device.uuid for device in self.devices}) < len(self.devices):
            raise ValueError("devices: a uuid stands there more than once")
        return self

    @property
    def key(self) -> str:
        """``cluster/server/replica``, the key of everything said of this server."""
        return f"{self.cluster}/{self.server}/{self.replica}"


class ServiceRecord(Wire):
    """One instance of a service, whole: compaction keeps only the last message of a key.

    Attributes:
        service_name: what it is an instance of.
        instance_id: unique for each life: for a server ``server/replica/incarnation``.
        address: where it listens.
        status: STARTING, UP, DRAINING, DOWN.
        timestamp: the sender's clock, for people; age is measured by the receiver from arrival.
        metadata: free: ``modelName``, ``modelVersion``, ``gpuType``, ``batchSize``, …
        declared_by: who wrote this; empty = the instance itself, else whoever retired it.
        server: only agents have it.
    """

    service_name: Name
    instance_id: Identifier
    address: Address
    status: Status
    timestamp: Millis
    metadata: Labels = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)
    declared_by: Text = ""
    server: ServerInfo | None = None

    @model_validator(mode="after")
    def _one_identity(self) -> "ServiceRecord":
        info = self.server
        if info is not None and self.instance_id != (named := f"{info.server}/{info.replica}/{info.incarnation}"):
            raise ValueError(f"instanceId is not {named}, which server, replica and incarnation make")
        return self
