"""`magnetar up` as a process: what it starts works, is kept running, and never outlives it."""

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.leading import eventually
from tests.support.processes import Command, running

UP = ("up", "--agents", "0", "--data", "data")


def serving(command: Command) -> bool:
    assert command.process.poll() is None, command.log.read_text()
    return "Ctrl-C" in command.log.read_text()


def scheduler(command: Command) -> psutil.Process | None:
    found = [each for each in command.left() if each.cmdline()[-1] == "scheduler"]
    return found[0] if found else None


def broker(command: Command) -> psutil.Process:
    (found,) = [each for each in command.left() if "pulsar-lite" in each.cmdline()[0]]
    return found


def leader(command: Command) -> str:
    done = command.also("replay", "-o", "json")
    return json.loads(done.stdout)["state"]["leader"] if done.returncode == 0 else ""


def test_up_serves_restarts_what_dies_and_leaves_nothing(tmp_path: Path) -> None:
    """Commands reach it without a flag; what is killed, scheduler or broker, is back; Ctrl-C ends it all, exit 0.

    A second one on the same folder goes on with the same log, from a snapshot.
    """
    with running(tmp_path, *UP) as up:
        eventually(lambda: serving(up), within=90)
        listed = up.also("model", "list", "-o", "json")
        assert listed.stdout.strip() == "[]", listed.stderr
        first = scheduler(up)
        assert first is not None
        leads = leader(up)
        first.kill()
        eventually(lambda: leader(up) not in ("", leads), within=60)
        broker(up).kill()
        # Only a leader that reads its inputs and appends says no.
        eventually(lambda: up.also("model", "unload", "nobody").returncode == 3, within=60)
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0, up.log.read_text()
        assert not up.left()
        assert "Traceback" not in up.log.read_text()
        assert not json.loads(up.also("context", "list", "-o", "json").stdout)[1]["inUse"]
        up.log.unlink()
    with running(tmp_path, *UP) as up:
        eventually(lambda: serving(up), within=90)
        assert json.loads(up.also("replay", "-o", "json").stdout)["state"]["term"] >= 3
        findings = json.loads(up.also("doctor", "--listen", "0", "-o", "json").stdout)
        (start,) = [finding["detail"] for finding in findings if finding["check"] == "start"]
        assert "after the snapshot of position" in start


@pytest.mark.skipif("sys.platform != 'linux'", reason="only Linux kills children with their parent")
def test_a_killed_up_takes_everything_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9: the services die by the kernel's hand, the broker by its watchdog's.

    That the environment names another context does not mislead them.
    """
    monkeypatch.setenv("MAGNETAR_CONTEXT", "another")
    with running(tmp_path, *UP) as up:
        eventually(lambda: serving(up), within=90)
        assert len(up.left()) > 4
        up.process.kill()
        eventually(lambda: not up.left(), within=30)


def test_up_that_cannot_start_names_the_part_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says which service did not become ready, why, and where its log is."""
    monkeypatch.setenv("MAGNETAR_SCHEDULER_LOG_LEVEL", "NONSENSE")
    with running(tmp_path, *UP) as up:
        assert up.process.wait(90) == 1
        said = up.log.read_text()
        assert "error: scheduler did not become ready: " in said
        assert "NONSENSE" in said
        assert "scheduler.log" in said
        assert "Traceback" not in said
        assert not up.left()
