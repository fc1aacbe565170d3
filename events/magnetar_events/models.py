"""What a user says of a model: the specification that ``DeployModel`` carries and every version keeps."""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from magnetar_events.base import Labels, Memory, Name, OptionalName, Text, Wire
from magnetar_events.credentials import holds_credential

MAX_REPLICAS = 1000
"""More replicas of one model than this are taken for a mistake, and refused."""

Priority = Annotated[int, Field(ge=-1000, le=1000)]
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]


_USER_AND_PASSWORD = re.compile(r"[^/\\:@]+:[^/\\@]*@")


def _storage_uri(value: str) -> str:
    if not value.isprintable() or " " in value:
        raise ValueError("spaces and control characters are not allowed")
    try:
        # fsspec chains filesystems with "::"; each part may carry credentials of its own.
        named = any(urlsplit(part).username for part in value.split("::"))
    except ValueError as error:
        raise ValueError("not a URI") from error
    if named or _USER_AND_PASSWORD.search(value) or holds_credential(value):
        raise PydanticCustomError(
            "credential_in_uri", "credentials may not be written in a URI; name a secret in secretName instead"
        )
    return value


StorageUri = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_storage_uri)]
"""Where an artifact is, in a scheme that fsspec knows (``file:``, ``s3:``, ``gs:``, ``https:``, …)."""


class Runtime(Wire):
    """Which kind of inference server a model needs, and parameters for it.

    Attributes:
        kind: ``mlserver``, ``triton``, ``vllm``, …; empty = any server that has the requirements.
        parameters: passed to the server's adapter as they are.
    """

    kind: OptionalName = ""
    parameters: Labels = Field(default_factory=dict)


class ModelSpec(Wire):
    """One version of a model as its owner wants it.

    Attributes:
        tenant: who owns it.
        name: unique within the tenant.
        storage_uri: where the artifact is.
        artifact_digest: sha256 (hex) of the artifact's tree; empty = the first digest seen is pinned.
        secret_name: name of a secret on the agent's host that opens the storage; never the secret itself.
        requirements: capabilities that a server must have (``sklearn``, ``python``, …).
        memory: bytes that one replica needs on each of its devices.
        devices: how many accelerators one replica spans; 0 = host memory only.
        gpu_types: acceptable accelerator types; empty = any.
        replicas: how many are wanted.
        min_replicas: lower limit for autoscaling; 0 = unset.
        max_replicas: upper limit for autoscaling; 0 = unset.
        server: place only on servers of this name; empty = any.
        runtime: the kind of inference server, and its parameters.
        base: the parent model, when this is an adapter of it.
        priority: larger goes first where capacity is short.
        latency_class: how far a request may travel.
        labels: free key-value pairs.
    """

    tenant: Name = "default"
    name: Name
    storage_uri: StorageUri
    artifact_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    secret_name: OptionalName = ""
    requirements: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    memory: Memory = 0
    devices: Annotated[int, Field(ge=0, le=64)] = 0
    gpu_types: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    replicas: Replicas = 1
    min_replicas: Replicas = 0
    max_replicas: Replicas = 0
    server: OptionalName = ""
    runtime: Runtime = Field(default_factory=Runtime)
    base: OptionalName = ""
    priority: Priority = 0
    latency_class: Literal["realtime", "interactive", "batch"] = "interactive"
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="after")
    def _limits(self) -> "ModelSpec":
        if self.max_replicas and self.min_replicas > self.max_replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is above maxReplicas {self.max_replicas}")
        if self.replicas < self.min_replicas or (self.max_replicas and self.replicas > self.max_replicas):
            limits = f"{self.min_replicas} to {self.max_replicas or 'any'}"
            raise ValueError(f"replicas {self.replicas} is outside minReplicas and maxReplicas, {limits}")
        return self

    @property
    def key(self) -> str:
        """``tenant/name``, the key of everything said of this model."""
        return f"{self.tenant}/{self.name}"


_SERVED = re.compile(r"([a-z0-9.-]{1,63})_([a-z0-9.-]{1,63})_(0|[1-9][0-9]{0,14})")


def served_name(model: str, generation: int) -> str:
    """Return the name under which a version is loaded in an inference server, e.g. ``default_iris_3``.

    Names hold no ``_``, so that the mapping is one to one; see :func:`parse_served_name`.
    """
    return f"{model.replace('/', '_')}_{generation}"


def parse_served_name(name: str) -> tuple[str, int] | None:
    """Return (model key, generation) of a name made by :func:`served_name`, or None for anybody else's name."""
    match = _SERVED.fullmatch(name)
    return (f"{match[1]}/{match[2]}", int(match[3])) if match else None


def index_digest(served_names: Iterable[str]) -> str:
    """Return what a heartbeat says of a server's index: 16 hex digits of the sha256 over the sorted names, a line each.

    Only Magnetar's models that answer ready count, and none with a load or unload in progress.
    """
    return sha256("\n".join(sorted(served_names)).encode()).hexdigest()[:16]
