"""A real Pulsar in a container, through testcontainers."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.resources import files
from typing import Any

import tenacity

from magnetar_common.brokers.broker import PULSAR_VERSION, BrokerError, BrokerUnavailable, RunningBroker
from magnetar_common.brokers.jvm import answers_admin
from magnetar_common.brokers.ports import free_ports

IMAGE = f"apachepulsar/pulsar:{PULSAR_VERSION}"

SETTINGS = (
    "allowAutoTopicCreation",
    "brokerDeleteInactiveTopicsEnabled",
    "journalMaxGroupWaitMSec",
    "keepAliveIntervalSeconds",
    "managedLedgerNewEntriesCheckDelayInMillis",
    "systemTopicEnabled",
    "topicLevelPoliciesEnabled",
)
"""What Magnetar needs of a broker, and what its latency depends on; the values are in ``standalone.conf``."""

COMMAND = "bin/apply-config-from-env.py conf/standalone.conf && exec bin/pulsar standalone -nfw -nss"

_PING_SECONDS = 3
_READY_SECONDS = 90.0


def environment() -> dict[str, str]:
    """`SETTINGS` as the variables that the image's own script writes into its configuration."""
    lines = files("magnetar_common.brokers").joinpath("standalone.conf").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {f"PULSAR_PREFIX_{name}": values[name] for name in SETTINGS}


def unavailable() -> str | None:
    """Why this machine cannot run a container, or None when an engine answers (within 3 s)."""
    if not importlib.util.find_spec("testcontainers"):
        return "testcontainers is not installed"
    docker = importlib.import_module("docker")
    try:
        client = docker.from_env(timeout=_PING_SECONDS)
    except docker.errors.DockerException:
        return "no Docker engine answers"
    try:
        client.ping()
    except (docker.errors.DockerException, OSError):
        return "the Docker engine does not answer"
    finally:
        client.close()
    return None


class DockerBroker(RunningBroker):
    """One container; its data live and die with it. `restart` keeps both data and ports."""

    kind = "docker"

    def __init__(self) -> None:
        """Start the container and wait until its admin interface answers.

        Raises:
            BrokerUnavailable: No engine, or the image cannot be had.
            BrokerError: The broker was not ready in time.
        """
        if reason := unavailable():
            raise BrokerUnavailable(reason)
        port, admin_port = free_ports(2)
        self.service_url = f"pulsar://127.0.0.1:{port}"
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        # A standalone broker sends clients back to the address they came by, so the mapped ports are enough.
        container: Any = importlib.import_module("testcontainers.core.container").DockerContainer(IMAGE)
        container.with_bind_ports(6650, port).with_bind_ports(8080, admin_port)
        container.with_command(["bash", "-c", COMMAND])
        for name, value in environment().items():
            container.with_env(name, value)
        docker: Any = importlib.import_module("docker")
        try:
            container.start()
        except docker.errors.DockerException as failure:
            container.stop()
            raise BrokerUnavailable(f"Docker could not run {IMAGE}: {failure}") from failure
        self._container: Any = container
        self._await_ready()

    @property
    def pid(self) -> int | None:
        """None: the process belongs to the engine."""
        return None

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()

    def kill(self) -> None:
        """Send SIGKILL to the broker; the container stays for `restart`."""
        self._container.get_wrapped_container().kill()

    def restart(self) -> None:
        """Restart the container.

        Raises:
            BrokerError: The broker was not ready in time.
        """
        self._container.get_wrapped_container().restart()
        self._await_ready()

    def _await_ready(self) -> None:
        ready = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda answered: not answered),
            wait=tenacity.wait_fixed(0.2),
            stop=tenacity.stop_after_delay(_READY_SECONDS),
        )
        try:
            ready(answers_admin, self.admin_url)
        except tenacity.RetryError:
            self.stop()
            raise BrokerError(f"Pulsar in Docker was not ready after {_READY_SECONDS:g} s") from None
