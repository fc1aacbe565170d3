"""Two Pulsar brokers on one ZooKeeper and one bookie: for what happens when the one that owns a topic dies.

Measured on two cores: 11 s to start, 800 MB. After `kill -9` of the owner a blocked send goes on at the other in about
13 s (the metadata session must end first), after SIGTERM in 0.8 s.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from pathlib import Path
from typing import Self

from magnetar_common.brokers import jvm
from magnetar_common.brokers.broker import BrokerError
from magnetar_common.brokers.ports import free_ports
from magnetar_common.brokers.process import BrokerProcess

_READY_SECONDS = 120.0
_SESSION_MS = 4_000
_NAME = "two"


class Cluster:
    """A running cluster. As a context manager it is stopped on leaving.

    Attributes:
        brokers: both; each may be killed and restarted.
        service_url: of both, for clients.
        admin_url: of both, separated by a comma.
    """

    def __init__(self, data: Path) -> None:
        """Start everything, and return once both brokers serve.

        Args:
            data: folder for the data of all; a cluster is never started on the data of an earlier one.

        Raises:
            BrokerUnavailable: this machine cannot run Pulsar.
            BrokerError: a part of it did not start.
        """
        self._java, self._lib = jvm.prepare()
        self._data = data.resolve()
        zookeeper, bookie, *ports = free_ports(6)
        self._metadata = f"zk:127.0.0.1:{zookeeper}"
        pairs = ((ports[0], ports[1]), (ports[2], ports[3]))
        self.service_url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port, _ in pairs)
        self.admin_url = ",".join(f"http://127.0.0.1:{port}" for _, port in pairs)
        self.brokers: list[BrokerProcess] = []
        self._storage = self._start_storage(zookeeper, bookie)
        try:
            self._create(*pairs[0])
            for number, (port, admin_port) in enumerate(pairs):
                self.brokers.append(self._start_broker(number, port, admin_port))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything."""
        for process in (*self.brokers, self._storage):
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _start_storage(self, zookeeper: int, bookie: int) -> BrokerProcess:
        folder = jvm.configured(self._data / "storage", 0, 0)
        return BrokerProcess(
            "jvm",
            folder,
            jvm.command(
                self._java,
                self._lib,
                folder,
                *("org.apache.pulsar.PulsarStandaloneStarter", "--config", "standalone.conf", "-nfw", "-nss"),
                *("--no-broker", "--zookeeper-port", str(zookeeper), "--zookeeper-dir", "zookeeper"),
                *("--bookkeeper-dir", "ledgers", "--bookkeeper-port", str(bookie)),
            ),
            service_url="",
            admin_url=None,
            ready=lambda: _listens(zookeeper) and _listens(bookie),
            ready_seconds=_READY_SECONDS,
            environment={"PULSAR_STANDALONE_USE_ZOOKEEPER": "1"},
        )

    def _create(self, port: int, admin_port: int) -> None:
        """Write down that the cluster exists."""
        folder = jvm.configured(self._data / "setup", 0, 0)
        program = jvm.command(
            self._java,
            self._lib,
            folder,
            *("org.apache.pulsar.PulsarClusterMetadataSetup", "--cluster", _NAME),
            *("--metadata-store", self._metadata, "--configuration-metadata-store", self._metadata),
            *(
                "--web-service-url",
                f"http://127.0.0.1:{admin_port}",
                "--broker-service-url",
                f"pulsar://127.0.0.1:{port}",
            ),
        )
        done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=_READY_SECONDS, check=False)
        if done.returncode:
            raise BrokerError(f"the cluster's metadata could not be written: {done.stdout[-500:]}{done.stderr[-500:]}")

    def _start_broker(self, number: int, port: int, admin_port: int) -> BrokerProcess:
        settings = {
            "clusterName": _NAME,
            "isRunningStandalone": "false",
            "metadataStoreUrl": self._metadata,
            "configurationMetadataStoreUrl": self._metadata,
            "metadataStoreSessionTimeoutMillis": str(_SESSION_MS),
            "loadBalancerEnabled": "true",
        }
        folder = jvm.configured(self._data / f"broker-{number}", port, admin_port, settings)
        admin_url = f"http://127.0.0.1:{admin_port}"
        return BrokerProcess(
            "jvm",
            folder,
            jvm.command(
                self._java,
                self._lib,
                folder,
                "org.apache.pulsar.PulsarBrokerStarter",
                "--broker-conf",
                "standalone.conf",
            ),
            service_url=f"pulsar://127.0.0.1:{port}",
            admin_url=admin_url,
            ready=lambda: jvm.answers_admin(admin_url, path="clusters"),
            ready_seconds=_READY_SECONDS,
        )


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
