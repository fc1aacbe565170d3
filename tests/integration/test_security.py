"""A Pulsar with TLS, tokens and permissions: everything works with just its grants, and nothing else does."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from magnetar_cli.exit_codes import ExitCode
from magnetar_common import grants, topic_policies
from magnetar_common.admin import Admin
from magnetar_common.brokers import BrokerUnavailable
from magnetar_common.bus import EARLIEST, LATEST, Bus, connect
from magnetar_common.errors import BusError, NotPermitted, Unauthenticated, Untrusted
from magnetar_common.grants import Part
from magnetar_common.schema_registry import SchemaRegistry
from magnetar_common.settings import BusSettings
from magnetar_common.topics import (
    ANCHOR,
    COMMANDS,
    MODEL_EVENTS,
    ROUTES,
    STATE_CHANGES,
    TOPICS,
    VOIDED,
    commands_topic,
    under,
)
from magnetar_events.schemas import schema_json
from tests.plugin import absent
from tests.support import secure
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually
from tests.support.secure import SecureBroker

# The first test waits for a second broker, the last runs a dozen processes: on a machine that may be busy.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(500)]

OURS, OTHERS = commands_topic("a", 0), commands_topic("b", 0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SecureBroker]:
    """The one broker of this module; each test has a tenant of its own."""
    try:
        broker = secure.start(tmp_path_factory.mktemp("secure"))
    except BrokerUnavailable as reason:
        absent(pytestconfig, "pulsar", str(reason))
        raise  # not reached: `absent` ends the test
    with broker.process:
        yield broker


@dataclass
class Tenancy:
    """A tenant on the broker, with its topics; roles of the same name in two tenants are two roles."""

    broker: SecureBroker
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")

    def role(self, name: str) -> str:
        return f"{name}.{self.name}"

    def settings(self, role: str, **fields: object) -> BusSettings:
        return self.broker.settings(self.name, self.broker.token(self.role(role)), **fields)

    def admin(self) -> Admin:
        return Admin(self.broker.settings(self.name, self.broker.token(secure.ADMIN)))

    def connect(self, role: str, **fields: object) -> Bus:
        return connect(self.settings(role, **fields))


@pytest.fixture(scope="module")
def tenancy(broker: SecureBroker) -> Tenancy:
    """A tenant with its topics, and a role named as each part, which may play it. Nobody leads here."""
    tenancy = Tenancy(broker)
    with tenancy.admin() as admin:
        topic_policies.apply(admin)
        for part in Part:
            grants.give(admin, tenancy.role(part), part, OURS if part is Part.AGENT else "")
        admin.create_topic(under(tenancy.name, OTHERS))
    return tenancy


# --- who may do what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [part for part in Part if part is not Part.ADMIN])
def test_a_part_may_do_what_its_row_says_and_nothing_else(tenancy: Tenancy, part: Part) -> None:
    """Every topic is tried both ways; of the commands, an agent's own topic and another server's."""
    rights = grants.TABLE[part]
    places = {topic.name: topic for topic in TOPICS if not topic.family}
    places |= {OURS: COMMANDS, OTHERS: COMMANDS}
    bus = tenancy.connect(part)

    def may(action: str, name: str) -> bool:
        topic = places[name]
        try:
            if action == "produce":
                bus.producer(name, schema=schema_json(topic.schema) if topic.schema else "").close()
            else:
                bus.reader(name, LATEST).close()
        except NotPermitted as error:
            assert f"role {tenancy.role(part)} may not {action} on {name}" in str(error)
            return False
        return True

    def should(action: str, name: str) -> bool:
        if part is Part.AGENT and name == OTHERS:
            return False
        if part is Part.SCHEDULER and action == "produce" and places[name].namespace == COMMANDS.namespace:
            return True  # the commands of servers that nobody has heard of yet: its permission is the namespace's
        return places[name] in (rights.produce if action == "produce" else rights.consume)

    tried = [(action, name) for action in ("produce", "consume") for name in places]
    assert {each: may(*each) for each in tried} == {each: should(*each) for each in tried}
    bus.close()


def test_the_rows_keep_the_promises(tenancy: Tenancy) -> None:
    """Whoever changes the table sees here what must not change: only the scheduler writes the log and commands."""
    writers = {topic.name: {part for part, row in grants.TABLE.items() if topic in row.produce} for topic in TOPICS}
    assert writers[STATE_CHANGES.name] == writers[COMMANDS.name] == writers[ROUTES.name] == {Part.SCHEDULER}
    assert writers[MODEL_EVENTS.name] == {Part.PUBLISHER, Part.OPERATOR}
    assert writers[VOIDED.name] == set()
    assert grants.TABLE[Part.PUBLISHER].consume == ()
    assert grants.TABLE[Part.DASHBOARD].produce == grants.TABLE[Part.PROJECTOR].produce == ()
    assert grants.TABLE[Part.AGENT].consume == (COMMANDS,)


def test_nobody_else_can_delete_the_schedulers_anchor(tenancy: Tenancy) -> None:
    """Pulsar lets who may consume delete any subscription of the topic, unless it is reserved for others."""
    scheduler = tenancy.connect("scheduler")
    scheduler.anchor(MODEL_EVENTS.name, ANCHOR).close()
    where = f"persistent/{under(tenancy.name, MODEL_EVENTS.name).removeprefix('persistent://')}/subscription/{ANCHOR}"
    with Admin(tenancy.settings("operator")) as operator:
        for method, path in (("POST", f"{where}/skip_all"), ("DELETE", where)):
            with pytest.raises(NotPermitted):
                operator._call(method, path)
    operator_bus = tenancy.connect("operator")
    with pytest.raises(NotPermitted):
        operator_bus.anchor(MODEL_EVENTS.name, ANCHOR)
    operator_bus.close()
    scheduler.close()


def test_a_tenants_administrator_applies_grants_and_revokes(tenancy: Tenancy) -> None:
    """No superuser is needed but to make one; and what was taken back no longer holds."""
    boss, role = tenancy.settings("admin"), tenancy.role("fleeting")
    with Admin(boss) as admin:
        topic_policies.apply(admin)
        assert [v for v in topic_policies.check(admin) if v.loses_data] == []
        bus = connect(boss)
        bus.producer(VOIDED.name, schema=schema_json(VOIDED.schema)).close()
        bus.close()
        given = grants.give(admin, role, Part.DASHBOARD)
        assert {grant.place for grant in given} == {
            grant.place for grant in grants.granted(admin) if grant.role == role
        }
        tenancy_bus = tenancy.connect("fleeting")
        tenancy_bus.reader(STATE_CHANGES.name, LATEST).close()
        assert {grant.place for grant in grants.take(admin, role)} == {grant.place for grant in given}
        with pytest.raises(NotPermitted, match=r"topics grant fleeting.* --as scheduler.projector.dashboard.operator"):
            tenancy_bus.reader(STATE_CHANGES.name, LATEST)
        tenancy_bus.close()
    with Admin(tenancy.settings("operator")) as admin, pytest.raises(NotPermitted, match=tenancy.role("operator")):
        grants.give(admin, role, Part.DASHBOARD)


# --- tokens and certificates ----------------------------------------------------------------------------------------


def refused(settings: BusSettings) -> BusError:
    """How opening a producer on the requests fails, and asking the admin interface."""
    try:
        bus = connect(settings)
    except Untrusted as error:
        return error
    with pytest.raises(BusError) as caught:
        bus.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema))
    bus.close()
    return caught.value


def test_each_fault_of_a_token_has_its_own_words(tenancy: Tenancy) -> None:
    broker, role = tenancy.broker, tenancy.role("publisher")
    tokens = {
        "there is no token": "",
        f"the token of role {role} expired at 20.*Z, 5 min ago": broker.token(role, expires_in_s=-300),
        f"the token of role {role} is not signed with the broker's key": secure.forged(role),
        "the token is no JWT": "a-password",
    }
    for words, token in tokens.items():
        settings = broker.settings(tenancy.name, token, operation_timeout_s=1)
        error = refused(settings)
        assert isinstance(error, Unauthenticated)
        assert re.search(words, str(error))
        assert not token or token not in str(error)
        with Admin(settings) as admin, pytest.raises(Unauthenticated, match=words):
            admin.broker_version()


def test_each_fault_of_a_certificate_has_its_own_words(tenancy: Tenancy, tmp_path: Path) -> None:
    """Another authority, the machine's own, a host that is not in the certificate, a file that is not there."""
    broker = tenancy.broker
    by_number = {
        "url": broker.url.replace("localhost", "127.0.0.1"),
        "admin_url": broker.admin_url.replace("localhost", "127.0.0.1"),
    }
    faults: dict[str, dict[str, str]] = {
        "MAGNETAR_PULSAR_TRUST_CERTS must name": {"trust_certs": str(secure.Authority(tmp_path, "other").certificate)},
        "unable to get local issuer certificate": {"trust_certs": ""},
        "not valid for '127.0.0.1'": by_number,
        "No such file": {"trust_certs": str(tmp_path / "nowhere.pem")},
    }
    for words, fields in faults.items():
        settings = tenancy.settings("publisher", operation_timeout_s=1, **fields)
        error = refused(settings)
        assert isinstance(error, Untrusted), error
        assert words in str(error)
        with pytest.raises(Untrusted, match=words), Admin(settings) as admin:
            admin.broker_version()


