"""Inference servers in environments of their own, never in Magnetar's: made once in the cache, from pinned packages.

The cache is `$MAGNETAR_CACHE`, else `~/.cache/magnetar`. A folder is named for a hash of its pins and its Python, so
that a change of either makes a new one beside the old, and a stamp written last says that it is whole.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

KINDS = ("mlserver", "triton")
_STAMP = "magnetar.json"
# Triton's Python backend runs models in a stub linked to one minor version of libpython; numpy 1.26 has wheels for
# these.
_STUB_VERSIONS = ("3.12", "3.11", "3.10")
_STUB_GLIBC = (2, 35)  # the wheel's platform tag: manylinux_2_35

_Say = Callable[[str], None]


class EnvironmentUnavailable(Exception):
    """A server's environment cannot be had here. The message is one line: what is missing, and what to do."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An inference server ready to be started.

    Attributes:
        kind: `mlserver` or `triton`.
        root: Its folder in the cache.
        server: The executable.
        python: The Python its models run on.
        variables: Environment variables it needs, above the caller's own.
    """

    kind: str
    root: Path
    server: Path
    python: Path
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Python:
    """An interpreter whose shared library Triton's stub can load."""

    executable: str
    version: str
    library_folder: str
    home: str


def cache_folder() -> Path:
    """Return the folder for heavy things made once: `$MAGNETAR_CACHE`, else `~/.cache/magnetar`."""
    return Path(os.environ.get("MAGNETAR_CACHE") or "~/.cache/magnetar").expanduser()


def unavailable(kind: str) -> str | None:
    """Say in one line why this server cannot be had here; None if nothing is known against it. Asks no network."""
    if kind not in KINDS:
        return f"there is no environment {kind!r}; there are {', '.join(KINDS)}"
    if importlib.util.find_spec("ensurepip") is None:
        return f"Python {platform.python_version()} cannot make environments: install python3-venv"
    if kind == "mlserver":
        if not (3, 11) <= sys.version_info[:2] <= (3, 12):
            return f"MLServer needs Python 3.11 or 3.12, not {platform.python_version()}"
        return None
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"Triton's binary is for Linux on x86_64, not {sys.platform} on {platform.machine()}"
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < _STUB_GLIBC:
        return f"Triton's binary needs glibc 2.35, not {libc or 'another libc'} {version}"
    if _stub_python() is None:
        return "Triton's Python backend needs a shared libpython of 3.10, 3.11 or 3.12: install libpython3.11"
    return None


def ensure(kind: str, *, say: _Say = lambda _: None) -> Environment:
    """Return a server's environment, made first if it is not there yet (minutes, from the package index; then at once).

    May be called from several processes at once: one makes it, the others wait.

    Args:
        kind: `mlserver` or `triton`.
        say: Is told in one line what takes long.

    Raises:
        EnvironmentUnavailable: See `unavailable`, or the packages cannot be fetched.
    """
    reason = unavailable(kind)
    if reason is not None:
        raise EnvironmentUnavailable(reason)
    pins = files("magnetar_agent").joinpath("pins", f"{kind}.txt").read_text()
    python = _stub_python() if kind == "triton" else None
    identity = [pins, sys.base_prefix, platform.python_version(), asdict(python) if python else None]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    root = cache_folder() / "servers" / f"{kind}-{key}"
    with _locked(root.with_suffix(".lock")):
        if not (root / _STAMP).exists():
            say(f"making {kind}'s environment in {root} (once)")
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            if python is None:
                _make_mlserver(root, pins)
            else:
                _make_triton(root, pins, python)
            (root / _STAMP).write_text(json.dumps(identity))
    if python is None:
        return Environment(kind, root, root / "bin" / "mlserver", root / "bin" / "python", {})
    libraries = [
        python.library_folder,
        *filter(None, [os.environ.get("LD_LIBRARY_PATH")]),
    ]  # those of CUDA stay reachable
    variables = {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "PYTHONHOME": python.home}
    return Environment(kind, root, _tritonserver(root), Path(python.executable), variables)


