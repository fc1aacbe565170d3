"""Publishing from another language: Pulsar's own client, Avro, and the topic's schema registry are enough."""

import io
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from magnetar_common.admin import Admin
from magnetar_common.brokers import BrokerUnavailable, RunningBroker
from magnetar_common.brokers.jars import default_cache, ensure_jars
from magnetar_common.brokers.jvm import find_java
from magnetar_common.brokers.ports import free_ports
from magnetar_common.brokers.select import own_pulsar
from magnetar_common.bus import EARLIEST, Bus, Message, connect
from magnetar_common.client import Magnetar
from magnetar_common.errors import BusUnavailable, RequestRefused
from magnetar_common.log import replay
from magnetar_common.schema_registry import SchemaRegistry
from magnetar_common.settings import BusSettings
from magnetar_common.topic_policies import apply
from magnetar_common.topics import MODEL_EVENTS
from magnetar_events import MODEL_EVENT, schemas
from magnetar_events import facts as f
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.entry import Input
from magnetar_events.models import ModelSpec
from tests.plugin import absent
from tests.support.leading import eventually, leading

pytestmark = pytest.mark.pulsar

PROGRAM = Path(__file__).parent.parent / "java" / "PublishDeploy.java"
JAVA_SECONDS = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[RunningBroker]:
    """A real Pulsar of this module's own: foreign schemas are registered here."""
    try:
        broker = own_pulsar(tmp_path_factory.mktemp("pulsar"))
    except BrokerUnavailable as reason:
        absent(pytestconfig, "pulsar", str(reason))
        raise  # not reached: `absent` ends the test
    with broker:
        yield broker


@pytest.fixture(scope="module")
def settings(broker: RunningBroker) -> BusSettings:
    settings = BusSettings(url=broker.service_url, admin_url=broker.admin_url or "")
    with Admin(settings) as admin:
        apply(admin)
    return settings


@pytest.fixture(scope="module")
def bus(settings: BusSettings) -> Iterator[Bus]:
    with SchemaRegistry(settings) as registry:
        bus = connect(settings)
        with leading(lambda: connect(settings), resolve=registry.resolve):
            yield bus
        bus.close()


