"""The command line against a broker, a leader and an agent: what a user types, and what comes of it."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from magnetar_cli.exit_codes import ExitCode
from magnetar_cli.main import main
from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import Bus, connect
from magnetar_common.registrar import Registrar
from magnetar_common.render import state_digest
from magnetar_common.settings import BusSettings
from magnetar_events import ServiceRecord
from magnetar_events.entry import FOLD_VERSION, Entry, Input
from magnetar_events.facts import LeaderElected
from magnetar_events.records import Address
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually, leading
from tests.support.logs import busy_world, entry, write, write_junk

MANIFEST = """
apiVersion: magnetar/v1
kind: Model
metadata: {name: iris}
spec: {storageUri: "file:///models/iris", requirements: [sklearn], memory: 100Mi, replicas: 1}
"""


class Cli:
    """Runs the command in this process, with what it writes caught."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        self.out = self.err = ""

    def __call__(self, *arguments: object, expect: ExitCode = ExitCode.OK) -> str:
        self._monkeypatch.setattr("sys.argv", ["magnetar", *map(str, arguments)])
        self._capfd.readouterr()
        code = main()
        self.out, self.err = self._capfd.readouterr()
        assert code == expect, f"{arguments}: exit {code}\n{self.out}\n{self.err}"
        assert "Traceback" not in self.err
        return self.out

    def json(self, *arguments: object) -> object:
        return json.loads(self(*arguments, "-o", "json"))


@pytest.fixture
def settings(own_embedded_broker: RunningBroker, tmp_path: Path) -> BusSettings:
    return BusSettings(url=own_embedded_broker.service_url, admin_url="", data_dir=str(tmp_path / "embedded"))


