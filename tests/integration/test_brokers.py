"""Brokers as processes: what was acknowledged survives their death, and a data folder has one broker."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar_common.brokers import PULSAR_VERSION, BrokerError, RunningBroker, embedded
from magnetar_common.brokers.handshake import answers_pulsar
from magnetar_common.brokers.ports import free_ports
from magnetar_common.brokers.process import BrokerProcess
from tests.support.leading import eventually

TOPIC = "persistent://public/default/survives"


def _publish(broker: RunningBroker, payloads: list[bytes]) -> None:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC)
    for payload in payloads:
        producer.send(payload)
    client.close()


def _read(broker: RunningBroker, count: int) -> list[bytes]:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    payloads = [reader.read_next(10_000).data() for _ in range(count)]
    client.close()
    return payloads


def _survives_a_crash(broker: RunningBroker) -> None:
    address, first = broker.service_url, broker.pid
    _publish(broker, [b"one", b"two"])
    broker.kill()
    assert broker.pid is None
    broker.restart()
    assert broker.service_url == address
    if first is not None:  # in Docker the process is the engine's
        assert broker.pid not in (None, first)
    _publish(broker, [b"three"])
    assert _read(broker, 3) == [b"one", b"two", b"three"]


def test_what_was_acknowledged_survives_kill_9_of_the_embedded_broker(own_embedded_broker: RunningBroker) -> None:
    _survives_a_crash(own_embedded_broker)


def test_what_was_acknowledged_survives_kill_9_of_a_real_pulsar(own_pulsar_broker: RunningBroker) -> None:
    _survives_a_crash(own_pulsar_broker)


def test_the_shared_real_pulsar_is_the_version_that_we_lock(pulsar_broker: RunningBroker) -> None:
    answer = httpx.get(f"{pulsar_broker.admin_url}/admin/v2/brokers/version").raise_for_status()
    assert answer.text == PULSAR_VERSION


def test_a_second_broker_on_one_data_folder_is_refused_by_name(own_embedded_broker: BrokerProcess) -> None:
    with pytest.raises(BrokerError, match=rf"already runs on .* \(pid {own_embedded_broker.pid}\)"):
        embedded.start(own_embedded_broker.data)
    own_embedded_broker.stop()
    with embedded.start(own_embedded_broker.data) as second:
        assert second.pid is not None


def test_a_broker_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"(?s)ended with code 3.*no such luck") as failure:
        _start(tmp_path, "echo no such luck >&2; exit 3")
    assert str(tmp_path) in str(failure.value)


def test_a_broker_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"not ready after 0\.2 s"):
        _start(tmp_path, "exec tail -f /dev/null")
    with pytest.raises(BrokerError, match="ended with code 0"):  # and has let go of the folder
        _start(tmp_path, "exit 0")


def _start(data: Path, script: str) -> BrokerProcess:
    return BrokerProcess(
        "embedded",
        data,
        ["/bin/sh", "-c", script],
        service_url="pulsar://nowhere",
        admin_url=None,
        ready=lambda: False,
        ready_seconds=0.2,
    )


def test_an_open_port_that_is_no_broker_does_not_count_as_one() -> None:
    (port,) = free_ports(1)
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: _answers_http(port), what="the web server answers")
        assert not answers_pulsar("127.0.0.1", port)
    finally:
        server.kill()
        server.wait()


def _answers_http(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").is_success
    except httpx.TransportError:
        return False


def test_no_broker_outlives_a_starter_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from magnetar_common.brokers import embedded; "
        "broker = embedded.start(pathlib.Path(sys.argv[1])); print(broker.pid, flush=True); sys.stdin.read()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    broker = int(starter.stdout.readline())
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    eventually(lambda: not _alive(broker), what="the broker ends with the process that started it")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that nobody has waited for is dead all the same (a container's first process may not reap).
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