@pytest.fixture
def publish(broker: RunningBroker, pytestconfig: pytest.Config) -> Callable[[Path, str], str]:
    """Run the Java program with a schema and a model's name; return the request's id."""
    java = find_java().program
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        absent(pytestconfig, "pulsar", f"{java} has no compiler: a JDK is needed, this is a runtime")
    lib = ensure_jars(default_cache())

    def publish(schema: Path, name: str) -> str:
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", f"{lib}/*"]
        arguments = [broker.service_url, str(schema), name, "file:///models/iris"]
        ran = subprocess.run(
            [java, *options, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=JAVA_SECONDS
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()[-1]

    return publish


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Make a schema one of those that we ship, as if an earlier release had had it."""
    shutil.copytree(schemas.folder() / "history", tmp_path / "history")
    monkeypatch.setattr(schemas, "folder", lambda: tmp_path)
    schemas.by_fingerprint.cache_clear()

    def ship(schema: Any) -> None:
        name = f"model-events.{schemas.fingerprint_of(schema)}.avsc"
        (tmp_path / "history" / name).write_text(json.dumps(schema))
        schemas.by_fingerprint.cache_clear()

    yield ship
    schemas.by_fingerprint.cache_clear()


def model_events() -> Any:
    """A copy of the current schema, to be changed."""
    return json.loads(schemas.schema_json("model-events"))


def member(schema: Any, name: str) -> Any:
    event = next(field for field in schema["fields"] if field["name"] == "event")
    return next(kind for kind in event["type"] if kind["name"] == name)


def stored(bus: Bus, place: str = "") -> Message:
    """The message at a place on the topic of requests, by default the first."""
    reader = bus.reader(MODEL_EVENTS.name, EARLIEST)
    while (message := reader.read(10)) is not None:
        if place in ("", str(message.id)):
            reader.close()
            return message
    raise AssertionError(f"there is no message {place}")


def answer(bus: Bus, says: Callable[[Input, tuple[f.Fact, ...]], bool]) -> tuple[Input, tuple[f.Fact, ...]]:
    """The entry of the log that is wanted, once it is there: its input and facts."""

    def look() -> list[tuple[Input, tuple[f.Fact, ...]]]:
        found: list[tuple[Input, tuple[f.Fact, ...]]] = []
        replay(bus, on_record=lambda record: found.append((record.entry.input, record.entry.facts)))
        return [entry for entry in found if says(*entry)]

    return eventually(look, within=30)[0]


def accepted(identifier: str) -> Callable[[Input, tuple[f.Fact, ...]], bool]:
    return lambda _, facts: any(isinstance(fact, f.RequestAccepted) and fact.request == identifier for fact in facts)


def test_a_java_program_publishes_a_deploy_model(bus: Bus, publish: Callable[[Path, str], str]) -> None:
    """The committed schema and Pulsar's client suffice: the request is accepted, and every field arrives."""
    identifier = publish(schemas.folder() / "model-events.avsc", "from-java")
    source, facts = answer(bus, accepted(identifier))
    told = next(fact for fact in facts if isinstance(fact, f.RequestAccepted))
    assert (told.source, told.subject, told.reason) == ("java", "default/from-java", "published by Pulsar's own client")
    wanted = next(fact for fact in facts if isinstance(fact, f.ModelWanted))
    assert wanted.spec == ModelSpec(
        name="from-java", storage_uri="file:///models/iris", requirements=("sklearn",), memory=100 * 2**20, replicas=2
    )
    # It says nothing of its schema itself; the log does.
    message = stored(bus, source.message_id)
    assert FINGERPRINT not in message.properties
    assert message.schema_version
    assert source.schema == MODEL_EVENT.fingerprint


def test_l8_a_schema_from_before_a_field_was_added_is_still_understood(
    bus: Bus, publish: Callable[[Path, str], str], history: Callable[[Any], None], tmp_path: Path
) -> None:
    """A client that was built against a past release goes on as it is; what it does not say takes its default."""
    past = model_events()
    spec = member(past, "DeployModel")["fields"][0]["type"]
    spec["fields"] = [field for field in spec["fields"] if field["name"] not in ("latencyClass", "priority")]
    history(past)
    path = tmp_path / "past.avsc"
    path.write_text(json.dumps(past))
    source, facts = answer(bus, accepted(publish(path, "from-the-past")))
    wanted = next(fact for fact in facts if isinstance(fact, f.ModelWanted))
    assert (wanted.spec.latency_class, wanted.spec.priority, wanted.spec.replicas) == ("interactive", 0, 2)
    assert source.schema == schemas.fingerprint_of(past) != MODEL_EVENT.fingerprint


def test_the_python_client_hears_its_answer_on_a_real_pulsar(bus: Bus) -> None:
    """Beside the others, on the same topic, with its schema registered and named in each message."""
    with Magnetar(bus, source="python") as magnetar:
        assert magnetar.deploy(name="from-python", storage_uri="file:///models/iris").accepted(30).generation == 1
        with pytest.raises(RequestRefused, match="NOT_FOUND"):
            magnetar.undeploy("nobody").accepted(30)


def test_a_schema_that_the_registry_does_not_give_rejects_the_message_and_no_other(
    bus: Bus, settings: BusSettings
) -> None:
    """A version that is not there makes the message one of an unknown schema; a registry out of reach is waited for."""
    with Magnetar(bus, source="python") as magnetar:
        magnetar.deploy(name="whatever", storage_uri="file:///models/iris").accepted(30)
    bare = stored(bus)._replace(properties={}, schema_version=(999).to_bytes(8, "big"))
    with SchemaRegistry(settings) as registry:
        named = registry.resolve(bare)
        assert "999" in named.properties[FINGERPRINT]
        with pytest.raises(Undecodable, match="UNKNOWN_SCHEMA"):
            MODEL_EVENT.decode(named.payload, named.properties[FINGERPRINT])
        assert registry.resolve(bare._replace(schema_version=b"")).properties == {}
    (port,) = free_ports(1)
    nowhere = settings.model_copy(update={"admin_url": f"http://127.0.0.1:{port}"})
    with SchemaRegistry(nowhere) as registry, pytest.raises(BusUnavailable):
        registry.resolve(bare)


def send(bus: Bus, schema: Any, event: tuple[str, dict[str, Any]], identifier: str) -> None:
    """Publish as a foreign client does: with its schema in the registry, and no word of it in the message."""
    out = io.BytesIO()
    record = {"id": identifier, "source": "future", "time": 1, "event": event}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    producer = bus.producer(MODEL_EVENTS.name, schema=json.dumps(schema))
    producer.send(out.getvalue(), key="default/iris")
    producer.close()


def test_a_kind_of_event_from_the_future_is_recorded_and_stops_nobody(bus: Bus, history: Callable[[Any], None]) -> None:
    """Unknown schema: rejected as such. Known schema, unknown kind: rejected by kind, with the request's own name."""
    future = model_events()
    event = next(field for field in future["fields"] if field["name"] == "event")
    name = {"name": "name", "type": "string"}
    event["type"].append({"type": "record", "name": "TeleportModel", "namespace": "magnetar", "fields": [name]})

    def rejected(code: str) -> f.RequestRejected:
        entry = answer(bus, lambda _, facts: any(getattr(fact, "code", "") == code for fact in facts))
        return next(fact for fact in entry[1] if isinstance(fact, f.RequestRejected))

    send(bus, future, ("magnetar.TeleportModel", {"name": "iris"}), "one")
    assert rejected("UNKNOWN_SCHEMA").message.endswith("is known")

    history(future)
    send(bus, future, ("magnetar.TeleportModel", {"name": "iris"}), "two")
    told = rejected("UNKNOWN_KIND")
    assert (told.request, told.source, told.kind) == ("two", "future", "TeleportModel")

    wish = ("magnetar.DeployModel", {"model": {"name": "after-all", "storageUri": "file:///models/iris"}})
    send(bus, future, wish, "three")
    assert answer(bus, accepted("three"))