def test_a_token_that_is_replaced_in_its_file_is_used_without_a_restart(tenancy: Tenancy, tmp_path: Path) -> None:
    """The broker asks again once a token has expired; with the new one in the file the connection goes on."""
    broker, role, file = tenancy.broker, tenancy.role("publisher"), tmp_path / "token"
    expires = time.time() + 2
    file.write_text(broker.token(role, expires_in_s=2))
    bus = connect(broker.settings(tenancy.name, "", token_file=str(file)))
    producer = bus.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema))
    file.write_text(broker.token(role) + "\n")
    eventually(lambda: time.time() > expires + 2)  # the broker looks every second
    producer.send(b"not a request")
    bus.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema))
    bus.close()

    file.write_text("")
    with pytest.raises(Unauthenticated, match=r"token is empty: see MAGNETAR_PULSAR_TOKEN_FILE"):
        connect(broker.settings(tenancy.name, "", token_file=str(file)))
    file.unlink()
    with pytest.raises(Unauthenticated, match="cannot be read"):
        connect(broker.settings(tenancy.name, "", token_file=str(file)))


def test_a_schema_of_another_language_is_resolved_with_the_right_to_read(tenancy: Tenancy) -> None:
    """The scheduler asks the schema registry with nothing but `consume`."""
    bus = tenancy.connect("scheduler")
    publisher = tenancy.connect("publisher")
    sent = publisher.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema)).send(b"from Java")
    reader = bus.reader(MODEL_EVENTS.name, EARLIEST)
    message = eventually(lambda: (m := reader.read(1)) and m.id == sent and m)
    with SchemaRegistry(tenancy.settings("scheduler")) as registry:
        assert registry.resolve(message).properties["avro-fingerprint"]
    bus.close()
    publisher.close()


