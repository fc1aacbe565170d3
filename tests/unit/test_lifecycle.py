"""A process's life: it ends in order, once, and says why."""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from magnetar_common.lifecycle import Lifecycle

DEADLINE = 20.0


def test_shutdown_steps_run_newest_first_and_once() -> None:
    ran: list[str] = []
    with Lifecycle() as life:
        life.on_stop("bus", lambda: ran.append("bus"))
        life.on_stop("registrar", lambda: ran.append("registrar"))
        life.stop()
    life.shutdown()
    assert ran == ["registrar", "bus"]
    assert life.exit_code == 0


def test_a_step_that_raises_is_recorded_and_stops_no_other() -> None:
    ran: list[str] = []

    def bad() -> None:
        raise RuntimeError("would not close")

    with Lifecycle() as life:
        life.on_stop("bus", lambda: ran.append("bus"))
        life.on_stop("bad", bad)
    assert ran == ["bus"]
    assert str(life.error) == "would not close"
    assert life.exit_code == 1


def test_a_failure_anywhere_ends_the_process_with_the_first_reason() -> None:
    with Lifecycle() as life:
        threading.Thread(target=lambda: (life.fail(OSError("first")), life.fail(OSError("second")))).start()
        assert life.wait(DEADLINE)
    assert life.reason == "OSError: first"
    assert life.exit_code == 1


def test_an_exception_in_the_body_still_runs_the_steps_and_goes_on() -> None:
    ran: list[str] = []
    life = Lifecycle()
    life.on_stop("bus", lambda: ran.append("bus"))
    with pytest.raises(ZeroDivisionError), life:
        raise ZeroDivisionError
    assert ran == ["bus"]
    assert life.exit_code == 1


def test_the_previous_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Lifecycle():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


PROCESS = """
import sys, threading
from magnetar_common.lifecycle import Lifecycle

def say(what):
    print(what, file=sys.stderr, flush=True)

with Lifecycle() as life:
    life.on_stop("bye", lambda: say(life.reason))
    if sys.argv[1] == "prepares":
        life.on_terminate(lambda: say("preparing"))
    if sys.argv[1] == "stuck":
        life.on_stop("stuck", lambda: (say("stuck"), threading.Event().wait()))
    say("ready")
    life.wait()
"""


@contextlib.contextmanager
def started(kind: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROCESS, kind]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert said(process) == "ready"
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().rstrip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_in_order(number: signal.Signals) -> None:
    with started("plain") as process:
        process.send_signal(number)
        assert said(process) == number.name
        assert process.wait(DEADLINE) == 0


def test_a_second_signal_ends_a_process_that_hangs_in_its_shutdown() -> None:
    with started("stuck") as process:
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stuck"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == -signal.SIGTERM


def test_a_service_that_prepares_its_end_is_asked_first_and_told_next() -> None:
    """One SIGTERM: prepare; another: end in order."""
    with started("prepares") as process:
        process.send_signal(signal.SIGTERM)
        assert said(process) == "preparing"
        process.send_signal(signal.SIGTERM)
        assert said(process) == "SIGTERM"
        assert process.wait(DEADLINE) == 0


def test_ctrl_c_prepares_nothing() -> None:
    with started("prepares") as process:
        process.send_signal(signal.SIGINT)
        assert said(process) == "SIGINT"
        assert process.wait(DEADLINE) == 0


def test_a_preparation_that_fails_ends_the_process() -> None:
    with Lifecycle() as life:
        life.on_terminate(lambda: 1 / 0)
        signal.raise_signal(signal.SIGTERM)
        assert life.wait(DEADLINE)
    assert (life.exit_code, life.reason) == (1, "ZeroDivisionError: division by zero")
