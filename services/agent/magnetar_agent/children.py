"""Child processes that cannot outlive the agent, not even when it is killed with -9."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

# The kernel sends the parent-death signal when the *thread* that forked ends, not the process (prctl(2)), so one
# thread that never ends does all the forking. And the child asks for the signal itself, before it becomes the command:
# a preexec_fn would run Python between fork and exec of a threaded process. Should the parent be gone already, nobody
# would ever send the signal.
_PR_SET_PDEATHSIG = 1
_BECOME = (
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux':\n"
    f"    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit('the parent is gone')\n"
    "os.execvpe(sys.argv[2], sys.argv[2:], os.environ)\n"
)


class Child:
    """A running command in a process group of its own, its output appended to a log file.

    On Linux the kernel kills it when this process dies; elsewhere only `stop` ends it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        self.command = tuple(command)
        self.log = log
        self._group_killed = False
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the agent must not race its orderly stop
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; else its exit code, negative for a signal."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait up to `timeout` seconds for its end; None if it still runs."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace: float, first: signal.Signals = signal.SIGTERM) -> int:
        """End it and its process group: a signal, `grace` seconds, SIGKILL. Repeatable. Returns its exit code."""
        if self.exit_code is None:
            self._process.send_signal(first)
            self.wait(grace)
        self.kill_group()
        return self._process.wait()

    def kill_group(self) -> None:
        """Kill whatever is left of its process group: workers that outlived it hold memory and ports."""
        if not self._group_killed:
            with contextlib.suppress(ProcessLookupError):  # nobody is left
                os.killpg(self.pid, signal.SIGKILL)
            self._group_killed = True  # the id may belong to somebody else from now on

    def tail(self, lines: int = 12, width: int = 4000) -> str:
        """Return the last lines of what this process wrote."""
        with self.log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(self._log_start, end - width))
            return "\n".join(file.read().decode(errors="replace").strip().splitlines()[-lines:])


def spawn(command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path) -> Child:
    """Start a command.

    Args:
        command: Program and arguments; the program is searched on the environment's PATH.
        environment: The whole environment.
        folder: Working directory.
        log: File that its output is appended to; its folder is made.

    Raises:
        OSError: It cannot be started (an unknown program shows as exit code 1 with the reason in the log).
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    return _FORKER.run(partial(Child, command, environment, folder, log))


class _Forker:
    """The thread that never ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[tuple[Future[Child], partial[Child]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, start: "partial[Child]") -> Child:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # not yet, or this process is a fork
                self._thread = threading.Thread(target=self._serve, name="magnetar-forker", daemon=True)
                self._thread.start()
        answer: Future[Child] = Future()
        self._requests.put((answer, start))
        return answer.result()

    def _serve(self) -> None:
        while True:
            answer, start = self._requests.get()
            try:
                answer.set_result(start())
            except OSError as error:
                answer.set_exception(error)


_FORKER = _Forker()
