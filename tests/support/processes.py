"""Running `magnetar` as a process of its own, and finding whatever it started."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from magnetar_cli.stack import MARK, marked


class Command:
    """A running `magnetar`; all that it starts, down to the inference servers, carries its mark."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / "magnetar.txt"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_PULSAR")},
            MARK: self.mark,
            "MAGNETAR_CONFIG": str(folder / "contexts.yaml"),
            "PYTHONUNBUFFERED": "1",
        }
        self._folder = folder
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(*arguments),
                env=self.environment,
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def also(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another `magnetar` beside it, with the same configuration."""
        environment = {**self.environment, MARK: "another"}
        return subprocess.run(
            self._command(*arguments), env=environment, cwd=self._folder, capture_output=True, text=True, check=False
        )

    def left(self) -> list[psutil.Process]:
        """What runs of all that it started, itself included."""
        return marked(self.mark)

    @staticmethod
    def _command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "magnetar_cli", *arguments]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Command]:
    """Run `magnetar`; at the end nothing of it is left, whatever the test did."""
    command = Command(folder, *arguments)
    try:
        yield command
    finally:
        for process in command.left():
            process.kill()
        command.process.wait()