# --- the whole, as processes ----------------------------------------------------------------------------------------

HTTP = httpx.Client(timeout=10, trust_env=False, verify=False)  # loopback, and not over TLS
HTTP_TOKEN = "a-secret-of-the-http-interfaces"

MANIFEST = """
apiVersion: magnetar/v1
kind: Model
metadata: {name: iris}
spec: {storageUri: "file:///models/iris", requirements: [sklearn], memory: 100Mi, server: a}
"""


class World:
    """Processes that have nothing but a token each, and all that they ever said or showed."""

    def __init__(self, tenancy: Tenancy, folder: Path) -> None:
        self.tenancy, self.folder = tenancy, folder
        self.secrets = {HTTP_TOKEN}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.shown = ""
        (folder / "http-token").write_text(HTTP_TOKEN)

    def environment(self, role: str) -> dict[str, str]:
        """Half of them get their token in the environment, and half in a file."""
        settings = self.tenancy.settings(role)
        self.secrets.add(settings.token)
        file = self.folder / f"{role}.token"
        file.write_text(settings.token)
        token = {"TOKEN": settings.token} if len(role) % 2 else {"TOKEN_FILE": str(file)}
        bus = {"URL": settings.url, "ADMIN_URL": settings.admin_url, "TENANT": settings.tenant, **token}
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_")}
        return {
            **clean,
            **{f"MAGNETAR_PULSAR_{key}": value for key, value in bus.items()},
            "MAGNETAR_PULSAR_TRUST_CERTS": settings.trust_certs,
            "MAGNETAR_HTTP_TOKEN_FILE": str(self.folder / "http-token"),
            "MAGNETAR_CONFIG": str(self.folder / "contexts.yaml"),
        }

    def start(self, role: str, service: str, *arguments: str) -> str:
        """Run a service; return where it answers."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with (self.folder / f"{role}.txt").open("wb") as out:
            command = [sys.executable, "-m", "magnetar_cli", service, *arguments, "--port", str(port)]
            self.processes.append(
                subprocess.Popen(
                    [*command, "--log-level", "DEBUG"],
                    env=self.environment(role),
                    cwd=self.folder,
                    stdout=out,
                    stderr=out,
                )
            )
        return f"http://127.0.0.1:{port}"

    def cli(self, role: str, *arguments: str, expect: ExitCode = ExitCode.OK, **variables: str) -> str:
        command = [sys.executable, "-m", "magnetar_cli", *arguments]
        environment = {**self.environment(role), **variables}
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        self.shown += done.stdout + done.stderr
        assert done.returncode == expect, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr if expect else done.stdout

    def everything_shown(self) -> str:
        """What anybody could see: outputs, command lines, and the bytes of the log."""
        said = [self.shown, *(path.read_text(errors="replace") for path in self.folder.glob("*.txt"))]
        for process in self.processes:
            said += [Path(f"/proc/{process.pid}/{name}").read_text() for name in ("cmdline", "comm")]
        bus = self.tenancy.connect("operator")
        for topic in (topic for topic in TOPICS if not topic.family):
            reader = bus.reader(topic.name, EARLIEST)
            while (message := reader.read(0.2)) is not None:
                said.append(message.payload.decode("latin-1") + str(message.properties))
        bus.close()
        return "\n".join(said)


@pytest.fixture
def world(broker: SecureBroker, tmp_path: Path) -> Iterator[World]:
    world = World(Tenancy(broker), tmp_path)
    yield world
    for process in world.processes:
        process.kill()
        process.wait()


def ready(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            return HTTP.get(f"{url}/readyz").is_success
        except httpx.TransportError:
            threading.Event().wait(0.2)  # it is starting, on the same processors
            return False

    return ask


def test_the_whole_stack_works_over_tls_with_its_grants_alone_and_shows_no_secret(world: World) -> None:
    """From topics to Available, with a token for each part; what anybody sees of it is searched for every secret."""
    tenancy = world.tenancy
    superuser = tenancy.broker.token(secure.ADMIN)
    world.secrets.add(superuser)

    def administer(*arguments: str) -> str:
        return world.cli("boss", *arguments, MAGNETAR_PULSAR_TOKEN=superuser, MAGNETAR_PULSAR_TOKEN_FILE="")

    administer("topics", "apply")
    with tenancy.admin() as admin:
        for part in (Part.SCHEDULER, Part.PROJECTOR, Part.REGISTRY, Part.OPERATOR):
            grants.give(admin, tenancy.role(part), part)
        grants.give(admin, tenancy.role("agent-real"), Part.AGENT, commands_topic("real", 0))
    administer("topics", "grant", tenancy.role("agent-a"), "--as", "agent", "--server", "a/0")
    assert tenancy.role("agent-a") in administer("topics", "grants")

    scheduler = world.start("scheduler", "scheduler", "--host", "0.0.0.0", "--advertised-host", "127.0.0.1")
    projector = world.start("projector", "projector", "--host", "0.0.0.0", "--data", ":memory:")
    registry = world.start("registry", "registry")
    real = world.start(
        "agent-real", "agent", "--server", "real", "--kind", "process", "--command", "sleep 1000", "--bind", "0.0.0.0"
    )
    agent_bus = tenancy.connect("agent-a")
    agent = SimulatedAgent(agent_bus, "a")
    for url in (scheduler, projector, registry, real):
        eventually(ready(url), within=120, what=url)
    (world.folder / "iris.yaml").write_text(MANIFEST)
    world.cli("operator", "apply", "-f", "iris.yaml")
    world.cli("operator", "model", "status", "iris", "-w", "Available", "-t", "60")

    # Over HTTP nothing but health without the token, and of health only whether all is well.
    bearer = {"Authorization": f"Bearer {HTTP_TOKEN}"}
    for url, path in ((projector, "/v1/models"), (projector, "/metrics"), (scheduler, "/metrics"), (real, "/metrics")):
        assert HTTP.get(f"{url}{path}").status_code == 401
        assert HTTP.get(f"{url}{path}", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert HTTP.get(f"{url}{path}", headers=bearer).status_code == 200
    assert HTTP.post(f"{real}/terminate").status_code == 401
    assert HTTP.get(f"{scheduler}/readyz").json() == {"ok": True}
    assert HTTP.get(f"{scheduler}/readyz", headers=bearer).json()["checks"]["role"]["detail"].startswith("leading")
    models = HTTP.get(f"{projector}/v1/models", headers=bearer).json()["models"]
    assert [model["status"]["state"] for model in models] == ["Available"]

    # The command line: what it shows, and the errors that it ends with.
    findings = json.loads(world.cli("operator", "doctor", "--listen", "2", "-o", "json"))
    assert {f["check"]: f["result"] for f in findings if f["result"] != "good"} == {"policies": "warning"}
    denied = world.cli("agent-a", "model", "list", expect=ExitCode.DENIED)
    assert f"role {tenancy.role('agent-a')} may not consume" in denied
    expired = tenancy.broker.token(tenancy.role("operator"), expires_in_s=-90)
    world.secrets.add(expired)
    (world.folder / "old.token").write_text(expired)
    world.cli("operator", "context", "set", "old", "--token-file", "old.token")
    assert "old.token" in world.cli("operator", "context", "list", "-o", "yaml")
    assert (world.folder / "contexts.yaml").stat().st_mode & 0o077 == 0
    said = world.cli("operator", "--context", "old", "model", "list", expect=ExitCode.DENIED)
    assert "expired at" in said
    fire = world.cli("operator", "scheduler", "--host", "0.0.0.0", expect=ExitCode.FAILED, MAGNETAR_HTTP_TOKEN_FILE="")
    assert "MAGNETAR_HTTP_TOKEN_FILE" in fire

    shown = world.everything_shown()
    assert len(shown) > 10_000
    assert [secret[:20] for secret in world.secrets if secret in shown] == []
    signatures = [secret.rpartition(".")[2] for secret in world.secrets]
    assert [signature for signature in signatures if signature in shown] == []
    agent.die()
    agent_bus.close()
    assert HTTP.post(f"{real}/terminate", headers=bearer, timeout=60).json() == {"drained": True, "modelsLeft": 0}
