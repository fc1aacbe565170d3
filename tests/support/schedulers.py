"""Schedulers as processes of their own, to be killed, stopped and cut off; and what the log says of them all."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from magnetar_common.admin import Admin
from magnetar_common.bus import Bus
from magnetar_common.log import LogRecord, replay
from magnetar_common.settings import BusSettings
from magnetar_common.topics import STATE_CHANGES, commands_topic, under
from magnetar_events import COMMAND
from magnetar_events.codec import FINGERPRINT
from magnetar_events.facts import LeaderElected
from tests.support.leading import eventually
from tests.support.requests import deploy, servers_routed


class Scheduler:
    """One `magnetar scheduler`."""

    def __init__(self, folder: Path, name: str, settings: BusSettings) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        bus = {f"MAGNETAR_PULSAR_{field.upper()}": str(value) for field, value in settings.model_dump().items()}
        own = {"MAGNETAR_SCHEDULER_IDENTITY": name, "MAGNETAR_SCHEDULER_PORT": "0", "MAGNETAR_CONTEXT": ""}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "magnetar_cli", "scheduler"],
                env={**os.environ, **bus, **own},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def lines(self) -> list[dict[str, Any]]:
        """What it logged."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    @property
    def leads(self) -> bool:
        """Whether it has taken up the leadership at any time, and lives."""
        return self.process.poll() is None and bool(self.said("leading"))

    @property
    def stands_by(self) -> bool:
        return self.process.poll() is None and bool(self.said("another scheduler leads; standing by"))

    def get(self, path: str) -> httpx.Response:
        """Ask its HTTP endpoint."""
        return httpx.get(self.said("listening")[0]["url"] + path, timeout=10)

    def checks(self) -> dict[str, Any]:
        return self.get("/readyz").json()["checks"]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self, within: float = 40.0) -> int:
        """Wait for its end."""
        return self.process.wait(within)


class Schedulers:
    """Those of one Magnetar."""

    def __init__(self, folder: Path, settings: BusSettings) -> None:
        self._folder = folder
        self._settings = settings
        self.all: list[Scheduler] = []

    def start(self, name: str, **changed: object) -> Scheduler:
        """Start one, with other settings if asked to."""
        self.all.append(Scheduler(self._folder, name, self._settings.model_copy(update=changed)))
        return self.all[-1]

    def leader(self, *, other_than: Scheduler | None = None, within: float = 60.0) -> Scheduler:
        """Wait until one leads that did not before, and return it."""

        def found() -> Scheduler | None:
            return next((each for each in self.all if each is not other_than and each.leads), None)

        return eventually(found, within=within, what=f"a leader: {self.tails()}")

    def tails(self) -> str:
        return "\n".join(f"{each.name}: {each.log.read_text(errors='replace')[-600:]}" for each in self.all)


@contextmanager
def schedulers(folder: Path, settings: BusSettings) -> Iterator[Schedulers]:
    """Schedulers that end with the test."""
    made = Schedulers(folder, settings)
    try:
        yield made
    finally:
        for each in made.all:
            each.process.kill()
        for each in made.all:
            each.process.wait()


def proven_log(bus: Bus) -> list[LogRecord]:
    """The whole log, which has no hole and no fork, and in which every term has one writer and terms only rise."""
    records: list[LogRecord] = []
    state = replay(bus, on_record=records.append)
    assert state.illegal == 0
    terms = [record.entry.term for record in records]
    assert terms == sorted(terms), terms
    elected = [fact for record in records for fact in record.entry.facts if isinstance(fact, LeaderElected)]
    assert [fact.term for fact in elected] == list(range(1, len(elected) + 1))
    return records


def serves(bus: Bus, name: str, **fields: object) -> None:
    """A new model becomes Available: somebody leads, decides, commands, and hears the answer."""
    deploy(bus, name, **fields)
    eventually(lambda: servers_routed(bus, f"default/{name}"), within=60, what=name)


def terms_commanded(bus: Bus, server: str) -> list[int]:
    reader = bus.reader(commands_topic(server, 0))
    terms: list[int] = []
    while not reader.at_end():
        message = reader.read(5)
        assert message is not None
        terms.append(COMMAND.decode(message.payload, message.properties.get(FINGERPRINT, "")).term)
    reader.close()
    return terms


def publishers(settings: BusSettings) -> int:
    with Admin(settings) as admin:
        return len(admin.stats(under(settings.tenant, STATE_CHANGES.name))["publishers"])
