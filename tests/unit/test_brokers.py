"""What names a version of Pulsar agrees, and jars that are not the locked ones are never used."""

import hashlib
import threading
from pathlib import Path

import pytest
import yaml

from magnetar_common.brokers import PULSAR_VERSION, BrokerError, docker, jars
from magnetar_common.brokers.ports import free_ports
from magnetar_common.brokers.select import real_pulsar

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.pulsar.yml").read_text())


def test_the_lock_the_container_image_and_the_compose_file_name_one_version() -> None:
    of_pulsar = {jar.version for jar in jars.locked_jars() if jar.group == "org.apache.pulsar"}
    assert of_pulsar == {PULSAR_VERSION}
    assert docker.IMAGE.partition(":") == ("apachepulsar/pulsar", ":", PULSAR_VERSION)
    assert COMPOSE["services"]["pulsar"]["image"] == docker.IMAGE


def test_the_compose_file_sets_what_our_own_brokers_set() -> None:
    assert COMPOSE["services"]["pulsar"]["environment"] == docker.environment()
    assert COMPOSE["services"]["pulsar"]["command"][-1] == docker.COMMAND


def test_the_lock_is_sorted_and_holds_the_broker() -> None:
    coordinates = [jar.coordinate for jar in jars.locked_jars()]
    assert coordinates == sorted(coordinates)
    assert f"org.apache.pulsar:pulsar-broker:{PULSAR_VERSION}" in coordinates


def test_a_line_of_the_lock_may_carry_a_classifier() -> None:
    (jar,) = jars.parse_lock(f"# comment\n\ng.h:a:1.0:linux-x86_64 {'0' * 64}\n")
    assert (jar.coordinate, jar.filename) == ("g.h:a:1.0:linux-x86_64", "a-1.0-linux-x86_64.jar")


@pytest.mark.parametrize("line", ["g:a:1", f"g:a {'0' * 64}", f"g:a::c {'0' * 64}", "g:a:1 abc"])
def test_a_malformed_line_of_the_lock_is_refused_by_number(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 of the jar lock"):
        jars.parse_lock(f"# head\n{line}\n")


def test_two_jars_with_one_file_name_are_refused() -> None:
    with pytest.raises(ValueError, match="share a file name"):
        jars.parse_lock(f"g:a:1 {'0' * 64}\nh:a:1 {'0' * 64}\n")


def _jar(content: bytes, artifact: str = "a") -> jars.Jar:
    return jars.Jar("g", artifact, "1", "", hashlib.sha256(content).hexdigest())


def test_every_jar_that_is_missing_different_or_unexpected_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-1.jar").write_bytes(b"tampered")
    (tmp_path / "stranger-1.jar").write_bytes(b"")
    with pytest.raises(BrokerError, match=r"g:b:1 is missing.*stranger-1\.jar is not.*g:a:1 has sha256"):
        jars.verify([_jar(b"good"), _jar(b"", "b")], tmp_path)


def test_jars_with_a_wrong_checksum_never_get_their_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tampered(locked: tuple[jars.Jar, ...], target: Path) -> None:
        for jar in locked:
            (target / jar.filename).write_bytes(b"tampered")

    monkeypatch.setattr(jars, "locked_jars", lambda: (_jar(b"good"),))
    monkeypatch.setattr(jars, "_fetch", tampered)
    with pytest.raises(BrokerError, match="do not match"):
        jars.ensure_jars(tmp_path)
    assert list(tmp_path.rglob("*.jar")) == []


def test_callers_at_the_same_time_fetch_the_jars_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches: list[Path] = []
    all_called = threading.Barrier(4)

    def fetch(locked: tuple[jars.Jar, ...], target: Path) -> None:
        fetches.append(target)
        for jar in locked:
            (target / jar.filename).write_bytes(b"good")

    def call() -> None:
        all_called.wait(10)
        jars.ensure_jars(tmp_path)

    monkeypatch.setattr(jars, "locked_jars", lambda: (_jar(b"good"),))
    monkeypatch.setattr(jars, "_fetch", fetch)
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(fetches) == 1
    assert [path.name for path in jars.jars_folder(tmp_path).iterdir()] == ["a-1.jar"]


def test_free_ports_differ_and_are_not_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < 32_768


def test_a_broker_named_by_the_environment_is_used_and_never_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_PULSAR_URL", "pulsar://broker:6650")
    monkeypatch.setenv("MAGNETAR_PULSAR_ADMIN_URL", "http://broker:8080")
    with real_pulsar(tmp_path) as broker:
        assert (broker.service_url, broker.admin_url) == ("pulsar://broker:6650", "http://broker:8080")
        with pytest.raises(BrokerError, match="not ours to kill"):
            broker.kill()
        with pytest.raises(BrokerError, match="not ours to restart"):
            broker.restart()
