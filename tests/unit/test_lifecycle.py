"""A process's life: it ends in order, once, and says why."""

import signal
import subprocess
import sys
import threading

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
    with pytest.raises(ZeroDivisionError), life:
        life.on_stop("bus", lambda: ran.append("bus"))
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
with Lifecycle() as life:
    life.on_stop("bye", lambda: print(life.reason, flush=True))
    if sys.argv[1] == "stuck":
        life.on_stop("stuck", lambda: (print("stuck", flush=True), threading.Event().wait()))
    print("ready", flush=True)
    life.wait()
"""


def _start(kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROCESS, kind], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_in_order(number: signal.Signals) -> None:
    process = _start("plain")
    process.send_signal(number)
    out, _ = process.communicate(timeout=DEADLINE)
    assert out.splitlines()[-1] == number.name
    assert process.returncode == 0


def test_a_second_signal_ends_a_process_that_hangs_in_its_shutdown() -> None:
    process = _start("stuck")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    while process.stdout.readline() != "stuck\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGTERM
