"""Tests that need something big: whether this machine has it, and what the run says of it in its last lines.

A test asks by marker (`pulsar`, `mlserver`, `triton`, `history`) or by using a fixture that stands for one. What is absent is
found out once, before the first test that needs it. Tests whose need is absent are skipped, and the last lines count
them; `MAGNETAR_REQUIRE=pulsar,mlserver,triton` makes them fail instead.

A run on several workers (`pytest -n 2`) has a `Needs` in each of them, with a broker of its own; the reports of their
tests come together in the `ClosingLines` of the process that started them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from magnetar_agent import environments
from magnetar_common.brokers import BrokerError, BrokerUnavailable, RunningBroker
from magnetar_common.brokers.select import real_pulsar

RELEASED = {1: "d1451f4", 2: "4334248"}
"""Fold version → the last commit of the software that was released as it."""

ROOT = Path(__file__).parent.parent

NEEDED_BY_FIXTURE = {"pulsar_broker": "pulsar", "own_pulsar_broker": "pulsar"}


@dataclass
class Need:
    """One thing that tests may need.

    Attributes:
        marker: The marker on those tests.
        title: Its name in the last lines.
        absent: Why it is not there; None when it is.
        required: Its absence is a failure.
        settled: Whether `absent` is known yet.
    """

    marker: str
    title: str
    absent: str | None = None
    required: bool = False
    settled: bool = False


class Needs:
    """The needs of the tests that run in this process, and the broker that they share."""

    def __init__(self, required: set[str]) -> None:
        # The real Pulsar comes last: its line is the run's last.
        self.all = [
            Need("history", "history"),
            Need("mlserver", "MLServer"),
            Need("triton", "Triton"),
            Need("pulsar", "real Pulsar"),
        ]
        if unknown := required - {need.marker for need in self.all}:
            raise pytest.UsageError(f"MAGNETAR_REQUIRE names what no test needs: {', '.join(sorted(unknown))}")
        for need in self.all:
            need.required = need.marker in required
        self.pulsar: RunningBroker | None = None
        self._data: Path | None = None

    def __getitem__(self, marker: str) -> Need:
        return next(need for need in self.all if need.marker == marker)

    def of(self, item: pytest.Item) -> list[Need]:
        """What this test needs."""
        return [need for need in self.all if item.get_closest_marker(need.marker)]

    def settle(self, need: Need) -> None:
        """Find out, once, whether the machine has it. What is there but does not work is a failure, never an absence."""
        if need.settled:
            return
        need.settled = True
        try:
            need.absent = PROBES[need.marker](self)
        except BrokerError as failure:
            need.absent, need.required = str(failure), True

    def start_pulsar(self) -> str | None:
        """Start (or find) the real Pulsar that this process's tests share; return why there is none."""
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


def _history(_needs: Needs) -> str | None:
    oldest = RELEASED[min(RELEASED)]
    asked = subprocess.run(
        ["git", "cat-file", "-e", f"{oldest}^{{commit}}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    said = " ".join(asked.stderr.split())
    return f"the clone does not reach back to {oldest}: {said}: git fetch --unshallow" if asked.returncode else None


PROBES: dict[str, Callable[[Needs], str | None]] = {
    "history": _history,
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


@dataclass
class Outcome:
    """How the tests with one need fared: their node ids, and why some did not run."""

    title: str
    passed: set[str] = field(default_factory=set[str])
    failed: set[str] = field(default_factory=set[str])
    not_run: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, report: pytest.TestReport, absent: str | None) -> None:
        """Count one phase of one test, whose need is absent for this reason."""
        if absent is not None or report.skipped:
            if report.when != "teardown":
                said = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
                self.not_run[report.nodeid] = absent or said.removeprefix("Skipped: ")
        elif report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def line(self) -> str | None:
        """The line for the end of the run, or None when no test had this need."""
        reason = " ".join("; ".join(sorted(set(self.not_run.values()))).split())
        passed = len(self.passed - self.failed)
        if self.not_run and not passed and not self.failed:
            return f"{self.title}: NOT RUN, {len(self.not_run)} tests ({reason})"
        parts = [f"{passed} passed"] if passed or self.failed else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"{len(self.not_run)} not run ({reason})"] if self.not_run else []
        return f"{self.title}: {', '.join(parts)}" if parts else None


class ClosingLines:
    """Counts the tests of every need, wherever they run, and says in the last lines how they fared."""

    def __init__(self, needs: Iterable[Need]) -> None:
        self._outcomes = {need.marker: Outcome(need.title) for need in needs}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for marker, (title, absent) in getattr(report, "needs", {}).items():
            outcome = self._outcomes[marker]
            if absent is None:
                outcome.title = title  # what is there may have said its version
            outcome.add(report, absent)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: its end comes after pytest's own summary line
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        yield
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        for line in filter(None, (outcome.line() for outcome in self._outcomes.values())):
            if terminal is not None:
                terminal.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    required = os.environ.get("MAGNETAR_REQUIRE", "").replace(",", " ").split()
    config.stash[NEEDS] = Needs(set(required))
    if not hasattr(config, "workerinput"):  # the process that started this worker has the reports of all
        config.pluginmanager.register(ClosingLines(config.stash[NEEDS].all))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if marker := NEEDED_BY_FIXTURE.get(fixture):
                item.add_marker(marker)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the test's time-out: fetching what is missing may take longer
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    needs = item.config.stash[NEEDS]
    for need in needs.of(item):
        needs.settle(need)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in item.config.stash[NEEDS].of(item):
        if need.absent is not None:
            absent(item.config, need.marker, f"{need.title}: {need.absent}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needs = item.config.stash[NEEDS].of(item)
    report.needs = {need.marker: (need.title, need.absent) for need in needs}  # a worker's report travels with it
    return report


@pytest.hookimpl(tryfirst=True)  # before a worker says that it has finished: after that it may be killed
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[NEEDS].close()
