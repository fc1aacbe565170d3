"""Pulsar's admin REST interface, as much of it as Magnetar needs. The embedded broker has none."""

import json
import re
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from magnetar_common import tls, tokens
from magnetar_common.errors import BusRefused, BusUnavailable, NotPermitted, NotThere, Unauthenticated
from magnetar_common.settings import BusSettings

Json = Any
"""What JSON can hold."""

_REDIRECTS = 3


class Admin:
    """A client of one cluster's admin interface. Safe to use from several threads.

    Every method raises:
        BusUnavailable: no answer, or a broken one; trying again may help.
        NotThere: no such tenant, namespace, topic or schema.
        NotPermitted: our role may not do that.
        Unauthenticated: no token, or one that the broker does not accept.
        Untrusted: who answers there cannot prove that it is the broker.
        BusRefused: not valid.
    """

    def __init__(self, settings: BusSettings) -> None:
        if not settings.admin_url:
            raise BusRefused(
                "there is no admin interface: set MAGNETAR_PULSAR_ADMIN_URL (the embedded broker has none)"
            )
        self.tenant = settings.tenant
        """Pulsar tenant of Magnetar's topics."""
        self._bearer = _Bearer(settings)
        self._places = deque(f"{place.strip().rstrip('/')}/admin/v2/" for place in settings.admin_url.split(","))
        self._http = httpx.Client(
            base_url=self._places[0],
            auth=self._bearer,
            verify=tls.context(settings.trust_certs) if settings.admin_url.startswith("https") else False,
            timeout=settings.operation_timeout_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def broker_version(self) -> str:
        """Return the broker's version, such as ``4.2.4``."""
        return self._call("GET", "brokers/version", text=True)

    def broker_settings(self) -> dict[str, str]:
        """Return the broker's running configuration (for superusers)."""
        return self._call("GET", "brokers/configuration/runtime")

    def clusters(self) -> list[str]:
        """Return the names of the clusters that this one knows, itself among them."""
        return [name for name in self._call("GET", "clusters") if name != "global"]

    def create_tenant(self, tenant: str) -> None:
        """Create a tenant for all clusters, unless it is there."""
        self._create(f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": self.clusters()})

    def create_namespace(self, namespace: str) -> None:
        """Create ``tenant/namespace``, unless it is there."""
        self._create(f"namespaces/{namespace}")

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions, unless it is there."""
        self._create(_path(topic))

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 = not partitioned (or not there)."""
        return int(self._call("GET", f"{_path(topic)}/partitions")["partitions"])

    def namespace_policy(self, namespace: str, policy: str) -> Json:
        """Return a policy as it is set on a namespace; None when it is not."""
        return self._call("GET", f"namespaces/{namespace}/{policy}")

    def set_namespace_policy(self, namespace: str, policy: str, value: Json) -> None:
        """Set a policy of a namespace."""
        method = "PUT" if policy == "schemaCompatibilityStrategy" else "POST"
        self._call(method, f"namespaces/{namespace}/{policy}", body=value)

    def topic_policy(self, topic: str, policy: str) -> Json:
        """Return a policy as it holds for a topic, whoever set it (topic, namespace, or broker)."""
        return self._call("GET", f"{_path(topic)}/{policy}", {"applied": "true"})

    def set_topic_policy(self, topic: str, policy: str, value: Json) -> None:
        """Set a policy of a topic; it goes before the namespace's."""
        if policy == "messageTTL":
            self._call("POST", f"{_path(topic)}/{policy}", {policy: str(value)})
        elif policy == "backlogQuotaMap":  # read as a whole, and set one kind at a time
            for kind, quota in value.items():
                self._call("POST", f"{_path(topic)}/backlogQuota", {"backlogQuotaType": kind}, body=quota)
        else:
            self._call("POST", f"{_path(topic)}/{policy}", body=value)

    def schema(self, topic: str) -> Json:
        """Return the newest Avro schema of a topic; None when it has none."""
        try:
            return json.loads(self._call("GET", f"schemas/{_local(topic)}/schema")["data"])
        except NotThere:
            return None

    def schema_version(self, topic: str, version: int) -> Json:
        """Return the Avro schema that a topic had as this version.

        Raises:
            ValueError: that version is no Avro schema.
        """
        return json.loads(self._call("GET", f"schemas/{_local(topic)}/schema/{version}")["data"])

    def set_schema(self, topic: str, schema: str) -> None:
        """Register an Avro schema (JSON). One that is registered already makes no new version."""
        self._call("POST", f"schemas/{_local(topic)}/schema", body={"type": "AVRO", "schema": schema, "properties": {}})

    def topics(self, namespace: str) -> list[str]:
        """Return the full names of a namespace's topics."""
        return self._call("GET", f"persistent/{namespace}")

    def topic_permissions(self, topic: str) -> dict[str, list[str]]:
        """Return which role may do what with a topic: its own permissions and its namespace's."""
        return self._call("GET", f"{_path(topic)}/permissions")

    def namespace_permissions(self, namespace: str) -> dict[str, list[str]]:
        """Return which role may do what with every topic of a namespace."""
        return self._call("GET", f"namespaces/{namespace}/permissions")

    def permit_topic(self, topic: str, role: str, actions: Sequence[str]) -> None:
        """Set what a role may do with a topic, which must exist: ``produce``, ``consume``."""
        self._call("POST", f"{_path(topic)}/permissions/{quote(role, safe='')}", body=list(actions))

    def permit_namespace(self, namespace: str, role: str, actions: Sequence[str]) -> None:
        """Set what a role may do with every topic of a namespace."""
        self._call("POST", f"namespaces/{namespace}/permissions/{quote(role, safe='')}", body=list(actions))

    def forbid_topic(self, topic: str, role: str) -> None:
        """Take from a role what it may do with a topic."""
        self._call("DELETE", f"{_path(topic)}/permissions/{quote(role, safe='')}")

    def forbid_namespace(self, namespace: str, role: str) -> None:
        """Take from a role what it may do with every topic of a namespace."""
        self._call("DELETE", f"namespaces/{namespace}/permissions/{quote(role, safe='')}")

    def subscription_roles(self, namespace: str) -> dict[str, list[str]]:
        """Return which subscriptions of a namespace are reserved, and for which roles."""
        return self._call("GET", f"namespaces/{namespace}/permissions/subscription")

    def reserve_subscription(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Let only these roles use (or delete) a subscription; who else may consume no longer can."""
        self._call("POST", f"namespaces/{namespace}/permissions/subscription/{subscription}", body=list(roles))

    def tenant_admins(self) -> list[str]:
        """Return the roles that administer our tenant (for them and for superusers)."""
        return self._call("GET", f"tenants/{self.tenant}")["adminRoles"]

    def set_tenant_admins(self, roles: Iterable[str]) -> None:
        """Set the roles that administer our tenant (for superusers)."""
        there = self._call("GET", f"tenants/{self.tenant}")
        self._call("POST", f"tenants/{self.tenant}", body={**there, "adminRoles": sorted(roles)})

    def compact(self, topic: str) -> None:
        """Ask for a compaction; it runs in the background."""
        self._call("PUT", f"{_path(topic)}/compaction")

    def compaction(self, topic: str) -> str:
        """Return NOT_RUN, RUNNING, SUCCESS or ERROR."""
        return self._call("GET", f"{_path(topic)}/compaction")["status"]

    def stats(self, topic: str) -> dict[str, Json]:
        """Return the broker's statistics of a topic: publishers, subscriptions, sizes."""
        return self._call("GET", f"{_path(topic)}/stats")

    def delete(self, topic: str) -> None:
        """Delete a topic with all that it holds, whoever is connected to it."""
        self._call("DELETE", _path(topic), {"force": "true"})

    def unload(self, topic: str) -> None:
        """Make the broker let go of a topic; clients find it again by themselves."""
        self._call("PUT", f"{_path(topic)}/unload")

    def trim(self, topic: str) -> None:
        """Drop now what retention no longer keeps; the broker does it by itself now and then."""
        self._call("POST", f"{_path(topic)}/trim")

    def ledgers(self, topic: str) -> list[int]:
        """Return the ids of the ledgers that a topic's messages are in, oldest first."""
        return [each["ledgerId"] for each in self._call("GET", f"{_path(topic)}/internalStats")["ledgers"]]

    def _create(self, path: str, body: Json = None) -> None:
        try:
            self._call("PUT", path, body=body)
        except _Exists:
            return

    def _call(
        self, method: str, path: str, params: dict[str, str] | None = None, *, body: Json = None, text: bool = False
    ) -> Any:
        answer = self._answer(method, path, params, body)
        if answer.is_success:
            return answer.text if text else (answer.json() if answer.content else None)
        reason = _reason(answer)
        said = f"{method} {answer.url}: {answer.status_code} {reason}"
        if answer.status_code == HTTPStatus.UNAUTHORIZED and not reason.startswith(_FORBIDDEN):
            raise Unauthenticated(
                f"{self._http.base_url.host} asks who we are, and {tokens.fault(self._bearer.token)}: put a token for "
                "this broker into the file that MAGNETAR_PULSAR_TOKEN_FILE names (or MAGNETAR_PULSAR_TOKEN)"
            )
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            role = tokens.claims(self._bearer.token).role or "anonymous"
            raise NotPermitted(f"role {role} may not do this: {said}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise NotThere(said)
        if answer.status_code == HTTPStatus.CONFLICT:
            raise _Exists(said)
        if answer.is_client_error:
            raise BusRefused(said)
        raise BusUnavailable(said)

    def _answer(self, method: str, path: str, params: dict[str, str] | None, body: Json) -> httpx.Response:
        """Ask the broker that answered last, and if it does not, the others in turn."""
        for left in reversed(range(len(self._places))):
            try:
                answer = self._http.request(method, path, params=params, json=body)
                for _ in range(_REDIRECTS):  # to the broker that owns the topic; httpx would leave out who we are
                    if not answer.has_redirect_location:
                        break
                    answer = self._http.request(method, answer.headers["location"], json=body)
                return answer
            except httpx.HTTPError as error:
                place = self._places[0]
                if (untrusted := tls.distrust(error, place.removesuffix("admin/v2/"))) is not None:
                    raise untrusted from None
                self._places.rotate(-1)
                self._http.base_url = self._places[0]
                if not left:
                    raise BusUnavailable(f"{place}: {method} {path}: {error or type(error).__name__}") from error
        raise AssertionError("there is at least one place")


class _Exists(BusRefused):
    """What was to be created is there."""


_FORBIDDEN = ("Unauthorized", "Don't have permission")
"""How a 401 begins when the broker knows us, and means 403."""


class _Bearer(httpx.Auth):
    """Sends the token as it is now, for its file may have been replaced."""

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings
        self.token = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        self.token = self._settings.current_token()
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        yield request


def _reason(answer: httpx.Response) -> str:
    """Return what the broker gives as its reason; of a page for browsers only the title."""
    try:
        return str(answer.json()["reason"])
    except (ValueError, KeyError, TypeError):
        title = re.search(r"<title>(.*?)</title>", answer.text, re.DOTALL)
        return title[1] if title else answer.text.strip()[:500]


def _local(topic: str) -> str:
    return quote(topic.removeprefix("persistent://"))


def _path(topic: str) -> str:
    return f"persistent/{_local(topic)}"
