"""Requests on ``model-events``: what somebody wants. They are inputs, never truth by themselves."""

import time
import uuid
from typing import Annotated, Literal

from pydantic import Field, model_validator

from magnetar_events.base import Identifier, Millis, Name, OptionalName, Text, Wire
from magnetar_events.models import ModelSpec, Replicas
from magnetar_events.policy import Policy
from magnetar_events.tenants import Tenant, subject_of


class Actor(Wire):
    """Who asked.

    Attributes:
        authtype: ``user``, ``service``, … (CloudEvents auth context).
        authid: an opaque id, never a name or an address of a person.
        authverified: how it is known. What is written here is never believed: the log has what the leader verified.
    """

    authtype: Text = "unknown"
    authid: Text = ""
    authverified: Literal["none", "signature", "gateway"] = "none"


class DeployModel(Wire):
    """Want this model, in this specification. A specification equal to the wanted one makes no new generation."""

    model: ModelSpec

    @property
    def subject(self) -> str:
        """The model's key."""
        return self.model.key


class _OfModel(Wire):
    tenant: Name = "default"
    name: Name

    @property
    def subject(self) -> str:
        """The model's key."""
        return f"{self.tenant}/{self.name}"


class UndeployModel(_OfModel):
    """No longer want this model: unroute, unload everywhere, forget."""


class ScaleModel(_OfModel):
    """Want another number of replicas of the wanted version.

    Attributes:
        replicas: how many.
        now: what is on its way out leaves without the grace that lets its requests end.
    """

    replicas: Replicas
    now: bool = False


class RollbackModel(_OfModel):
    """Want a version again that was wanted before, in the number of replicas that is wanted now.

    Attributes:
        to: its generation.
        model: its specification as the log has it, with the artifact that was pinned. Needed for a version of which
            nothing is left: that becomes a new version.
    """

    to: Annotated[int, Field(ge=1, le=2**53 - 1)]
    model: ModelSpec | None = None

    @model_validator(mode="after")
    def _of_this_model(self) -> "RollbackModel":
        if self.model is not None and self.model.key != self.subject:
            raise ValueError(f"model is {self.model.key}, and the request is about {self.subject}")
        return self


class FreezeModel(_OfModel):
    """Let nothing of a model be changed until it is unfrozen; the envelope's reason is told to whoever tries."""


class UnfreezeModel(_OfModel):
    """Let a frozen model be changed again."""


class SetPolicy(Wire):
    """Replace the rules in force."""

    policy: Policy

    @property
    def subject(self) -> str:
        """Policy has one subject."""
        return "policy"


class FinalizeUpgrade(Wire):
    """Let the log hold what only software of this fold version knows. There is no way back to older software."""

    fold_version: Annotated[int, Field(ge=1, le=1_000_000)]

    @property
    def subject(self) -> str:
        """The log has one version."""
        return "upgrade"


ServerKey = Annotated[str, Field(pattern=r"^([a-z0-9.-]{1,63}/)?[a-z0-9.-]{1,63}/(0|[1-9][0-9]{0,8})$")]
"""``cluster/server/replica``; without a cluster it is the one that leads."""

DRAIN_MS = 300_000
"""A drain may take this long (ms) unless its request says otherwise."""

LONGEST_DRAIN_MS = 7 * 86_400_000
"""No drain may take longer (ms)."""


class _OfServer(Wire):
    server: ServerKey

    @property
    def subject(self) -> str:
        """The server's key, as it was given."""
        return self.server


class CordonServer(_OfServer):
    """Place nothing more on this server; what is there stays. If it is draining, what is left stays, too."""


class DrainServer(_OfServer):
    """Place nothing more on this server, and move what is there: each model is Available elsewhere before it leaves.

    Attributes:
        deadline_ms: after this long it is said which models could not be moved; they go on serving.
    """

    deadline_ms: Annotated[int, Field(ge=1_000, le=LONGEST_DRAIN_MS)] = DRAIN_MS


class ResumeServer(_OfServer):
    """Place on this server again: it is neither cordoned nor drained any more."""


class SetTenant(Wire):
    """Replace a tenant's floor and cap, or begin to have them."""

    tenant: Tenant

    @property
    def subject(self) -> str:
        """``tenant:`` and its name."""
        return self.tenant.subject


class DeleteTenant(Wire):
    """Let a tenant have neither floor nor cap any more; its models stay."""

    name: Name

    @property
    def subject(self) -> str:
        """``tenant:`` and its name."""
        return subject_of(self.name)


RequestKind = (
    DeployModel
    | UndeployModel
    | ScaleModel
    | RollbackModel
    | FreezeModel
    | UnfreezeModel
    | SetPolicy
    | FinalizeUpgrade
    | CordonServer
    | DrainServer
    | ResumeServer
    | SetTenant
    | DeleteTenant
)

OF_NO_MODEL = (SetPolicy, FinalizeUpgrade, CordonServer, DrainServer, ResumeServer, SetTenant, DeleteTenant)
"""Kinds of request that are about no model."""


def _new_id() -> str:
    return str(uuid.uuid4())


def _now() -> int:
    return int(time.time() * 1000)


class ModelEvent(Wire):
    """The envelope of a request, with CloudEvents' attributes.

    Attributes:
        id: unique within the source; a client's retry keeps it, and is then recorded as a duplicate.
        source: which client said it.
        time: the client's clock, for people only.
        cluster: whom it is for; empty = the cluster that leads.
        actor: who asked.
        reason: why, in free text.
        expected_generation: refuse unless this is the model's generation (0 = no such model yet).
        field_owner: who owns the fields it sets.
        correlation_id: ties together what belongs together.
        traceparent: W3C trace context.
        event: what is wanted.
    """

    id: Identifier = Field(default_factory=_new_id)
    source: Identifier = "unknown"
    time: Millis = Field(default_factory=_now)
    cluster: OptionalName = ""
    actor: Actor = Field(default_factory=Actor)
    reason: Text = ""
    expected_generation: Annotated[int, Field(ge=0)] | None = None
    field_owner: Literal["user", "autoscaler", "policy"] = "user"
    correlation_id: Text = ""
    traceparent: Text = ""
    event: RequestKind

    @model_validator(mode="after")
    def _generation_of_a_model(self) -> "ModelEvent":
        if self.expected_generation is not None and isinstance(self.event, OF_NO_MODEL):
            raise ValueError(f"expectedGeneration is of a model, and {type(self.event).__name__} is about none")
        return self
