"""A Pulsar with TLS, tokens and permissions: everything works with just its grants, and nothing else does."""

import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar_common import grants, topic_policies
from magnetar_common.admin import Admin
from magnetar_common.brokers import BrokerUnavailable
from magnetar_common.bus import EARLIEST, LATEST, Bus, connect
from magnetar_common.errors import BusError, NotPermitted, Unauthenticated, Untrusted
from magnetar_common.grants import Part
from magnetar_common.schema_registry import SchemaRegistry
from magnetar_common.topics import (
    ANCHOR,
    COMMANDS,
    MODEL_EVENTS,
    ROUTES,
    STATE_CHANGES,
    TOPICS,
    commands_topic,
    under,
)
from magnetar_events.schemas import schema_json
from tests.plugin import absent
from tests.support import secure
from tests.support.leading import eventually
from tests.support.secure import SecureBroker

pytestmark = pytest.mark.pulsar

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

    def settings(self, role: str, **fields: object):
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
        return places[name] in (rights.produce if action == "produce" else rights.consume)

    # Pulsar's permission on a whole namespace is the scheduler's, which so may write where it needs to anyway.
    tried = [(action, name) for action in ("produce", "consume") for name in places]
    assert {each: may(*each) for each in tried} == {each: should(*each) for each in tried}
    bus.close()


def test_the_rows_keep_the_promises(tenancy: Tenancy) -> None:
    """Whoever changes the table sees here what must not change: only the scheduler writes the log and commands."""
    writers = {topic.name: {part for part, row in grants.TABLE.items() if topic in row.produce} for topic in TOPICS}
    assert writers[STATE_CHANGES.name] == writers[COMMANDS.name] == writers[ROUTES.name] == {Part.SCHEDULER}
    assert writers[MODEL_EVENTS.name] == {Part.PUBLISHER, Part.OPERATOR}
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


def refused(settings) -> BusError:
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
