"""Whether this machine can set Magnetar up: says in one line what to do, and exits 1, when it cannot.

It runs before anything is installed: nothing but the standard library. setup.sh has found the right Python by then.
"""

import importlib.util
import os
import platform
import shutil
import socket
import sys
from pathlib import Path

PLATFORMS = {("Linux", "x86_64"), ("Darwin", "arm64")}  # where the embedded broker's binary exists
DISK_GIB = 3  # .venv 0.6, Pulsar's jars 0.35, the inference servers' environments the rest


def problem() -> str | None:
    """Return what to do first, or None when all is well."""
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        python = f"python3.{sys.version_info.minor}"
        return f"install the venv module of {python} (Debian and Ubuntu: apt-get install {python}-venv)"
    if (here := (platform.system(), platform.machine())) not in PLATFORMS:
        return f"use {' or '.join(' '.join(known) for known in sorted(PLATFORMS))}; this is {' '.join(here)}"
    cache = Path(os.environ.get("MAGNETAR_CACHE") or "~/.cache/magnetar").expanduser()
    for place in (Path.cwd(), cache.absolute()):
        existing = next(folder for folder in (place, *place.parents) if folder.exists())
        if (free := shutil.disk_usage(existing).free / 2**30) < DISK_GIB:
            return f"free {DISK_GIB} GiB of disk for {place} ({free:.1f} GiB are free)"
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        return f"allow processes to listen on 127.0.0.1 ({error})"
    return None


if __name__ == "__main__" and (todo := problem()):
    sys.exit(f"Magnetar cannot be set up here: {todo}")