def _make_mlserver(root: Path, pins: str) -> None:
    _run([sys.executable, "-m", "venv", str(root)], "make a virtual environment")
    with _requirements(pins) as path:
        _run([str(root / "bin" / "python"), "-m", "pip", "install", "--no-deps", "-r", path], "install MLServer")
    _run([str(root / "bin" / "python"), "-c", "import mlserver, mlserver_sklearn"], "import MLServer")


def _make_triton(root: Path, pins: str, python: _Python) -> None:
    backends = root / "pytriton" / "tritonserver" / "backends" / "python"
    wheel_pin, numpy_pin = (line for line in pins.splitlines() if not line.startswith("#"))
    with tempfile.TemporaryDirectory(dir=root) as folder:
        _run([sys.executable, "-m", "venv", f"{folder}/venv"], "make a virtual environment")
        pip = [f"{folder}/venv/bin/python", "-m", "pip"]
        with _requirements(wheel_pin) as path:
            _run([*pip, "download", "--no-deps", "--require-hashes", "-r", path, "-d", folder], "download Triton")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            # The binaries find the libraries by a path relative to themselves, so the wheel's layout stays.
            kept = ("pytriton/tritonserver/", "nvidia_pytriton.libs/")
            archive.extractall(root, [name for name in archive.namelist() if name.startswith(kept)])
        _run(
            [
                *pip,
                "install",
                "--no-deps",
                "--only-binary=:all:",
                f"--python-version={python.version}",
                f"--target={backends}",
                numpy_pin,
            ],
            "install numpy for Triton's Python backend",
        )
    stubs = root / "pytriton" / "tritonserver" / "python_backend_stubs"
    stub = backends / "triton_python_backend_stub"
    shutil.copy(stubs / python.version / stub.name, stub)
    shutil.rmtree(stubs)
    libraries = os.environ | {"LD_LIBRARY_PATH": python.library_folder, "PYTHONHOME": python.home}
    for binary in (_tritonserver(root), stub):
        binary.chmod(0o755)
        # Neither has a way to say only that it starts; the loader's own exit code is 127.
        done = subprocess.run(
            [str(binary), "--help"], capture_output=True, text=True, env=libraries, timeout=60, check=False
        )
        if done.returncode == 127:
            raise EnvironmentUnavailable(f"{binary.name} does not start: {done.stderr.strip()}")


def _tritonserver(root: Path) -> Path:
    return root / "pytriton" / "tritonserver" / "bin" / "tritonserver"


_PROBE = """
import json, os, platform, sys, sysconfig
get = sysconfig.get_config_var
name, folder = get("INSTSONAME") or "", get("LIBDIR") or ""
places = [folder, os.path.join(folder, get("MULTIARCH") or "")]
found = [p for p in places if name.startswith("libpython") and os.path.exists(os.path.join(p, name))]
print(json.dumps([".".join(platform.python_version_tuple()[:2]), found[0] if found else "", sys.base_prefix]))
"""


def _stub_python() -> _Python | None:
    """Find an interpreter for Triton's stub: this one's base if it serves, else what is on the PATH.

    This one's base first: a library folder of another build of the same minor version would be loaded into our own
    interpreter too.
    """
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (str(base), *(f"python{version}" for version in _STUB_VERSIONS)):
        try:
            done = subprocess.run(
                [candidate, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, check=True
            )
            version, library_folder, home = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue  # not there, or a shim for a version that is not installed
        if library_folder and version in _STUB_VERSIONS:
            return _Python(candidate, version, library_folder, home)
    return None


def _run(command: list[str], purpose: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=plain_environment(), check=False)
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        told = next(
            (line for line in reversed(lines) if "error" in line.lower()),
            lines[-1] if lines else f"exit code {done.returncode}",
        )
        raise EnvironmentUnavailable(f"cannot {purpose}: {told.strip()}")


def plain_environment() -> dict[str, str]:
    """The caller's environment without what would lead another Python astray."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON") and key != "VIRTUAL_ENV"}


@contextmanager
def _requirements(text: str) -> Generator[str, None, None]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        yield file.name


@contextmanager
def _locked(path: Path) -> Generator[None, None, None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
