"""The exact jars of a standalone Pulsar, fetched once into a cache and checked against a committed lock."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import escape

from magnetar_common.brokers.broker import PULSAR_VERSION, BrokerError, BrokerUnavailable

LOCK = f"pulsar-{PULSAR_VERSION}.lock"

_FETCH_SECONDS = 900.0  # 243 MB; about 20 s on a fast line

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>pulsar-jars</artifactId><version>1</version><packaging>pom</packaging>
  <build><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId><version>3.6.1</version>
    <configuration><artifactItems>
{items}
    </artifactItems></configuration>
  </plugin></plugins></build>
</project>
"""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock: ``group:artifact:version[:classifier] sha256``."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def filename(self) -> str:
        """The name that Maven gives it."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"

    @property
    def coordinate(self) -> str:
        """``group:artifact:version[:classifier]``."""
        return ":".join(filter(None, (self.group, self.artifact, self.version, self.classifier)))


def parse_lock(text: str) -> tuple[Jar, ...]:
    """Read a lock; empty lines and lines that start with ``#`` are skipped.

    Raises:
        ValueError: A line is not of the lock's form, or two jars would have the same file name.
    """
    jars: list[Jar] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        coordinate, _, sha256 = line.partition(" ")
        parts = coordinate.split(":")
        if len(parts) not in (3, 4) or not all(parts) or len(sha256) != 64:
            form = "group:artifact:version[:classifier] sha256"
            raise ValueError(f"line {number} of the jar lock is not '{form}': {line!r}")
        jars.append(Jar(parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else "", sha256))
    if len({jar.filename for jar in jars}) != len(jars):
        raise ValueError("two jars of the lock share a file name")
    return tuple(jars)


def locked_jars() -> tuple[Jar, ...]:
    """The jars of `PULSAR_VERSION`, in the order of the class path."""
    return parse_lock(files("magnetar_common.brokers").joinpath(LOCK).read_text())


def default_cache() -> Path:
    """``$MAGNETAR_CACHE``, else ``~/.cache/magnetar``: for what is large, shared and can be had again."""
    return Path(os.environ.get("MAGNETAR_CACHE") or "~/.cache/magnetar").expanduser()


def jars_folder(cache: Path) -> Path:
    """Where the locked jars are once complete. The name changes with the lock: an old set is never used."""
    digest = hashlib.sha256("".join(f"{jar.coordinate} {jar.sha256}\n" for jar in locked_jars()).encode()).hexdigest()
    return cache / f"pulsar-{PULSAR_VERSION}-{digest[:12]}" / "lib"


def cannot_fetch() -> str | None:
    """Why the jars cannot be fetched here, or None when there is a tool that can (the network is not asked)."""
    if shutil.which("mvn") or importlib.util.find_spec("jgo"):
        return None
    return "neither mvn nor the Python package jgo is installed to fetch Pulsar's jars"


def ensure_jars(cache: Path) -> Path:
    """Return the folder with exactly the locked jars, fetching them on first use.

    The folder appears under its name only when every checksum was right. Concurrent callers wait for the one that
    fetches.

    Raises:
        BrokerUnavailable: There is no tool to fetch with, or fetching failed (no network).
        BrokerError: A jar came with another checksum.
    """
    lib = jars_folder(cache)
    if lib.is_dir():
        return lib
    with exclusively(cache / f"pulsar-{PULSAR_VERSION}.fetch.lock"):
        if lib.is_dir():
            return lib
        jars = locked_jars()
        lib.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=lib.parent) as scratch:
            fetched = Path(scratch) / "lib"
            fetched.mkdir()
            _fetch(jars, fetched)
            verify(jars, fetched)
            fetched.rename(lib)
    return lib


def verify(jars: Sequence[Jar], folder: Path) -> None:
    """Check that `folder` holds these jars, each with its checksum, and nothing else.

    Raises:
        BrokerError: It names every jar that is missing, unexpected or different.
    """
    expected = {jar.filename: jar for jar in jars}
    there = {path.name: path for path in folder.iterdir()}
    wrong = [f"{jar.coordinate} is missing" for name, jar in expected.items() if name not in there]
    wrong += [f"{name} is not in the lock" for name in there if name not in expected]
    for name in sorted(expected.keys() & there.keys()):
        with there[name].open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected[name].sha256:
            wrong.append(f"{expected[name].coordinate} has sha256 {digest}, the lock says {expected[name].sha256}")
    if wrong:
        raise BrokerError(f"Pulsar's jars do not match {LOCK}: {'; '.join(wrong)}")


@contextlib.contextmanager
def exclusively(lock: Path) -> Generator[None, None, None]:
    """Hold a lock file; other processes and threads that want it wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(jars: Sequence[Jar], target: Path) -> None:
    if reason := cannot_fetch():
        raise BrokerUnavailable(reason)
    if shutil.which("mvn"):
        _fetch_with_maven(jars, target)
    else:
        _fetch_with_jgo(jars, target)


def _fetch_with_maven(jars: Sequence[Jar], target: Path) -> None:
    # `dependency:copy` takes the items as they are: no transitive resolution that could bring something else.
    pom = target.parent / "pom.xml"
    pom.write_text(_POM.format(items="\n".join(_item(jar) for jar in jars)))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy", f"-DoutputDirectory={target}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    except subprocess.CalledProcessError as failure:
        said = next((line for line in failure.stdout.splitlines() if "ERROR" in line), failure.stderr.strip())
        raise BrokerUnavailable(f"Maven could not fetch Pulsar's jars: {said}") from failure
    except subprocess.TimeoutExpired as failure:
        raise BrokerUnavailable(f"Maven did not fetch Pulsar's jars in {_FETCH_SECONDS:g} s") from failure


def _item(jar: Jar) -> str:
    fields = {"groupId": jar.group, "artifactId": jar.artifact, "version": jar.version, "classifier": jar.classifier}
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items() if value)
    return f"      <artifactItem>{inner}</artifactItem>"


def _fetch_with_jgo(jars: Sequence[Jar], target: Path) -> None:
    maven = importlib.import_module("jgo.maven").MavenContext(repo_cache=target.parent / "repository", timeout=60)

    def fetch(jar: Jar) -> None:
        component = maven.project(jar.group, jar.artifact).at_version(jar.version)
        Path(component.artifact(jar.classifier).resolve()).rename(target / jar.filename)

    with ThreadPoolExecutor(8) as pool:
        futures = {pool.submit(fetch, jar): jar for jar in jars}
        for future, jar in futures.items():
            if failure := future.exception():
                pool.shutdown(cancel_futures=True)
                raise BrokerUnavailable(f"jgo could not fetch {jar.coordinate}: {failure}") from failure
