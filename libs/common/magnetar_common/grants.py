"""Who may do what with which topic: the roles as one table, and how the broker is told.

Pulsar's permissions are two, `produce` and `consume`, on a topic or on a whole namespace. One credential (a token's
subject) may play several of these roles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from magnetar_common.admin import Admin
from magnetar_common.errors import NotThere
from magnetar_common.topics import (
    AGENT_EVENTS,
    ANCHOR,
    CLUSTER_ID,
    COMMANDS,
    INPUTS,
    MODEL_EVENTS,
    ROUTES,
    SERVICE_REGISTRY,
    STATE_CHANGES,
    VOIDED,
    Topic,
    topics_of,
    under,
)

Action = Literal["produce", "consume"]


class Part(StrEnum):
    """What a credential is used for."""

    PUBLISHER = "publisher"
    AGENT = "agent"
    SCHEDULER = "scheduler"
    PROJECTOR = "projector"
    REGISTRY = "registry"
    DASHBOARD = "dashboard"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Rights:
    """What a part needs, and no more.

    Attributes:
        said: what it is for.
        produce: topics that it writes.
        consume: topics that it reads.
    """

    said: str
    produce: tuple[Topic, ...] = ()
    consume: tuple[Topic, ...] = ()


TABLE: dict[Part, Rights] = {
    Part.PUBLISHER: Rights("asks for models, and sees nothing", (MODEL_EVENTS,)),
    Part.AGENT: Rights("one server's agent: obeys its own commands", (AGENT_EVENTS, SERVICE_REGISTRY), (COMMANDS,)),
    Part.SCHEDULER: Rights(
        "leads or stands by",
        (STATE_CHANGES, ROUTES, COMMANDS, CLUSTER_ID, SERVICE_REGISTRY),
        (MODEL_EVENTS, AGENT_EVENTS, SERVICE_REGISTRY, STATE_CHANGES, VOIDED, ROUTES, CLUSTER_ID),
    ),
    Part.PROJECTOR: Rights("keeps the read model", consume=(STATE_CHANGES, VOIDED, CLUSTER_ID)),
    Part.REGISTRY: Rights("retires zombies, answers look-ups", (SERVICE_REGISTRY,), (SERVICE_REGISTRY,)),
    # Not the inputs: a refused request may hold the password for which it was refused.
    Part.DASHBOARD: Rights(
        "looks: the log, routes, services (a gateway, too)", consume=(STATE_CHANGES, VOIDED, ROUTES, SERVICE_REGISTRY)
    ),
    Part.OPERATOR: Rights(
        "a person at the command line",
        (MODEL_EVENTS,),
        (MODEL_EVENTS, AGENT_EVENTS, SERVICE_REGISTRY, STATE_CHANGES, VOIDED, ROUTES, CLUSTER_ID),
    ),
    # Pulsar lets the administrators of a tenant do everything in it; there is nothing to list.
    Part.ADMIN: Rights("applies topics, grants, revokes, and signs off what is void: everything in the tenant"),
}
"""The one table of rights. A family of topics (the commands) is one server's own topic for its agent, and its whole
namespace for the scheduler, which meets servers before anybody has heard of them."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission on the broker.

    Attributes:
        place: full name of a topic, or ``tenant/namespace``.
        role: who.
        actions: ``produce``, ``consume``.
    """

    place: str
    role: str
    actions: tuple[Action, ...]


def roles_that_may(action: Action, topic: str) -> list[Part]:
    """Return the parts that may do this with a topic (its full name, under the tenant ``magnetar``)."""
    return [
        part
        for part, rights in TABLE.items()
        if any(
            topic.startswith(each.name) if each.family else topic == each.name
            for each in (rights.produce if action == "produce" else rights.consume)
        )
    ]


def grants(part: Part, role: str, tenant: str, own_commands: str = "") -> list[Grant]:
    """Return the permissions that make a role play a part.

    Args:
        part: which.
        role: the subject of its token.
        tenant: Pulsar tenant of the topics.
        own_commands: full name of the agent's command topic; empty for every other part.
    """
    rights = TABLE[part]
    wanted: list[tuple[Topic, Action]] = [(topic, "produce") for topic in rights.produce]
    wanted.extend((topic, "consume") for topic in rights.consume)
    actions: dict[str, set[Action]] = {}
    for topic, action in wanted:
        place = (own_commands or topic.namespace) if topic.family else topic.name
        actions.setdefault(place, set()).add(action)
    return [
        Grant(under(tenant, place) if "://" in place else _namespace(tenant, place), role, tuple(sorted(done)))
        for place, done in actions.items()
    ]


def give(admin: Admin, role: str, part: Part, own_commands: str = "") -> list[Grant]:
    """Make a role play a part; what it was permitted before stays. Return what it is permitted for it. Idempotent.

    Args:
        admin: with the token of an administrator of the tenant (of a superuser, to make somebody an administrator).
        role: the subject of its token.
        part: which.
        own_commands: full name of the agent's command topic, which is created; empty for every other part.

    Raises:
        NotThere: the topics were never applied.
        NotPermitted: we may not.
    """
    if part is Part.ADMIN:
        admin.set_tenant_admins({*admin.tenant_admins(), role})
        return []
    if own_commands:
        # A permission needs a topic, and who may only consume cannot make one (measured on 4.2.4).
        admin.create_topic(under(admin.tenant, own_commands))
    made = grants(part, role, admin.tenant, own_commands)
    for grant in made:
        if "://" in grant.place:
            before = admin.topic_permissions(grant.place).get(role, [])
            admin.permit_topic(grant.place, role, sorted({*before, *grant.actions}))
        else:
            before = admin.namespace_permissions(grant.place).get(role, [])
            admin.permit_namespace(grant.place, role, sorted({*before, *grant.actions}))
    if part is Part.SCHEDULER:
        # Who may consume may also skip, reset and delete subscriptions, but for those that are reserved.
        for namespace in sorted({_namespace(admin.tenant, topic.namespace) for topic in INPUTS}):
            schedulers = admin.subscription_roles(namespace).get(ANCHOR, [])
            admin.reserve_subscription(namespace, ANCHOR, sorted({*schedulers, role}))
    return made


def take(admin: Admin, role: str) -> list[Grant]:
    """Take from a role whatever it may do with our topics, and return what that was."""
    taken = [grant for grant in granted(admin) if grant.role == role]
    for grant in taken:
        if "://" in grant.place:
            admin.forbid_topic(grant.place, role)
        else:
            admin.forbid_namespace(grant.place, role)
    return taken


def granted(admin: Admin) -> Iterator[Grant]:
    """Yield every permission on our topics and namespaces."""
    for namespace in sorted({topic.namespace for topic in topics_of(admin.tenant)}):
        try:
            whole = admin.namespace_permissions(namespace)
            topics = sorted(admin.topics(namespace))
        except NotThere:
            continue
        yield from _listed(namespace, whole)
        for topic in topics:
            own = admin.topic_permissions(topic)
            yield from _listed(topic, {role: done for role, done in own.items() if done != whole.get(role)})


def _listed(place: str, permissions: dict[str, list[str]]) -> Iterator[Grant]:
    for role, done in sorted(permissions.items()):
        known: list[Action] = [action for action in ("consume", "produce") if action in done]
        yield Grant(place, role, tuple(known))


def _namespace(tenant: str, namespace: str) -> str:
    return namespace.replace("magnetar/", f"{tenant}/", 1)
