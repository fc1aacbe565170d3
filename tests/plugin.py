"""Tests that need something big: whether this machine has it, and what the run says of it in its last lines.

A test asks by marker (`pulsar`, `mlserver`, `triton`) or by using a fixture that stands for one. What is absent is
found out once, before the first test, and only when a selected test needs it. Tests whose need is absent are skipped,
and the last lines count them; `MAGNETAR_REQUIRE=pulsar,mlserver,triton` makes them fail instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from magnetar_agent import environments
from magnetar_common.brokers import BrokerError, BrokerUnavailable, RunningBroker
from magnetar_common.brokers.select import real_pulsar

NEEDED_BY_FIXTURE = {"pulsar_broker": "pulsar", "own_pulsar_broker": "pulsar"}


@dataclass
class Need:
    """One thing that tests may need, and how the tests that need it fared.

    Attributes:
        marker: The marker on those tests.
        title: Its name in the last lines.
        absent: Why it is not there; None when it is.
        required: Its absence is a failure.
    """

    marker: str
    title: str
    absent: str | None = None
    required: bool = False
    passed: set[str] = field(default_factory=set[str])
    failed: set[str] = field(default_factory=set[str])
    not_run: dict[str, str] = field(default_factory=dict[str, str])

    def line(self) -> str | None:
        """The line for the end of the run, or None when no test had this need."""
        reason = " ".join((self.absent or "; ".join(sorted(set(self.not_run.values())))).split())
        passed = len(self.passed - self.failed)
        if self.not_run and not passed and not self.failed:
            return f"{self.title}: NOT RUN, {len(self.not_run)} tests ({reason})"
        parts = [f"{passed} passed"] if passed or self.failed else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"{len(self.not_run)} not run ({reason})"] if self.not_run else []
        return f"{self.title}: {', '.join(parts)}" if parts else None


class Needs:
    """The needs of one test session, and the broker that it shares."""

    def __init__(self, required: set[str]) -> None:
        # The real Pulsar comes last: its line is the run's last.
        self.all = [Need("mlserver", "MLServer"), Need("triton", "Triton"), Need("pulsar", "real Pulsar")]
        if unknown := required - {need.marker for need in self.all}:
            raise pytest.UsageError(f"MAGNETAR_REQUIRE names what no test needs: {', '.join(sorted(unknown))}")
        for need in self.all:
            need.required = need.marker in required
        self.pulsar: RunningBroker | None = None
        self._data: Path | None = None

    def __getitem__(self, marker: str) -> Need:
        return next(need for need in self.all if need.marker == marker)

    def settle(self, marker: str) -> None:
        """Find out whether the machine has it. What is there but does not work is a failure, never an absence."""
        need = self[marker]
        try:
            need.absent = PROBES[marker](self)
        except BrokerError as failure:
            need.absent, need.required = str(failure), True

    def start_pulsar(self) -> str | None:
        """Start (or find) the real Pulsar that the session shares; return why there is none."""
        self._data = Path(tempfile.mkdtemp(prefix="magnetar-pulsar-"))
        try:
            self.pulsar = real_pulsar(self._data)
        except BrokerUnavailable as reason:
            return str(reason)
        if self.pulsar.admin_url:
            version = httpx.get(f"{self.pulsar.admin_url}/admin/v2/brokers/version").raise_for_status().text
            self["pulsar"].title += f" {version.strip()}"
        return None

    def close(self) -> None:
        """Stop the shared broker and remove its data."""
        if self.pulsar is not None:
            self.pulsar.stop()
        if self._data is not None:
            shutil.rmtree(self._data)


def _server(kind: str) -> Callable[[Needs], str | None]:
    def ensure(_needs: Needs) -> str | None:
        try:
            environments.ensure(kind)
        except environments.EnvironmentUnavailable as reason:
            return str(reason)
        return None

    return ensure


PROBES: dict[str, Callable[[Needs], str | None]] = {
    "pulsar": Needs.start_pulsar,
    "mlserver": _server("mlserver"),
    "triton": _server("triton"),
}
"""For each marker: what finds out why it is absent (None: it is there)."""

NEEDS = pytest.StashKey[Needs]()


def absent(config: pytest.Config, marker: str, reason: str) -> None:
    """End the running test because what it needs is not there: skipped, or failed when it is required."""
    if config.stash[NEEDS][marker].required:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_configure(config: pytest.Config) -> None:
    required = os.environ.get("MAGNETAR_REQUIRE", "").replace(",", " ").split()
    config.stash[NEEDS] = Needs(set(required))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if marker := NEEDED_BY_FIXTURE.get(fixture):
                item.add_marker(marker)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    # Not in the first test's set-up: fetching what is missing may take longer than a test is allowed.
    if session.config.option.collectonly:
        return
    needs = session.config.stash[NEEDS]
    for need in needs.all:
        if any(item.get_closest_marker(need.marker) for item in session.items):
            needs.settle(need.marker)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in item.config.stash[NEEDS].all:
        if need.absent is not None and item.get_closest_marker(need.marker):
            absent(item.config, need.marker, f"{need.title}: {need.absent}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    for need in item.config.stash[NEEDS].all:
        if not item.get_closest_marker(need.marker):
            continue
        if need.absent is not None or report.skipped:
            if report.when != "teardown":
                said = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
                need.not_run[item.nodeid] = said.removeprefix("Skipped: ")
        elif report.failed:
            need.failed.add(item.nodeid)
        elif report.when == "call":
            need.passed.add(item.nodeid)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: its end comes after pytest's own summary line
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    yield
    needs = session.config.stash[NEEDS]
    needs.close()
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    for line in filter(None, (need.line() for need in needs.all)):
        if terminal is not None:
            terminal.write_line(line)