@pytest.fixture
def cli(
    settings: BusSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Cli:
    monkeypatch.delenv("MAGNETAR_PULSAR_URL", raising=False)
    monkeypatch.delenv("MAGNETAR_CONTEXT", raising=False)
    monkeypatch.setenv("MAGNETAR_CONFIG", str(tmp_path / "contexts.yaml"))
    run = Cli(monkeypatch, capfd)
    run("context", "set", "here", "--url", settings.url, "--data-dir", settings.data_dir)
    return run


@pytest.fixture
def leader(settings: BusSettings) -> Iterator[object]:
    with leading(lambda: connect(settings)) as led:
        yield led


@pytest.fixture
def agent(bus: Bus, leader: object) -> Iterator[SimulatedAgent]:
    agent = SimulatedAgent(bus, "a")
    yield agent
    agent.die()


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "iris.yaml"
    path.write_text(MANIFEST)
    return path


def test_a_models_whole_life_from_the_command_line(cli: Cli, agent: SimulatedAgent, manifest: Path) -> None:
    """apply → status -w → list → log → history → scale → replay at an earlier place → unload → gone."""
    (applied,) = json.loads(cli("apply", "-f", manifest, "--reason", "the test", "-o", "json"))
    assert applied == {"subject": "default/iris", "result": "accepted", "generation": 1}

    shown = cli("model", "status", "iris", "-w", "ModelAvailable", "-t", 30)
    assert "Available" in shown
    assert "local/a/0" in shown

    (row,) = cli.json("model", "list")
    assert (row["model"], row["state"], row["available"], row["spec"]["memory"]) == (
        "default/iris", "Available", 1, 100 * 2**20,
    )  # fmt: skip
    (server,) = yaml.safe_load(cli("server", "list", "-o", "yaml"))
    assert (server["key"], server["schedulable"]) == ("local/a/0", True)

    facts = cli.json("log", "--subject", "iris")
    kinds = [fact["kind"] for fact in facts]
    assert kinds.index("RequestAccepted") < kinds.index("ReplicaPlaced") < kinds.index("TrafficChanged")
    placed = next(fact for fact in facts if fact["kind"] == "ReplicaPlaced")
    assert cli.json("log", "--kind", "replicaplaced") == [placed]
    assert "the test" in cli("model", "history", "iris")

    for place in (placed["position"], placed["messageId"], placed["time"]):
        then = cli.json("replay", "--at", place)
        assert then["position"] >= placed["position"]
        (replica,) = then["state"]["models"]["default/iris"]["replicas"]
        assert replica["server"] == "local/a/0"
    assert cli.json("replay", "--at", placed["position"])["state"]["models"]["default/iris"]["traffic"] == []
    assert "LoadRequested" in cli("replay", "--at", placed["position"])

    cli("model", "scale", "iris", 2, "-w", "Degraded", "-t", 30)
    cli("model", "unload", "iris", "--wait", "-t", 30)
    assert cli.json("model", "list") == []
    cli("model", "status", "iris", expect=ExitCode.NOT_FOUND)
    assert [change["kind"] for change in cli.json("model", "history", "iris")] == ["deployed", "scaled", "undeployed"]


def test_servers_are_cordoned_drained_and_resumed_from_the_command_line(
    cli: Cli, bus: Bus, agent: SimulatedAgent, manifest: Path
) -> None:
    """What has no other place is named with the reason, exit 4; with another server the same drain ends, exit 0."""
    cli("apply", "-f", manifest)
    cli("model", "status", "iris", "-w", "Available", "-t", 30)

    cli("server", "cordon", "a", "--reason", "look at it")
    (row,) = cli.json("server", "list")
    assert (row["phase"], row["schedulable"]) == ("CORDONED", False)
    shown = cli("server", "show", "a")
    assert "cordoned by unverified uid-" in shown
    assert "look at it" in shown
    assert "STILL" not in shown.upper()

    cli("server", "drain", "a/0", "--deadline", 1, "--wait", expect=ExitCode.TIMED_OUT)
    assert "1 left on local/a/0, 1 of them stuck: default/iris v1, NO_ROOM: fits on none of 1 server" in cli.err
    shown = cli.json("server", "show", "local/a/0")
    assert (shown["phase"], shown["modelsLeft"], shown["modelsStuck"]) == ("STUCK", 1, 1)
    assert shown["replicas"][0]["whyHere"].startswith("NO_ROOM: fits on none of 1 server: 1 draining")
    assert "STUCK, 1 left, 1 stuck" in cli("server", "list")
    assert "Available" in cli("model", "status", "iris")

    other = SimulatedAgent(bus, "b")
    assert cli.json("server", "drain", "a", "--wait", "--deadline", 60)["phase"] == "DRAINED"
    assert "local/b/0" in cli("model", "status", "iris")
    for name in ("local/a/0", "a/0", "a"):
        assert "local/a/0 is drained: nothing is left on it" in cli("log", "--subject", name)
    cli("log", "--subject", "a/7", expect=ExitCode.NOT_FOUND)

    cli("server", "resume", "a")
    rows = cli.json("server", "list")
    assert [(row["key"], row["phase"], row["schedulable"]) for row in rows] == [
        ("local/a/0", "", True), ("local/b/0", "", True),
    ]  # fmt: skip
    cli("server", "drain", "nobody", expect=ExitCode.NOT_FOUND)
    other.die()


def test_s61_a_version_is_rolled_back_compared_and_frozen(cli: Cli, agent: SimulatedAgent, manifest: Path) -> None:
    """Two versions → diff → rollback to the one long gone → versions → freeze → refused → unfreeze → scale in now."""
    cli("model", "load", "-f", manifest, "-w", "Available", "-t", 30)
    manifest.write_text(MANIFEST.replace("models/iris", "models/iris2"))
    cli("model", "load", "-f", manifest, "--reason", "better", "-w", "Available", "-t", 30)
    (difference,) = [each for each in cli.json("model", "diff", "iris", 1, 2) if each["field"] != "artifact"]
    assert difference == {"field": "storageUri", "before": "file:///models/iris", "after": "file:///models/iris2"}
    cli("model", "diff", "iris", 1, 7, expect=ExitCode.NOT_FOUND)
    assert "the log has 1, 2" in cli.err

    def only(generation: int) -> bool:
        (row,) = cli.json("model", "list")
        return {replica["generation"] for replica in row["replicas"]} == {generation}

    eventually(lambda: only(2))
    cli("model", "rollback", "iris", "--to", 1, "--reason", "worse", "-w", "Available", "-t", 30)
    assert "as in version 1 again, as version 3" in cli.err
    assert "default/iris is Available" in cli.err
    versions = cli.json("model", "history", "iris", "--versions")
    assert [(each["generation"], each["reason"], each["rollbackOf"], each["outcome"]) for each in versions] == [
        (1, "", 0, "Served"),
        (2, "better", 0, "Served"),
        (3, "worse", 1, "Serving"),
    ]
    assert "Serving" in cli("model", "history", "iris", "--versions")
    assert cli.json("model", "history", "iris")[-1]["kind"] == "rolled back"
    cli("model", "rollback", "iris", "--to", 9, expect=ExitCode.REJECTED)
    assert "there was no version 9" in cli.err

    cli("model", "freeze", "iris", "--reason", "audit until Friday")
    assert "audit until Friday" in cli("model", "status", "iris")
    cli("model", "scale", "iris", 0, expect=ExitCode.REJECTED)
    assert "audit until Friday" in cli.err
    cli("model", "freeze", "iris")
    assert "was frozen already by unverified uid-" in cli.err
    assert cli.err.rstrip().endswith(": audit until Friday")
    cli("model", "unfreeze", "iris")
    cli("model", "unfreeze", "iris")
    assert "was not frozen" in cli.err
    cli("model", "scale", "iris", 0, "--now")
    eventually(lambda: cli.json("model", "list")[0]["replicas"] == [])


def test_what_is_wanted_already_changes_nothing(cli: Cli, agent: SimulatedAgent, manifest: Path) -> None:
    cli("model", "load", "-f", manifest, "-w", "Available", "-t", 30)
    (again,) = json.loads(cli("model", "load", "-f", manifest, "-o", "json"))
    assert again["generation"] == 1


def test_a_tenant_is_set_shown_and_deleted(cli: Cli, agent: SimulatedAgent, manifest: Path, tmp_path: Path) -> None:
    """apply → list → a wish over the cap → show says why → set → refused → delete."""
    path = tmp_path / "tenant.yaml"
    path.write_text(
        "{apiVersion: magnetar/v1, kind: Tenant, metadata: {name: default}, spec: {capReplicas: 1, floorReplicas: 1}}"
    )
    (applied,) = json.loads(cli("apply", "-f", path, "-o", "json"))
    assert applied == {"subject": "tenant:default", "result": "accepted", "generation": 0}
    cli("apply", "-f", manifest, "-w", "Available", "-t", 30)
    cli("model", "scale", "iris", 2, "-w", "Degraded", "-t", 30)
    (row,) = cli.json("tenant", "list")
    assert (row["tenant"], row["used"]["replicas"], row["limits"]["capReplicas"]) == ("default", 1, 1)
    assert row["waiting"][0]["code"] == "TENANT_QUOTA"
    shown = cli("tenant", "show", "default")
    assert "1 of capReplicas 1 are used, and 1 more wanted" in shown
    cli("tenant", "set", "default", "--over-cap", "refuse")
    assert cli.json("tenant", "show", "default")["limits"] == {
        "name": "default", "floorReplicas": 1, "floorBytes": 0, "capReplicas": 1, "capBytes": 0, "overCap": "refuse",
    }  # fmt: skip
    cli("model", "scale", "iris", 3, expect=ExitCode.REJECTED)
    assert "TENANT_QUOTA" in cli.err
    assert "TenantSet" in [fact["kind"] for fact in cli.json("log", "--subject", "tenant:default")]
    cli("tenant", "set", "default", "--floor-replicas", 2, expect=ExitCode.USAGE)
    cli("tenant", "show", "nobody", expect=ExitCode.NOT_FOUND)
    cli("tenant", "delete", "default")
    assert cli.json("tenant", "show", "default")["limits"] is None


def test_a_refused_request_exits_3_and_names_code_and_field(cli: Cli, leader: object, manifest: Path) -> None:
    cli("model", "load", "-f", manifest)
    cli("model", "load", "-f", manifest, "--expected-generation", 7, expect=ExitCode.REJECTED)
    assert "GENERATION_CONFLICT" in cli.err
    cli("model", "unload", "nobody", expect=ExitCode.REJECTED)
    assert "NOT_FOUND" in cli.err


def test_a_state_that_does_not_come_exits_4_and_says_how_it_is(cli: Cli, leader: object, manifest: Path) -> None:
    """No server: the model fits nowhere, and the message says so."""
    cli("apply", "-f", manifest)
    cli("model", "status", "iris", "-w", "Available", "-t", 1, expect=ExitCode.TIMED_OUT)
    assert "ScheduleFailed" in cli.err
    assert not cli.out


def test_without_a_scheduler_a_request_exits_4(cli: Cli, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_cli.asking.ANSWER_S", 1.0)
    cli("apply", "-f", manifest, expect=ExitCode.TIMED_OUT)
    assert "no scheduler answered" in cli.err


def test_what_is_not_there_exits_5(cli: Cli, leader: object) -> None:
    for arguments in (
        ("model", "status", "nobody"),
        ("model", "history", "nobody"),
        ("model", "infer", "nobody", '{"inputs": []}'),
        ("service", "history", "nobody"),
        ("replay", "--at", "100000"),
        ("replay", "--at", "2001-01-01T00:00:00Z"),
        ("context", "use", "nobody"),
    ):
        cli(*arguments, expect=ExitCode.NOT_FOUND)
        assert cli.err.startswith("error: "), arguments


def test_a_broker_that_is_gone_exits_6(
    cli: Cli, leader: object, manifest: Path, own_embedded_broker: RunningBroker
) -> None:
    own_embedded_broker.kill()
    cli("apply", "-f", manifest, expect=ExitCode.BROKER_UNREACHABLE)
    cli("model", "list", expect=ExitCode.BROKER_UNREACHABLE)
    own_embedded_broker.restart()  # so that the leader can be stopped in order


def test_services_show_with_their_history(cli: Cli, agent: SimulatedAgent) -> None:
    """Who registered is listed; what they said is kept, mere heartbeats left out."""
    (row,) = cli.json("service", "list")
    assert (row["serviceName"], row["instanceId"], row["status"]) == ("agent", "a/0/one", "UP")
    agent.die()  # of itself it says UP every second
    agent.beat()
    agent.beat("DRAINING")
    assert [said["status"] for said in cli.json("service", "history", "agent")] == ["UP", "DRAINING"]
    assert len(cli.json("service", "history", "a/0/one")) == 2
    everything = json.loads(cli("service", "history", "agent", "--all", "-o", "json"))
    assert len(everything) >= 3


def test_the_log_is_followed_as_it_grows(cli: Cli, agent: SimulatedAgent, manifest: Path) -> None:
    """`log -f -o json` writes a fact a line at once: a process that reads them sees a model become Available."""
    command = [sys.executable, "-m", "magnetar_cli", "log", "-f", "-o", "json", "--subject", "iris"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        killed = threading.Timer(60, following.kill)
        killed.start()
        try:
            cli("apply", "-f", manifest)
            assert following.stdout is not None
            kinds: list[str] = []
            for text in following.stdout:
                kinds.append(json.loads(text)["kind"])
                if kinds[-1] == "TrafficChanged":
                    break
            assert "ReplicaPlaced" in kinds
            assert kinds[-1] == "TrafficChanged"
        finally:
            killed.cancel()
            following.kill()


def test_the_doctor_says_what_is_well_and_what_is_not(cli: Cli, agent: SimulatedAgent) -> None:
    """The leader of this test is not registered as a service: that is found, and everything else is well."""
    cli("doctor", "--listen", 2, "-o", "json", expect=ExitCode.FAILED)
    findings = {finding["check"]: finding for finding in json.loads(cli.out)}
    assert [name for name, finding in findings.items() if finding["result"] == "bad"] == ["leader"]
    assert {"broker", "schemas", "log", "lag of model-events", "lag of agent-events", "clocks"} <= findings.keys()


def test_topics_of_the_embedded_broker_need_no_care(cli: Cli) -> None:
    cli("topics", "apply")
    assert cli.json("topics", "check") == []


def test_grants_say_what_is_missing(cli: Cli) -> None:
    """An agent's is for one server, others' for none; and the embedded broker knows no roles."""
    for arguments, said in (
        (("--as", "agent"), "--server NAME/REPLICA"),
        (("--as", "agent", "--server", "../x/0"), "--server NAME/REPLICA"),
        (("--as", "scheduler", "--server", "a/0"), "--server is for an agent"),
        (("--as", "publisher"), "knows no roles"),
    ):
        cli("topics", "grant", "somebody", *arguments, expect=ExitCode.USAGE)
        assert said in cli.err


def test_an_empty_log_is_no_error(cli: Cli) -> None:
    assert cli.json("model", "list") == []
    assert cli.json("log") == []
    cli("replay", expect=ExitCode.NOT_FOUND)


def test_an_upgrade_is_finalized_once_no_older_scheduler_runs(cli: Cli, settings: BusSettings, bus: Bus) -> None:
    """A log of version 1 stays so under newer software; an older scheduler that is registered is named and waited for."""
    write(bus, Entry("e0", 0, 1, 0, 0, 1, Input("leader"), facts=(LeaderElected(1, "old", "local", "", "0"),)))
    about = ServiceRecord(
        service_name="magnetar-scheduler",
        instance_id="magnetar-scheduler/old",
        address=Address(host="127.0.0.1", port=1),
        status="UP",
        timestamp=0,
        metadata={"role": "standby", "version": "0.1.0"},
    )
    old = Registrar(bus, about).start()
    with leading(lambda: connect(settings)) as led:
        assert cli.json("upgrade", "status") == {
            "log": 1,
            "software": FOLD_VERSION,
            "schedulers": [{"instance": about.instance_id, "role": "standby", "version": "0.1.0", "foldVersion": 1}],
        }
        cli("upgrade", "finalize", expect=ExitCode.FAILED)
        assert "magnetar-scheduler/old (fold version 1)" in cli.err
        assert led.state.fold_version == 1
        old.leave()
        assert cli.json("upgrade", "finalize", "--reason", "all are new") == {"before": 1, "foldVersion": FOLD_VERSION}
        assert led.state.fold_version == FOLD_VERSION
        assert cli.json("upgrade", "finalize") == {"before": FOLD_VERSION, "foldVersion": FOLD_VERSION}


def test_requests_are_signed_and_the_history_says_by_whom(
    cli: Cli, leader: object, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """keys new → policy → a context that signs → requireSignature → history; without the key nothing is accepted."""
    monkeypatch.chdir(tmp_path)
    key = cli("keys", "new", "ops").strip()
    cli("keys", "new", "ops", expect=ExitCode.FAILED)
    cli("keys", "new", "../ops", expect=ExitCode.USAGE)
    policy = {
        "apiVersion": "magnetar/v1",
        "kind": "Policy",
        "spec": {"publishers": {"ops": {"key": key, "policy": True}}},
    }
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    cli("apply", "-f", manifest)
    cli("apply", "-f", "policy.json")
    assert list(cli.json("policy", "show")["publishers"]) == ["ops"]
    assert "publishers" in cli("policy", "show")
    policy["spec"]["requireSignature"] = True  # type: ignore[index]
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    cli("apply", "-f", "policy.json", expect=ExitCode.REJECTED)
    assert "WOULD_LOCK_OUT" in cli.err
    cli("context", "set", "here", "--signing-key-file", "ops.pem", "--signing-name", "ops")
    monkeypatch.chdir("/")
    cli("apply", "-f", tmp_path / "policy.json")
    cli("model", "scale", "iris", 2)
    monkeypatch.delenv("MAGNETAR_SIGNING_KEY_FILE", raising=False)
    cli("context", "set", "here", "--signing-key-file", tmp_path / "none.pem")
    cli("model", "scale", "iris", 3, expect=ExitCode.FAILED)
    assert "cannot be read" in cli.err
    history = cli.json("model", "history", "iris")
    assert [(change["authverified"], change["publisher"]) for change in history] == [("none", ""), ("signature", "ops")]
    shown = cli("model", "history", "iris")
    assert "unverified uid-" in shown
    assert "ops (signed)" in shown


def test_junk_on_the_log_is_voided_and_the_truth_is_not(cli: Cli, bus: Bus) -> None:
    """The log cannot be shown for junk; the error's own hint mends it; what fits is refused; said twice it is the same."""
    (true,) = write(bus, entry(0))
    junk = write_junk(bus, b"hello, log")
    cli("log", expect=ExitCode.FAILED)
    assert f"magnetar log void {junk}" in cli.err
    said = cli.json("log", "void", junk, "--reason", "a test of production", "--actor", "ops-7")
    assert isinstance(said, dict)
    assert (said["new"], said["voided"]["size"], said["voided"]["actor"]) == (True, 10, "ops-7")
    assert said["voided"]["sha256"] == sha256(b"hello, log").hexdigest()
    assert "signed off already" in (cli("log", "void", junk, "--reason", "again"), cli.err)[1]
    cli("log")
    cli("log", "void", true, "--reason", "no", expect=ExitCode.FAILED)
    assert "what is true cannot be voided" in cli.err
    cli("log", "void", "7:7:-1", "--reason", "no", expect=ExitCode.NOT_FOUND)
    cli("log", "void", "seven", "--reason", "no", expect=ExitCode.USAGE)
    cli("log", "void", junk, expect=ExitCode.USAGE)  # why?


def test_the_log_is_archived_verified_and_replayed_without_a_broker(cli: Cli, bus: Bus, tmp_path: Path) -> None:
    """Twice the same changes nothing; the archive alone gives the state at any position; a damaged one is named."""
    world = busy_world()
    write(bus, *world.log)
    folder = tmp_path / "archive"
    files = cli.json("log", "archive", "--to", folder, "--entries", 10)
    assert isinstance(files, list)
    assert [(file["first"], file["last"]) for file in files] == [(0, 9), (10, 19), (20, world.state.position)]
    assert cli.json("log", "archive", "--to", folder) == []
    cli("log", "archive", "--to", folder, "--from", 3, expect=ExitCode.FAILED)
    cli("log", "archive", "--to", "nothing://here", expect=ExitCode.USAGE)

    cli("context", "set", "here", "--url", "pulsar://127.0.0.1:1")  # no broker from here on
    assert cli.json("log", "verify", folder) == {
        "files": 3,
        "first": 0,
        "last": world.state.position,
        "sha256": files[-1]["sha256"],
        "digest": state_digest(world.state),
    }
    replayed = cli.json("replay", "--archive", folder)
    assert isinstance(replayed, dict)
    assert replayed["digest"] == state_digest(world.state)
    earlier = cli.json("replay", "--archive", folder, "--at", 12)
    assert isinstance(earlier, dict)
    assert earlier["digest"] == state_digest(world.replayed(12))
    cli("replay", "--archive", folder, "--at", 999, expect=ExitCode.NOT_FOUND)
    cli("replay", "--archive", folder, "--at", "1:2:-1", expect=ExitCode.USAGE)
    cli("replay", "--archive", tmp_path / "none", expect=ExitCode.NOT_FOUND)
    Path(files[1]["path"]).write_bytes(b"Obj")
    cli("log", "verify", folder, expect=ExitCode.FAILED)
    assert files[1]["path"] in cli.err


def test_a_log_that_moved_is_rebased_once(cli: Cli, settings: BusSettings, bus: Bus) -> None:
    """A log from another cluster cannot be led; rebased it can, and there is nothing more to rebase."""
    elected = LeaderElected(1, "old", "local", "elsewhere", "0")
    write(bus, Entry("e0", 0, 1, 0, 0, FOLD_VERSION, Input("leader"), facts=(elected,)))
    assert cli.json("log", "rebase") == {
        "position": 1,
        "broker": bus.cluster_id(),
        "previous": "elsewhere",
        "handled": {},
    }
    cli("log", "rebase", expect=ExitCode.FAILED)
    assert "nothing to rebase" in cli.err
    with leading(lambda: connect(settings)) as led:
        assert led.state.broker == bus.cluster_id()


def test_what_was_not_done_is_not_said_to_be(cli: Cli, tmp_path: Path) -> None:
    """No archive is no good archive, a failed one has not all of the log, and who has no policies was not compared."""
    nowhere = str(tmp_path / "nowhere")
    for command in (("log", "verify", nowhere), ("replay", "--archive", nowhere)):
        cli(*command, expect=ExitCode.NOT_FOUND)
        assert f"there is no archive in {nowhere}" in cli.err
    cli("log", "archive", "--to", "nix://nowhere", expect=ExitCode.USAGE)
    assert "has all" not in cli.err
    cli("topics", "check")
    assert "nothing was compared" in cli.err
