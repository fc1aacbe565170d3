"""A base install is enough to publish and to follow: shown in an environment that has nothing else.

The environment with the base's dependencies is kept in the cache; only Magnetar's own wheel is made and installed anew.
"""

import hashlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_common.brokers import RunningBroker
from magnetar_common.brokers.jars import default_cache, exclusively
from magnetar_common.bus import connect
from magnetar_common.settings import BusSettings
from tests.support.leading import Led, leading

ROOT = Path(__file__).parent.parent.parent
PROGRAM_SECONDS = 60.0

PROGRAM = """
import importlib.util, sys
from pathlib import Path

here = Path(sys.prefix).resolve()
for name in ("services", "libs", "events", "tests", "starlette", "psutil", "typer", "fsspec", "pulsar_lite"):
    assert importlib.util.find_spec(name) is None, f"{name} is importable"
import magnetar_common, magnetar_events
assert here in Path(magnetar_events.__file__).resolve().parents, magnetar_events.__file__

from magnetar_events.schemas import CONTRACTS, check, folder
assert folder().parent == Path(magnetar_events.__file__).parent
assert {path.stem for path in folder().glob("*.avsc")} == set(CONTRACTS)
check()

from magnetar_common.client import Magnetar
from magnetar_common.errors import RequestRefused
from magnetar_common.settings import BusSettings

with Magnetar(BusSettings(url=sys.argv[1]), source="base-install") as magnetar:
    accepted = magnetar.deploy(name="iris", storage_uri="file:///models/iris").accepted(30)
    print(accepted.generation, accepted.state.value)
    try:
        magnetar.scale("nobody", 2).accepted(30)
    except RequestRefused as refused:
        print(refused.code, refused.field)

import magnetar_common.discovery, magnetar_common.inference, magnetar_common.registrar
"""


def run(*command: str | Path, cwd: Path = ROOT, timeout: float = 300.0) -> str:
    """Run a command and return its output; a failure shows both of its streams."""
    ran = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def environment(folder: Path, *packages: str) -> Path:
    """Return the Python of an environment with these packages and no other, made on first use."""
    python = folder / "bin" / "python"
    stamp = folder / "complete"
    if not stamp.exists():
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *packages)
        stamp.touch()
    return python


@pytest.fixture
def base_python(tmp_path: Path) -> Iterator[Path]:
    """The Python of a base install of this checkout's wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    dependencies, builders = project["project"]["dependencies"], project["build-system"]["requires"]
    pins = (ROOT / "constraints.txt").read_text()
    key = hashlib.sha256(repr((sys.version, sys.base_prefix, dependencies, builders, pins)).encode()).hexdigest()[:12]
    cache = default_cache() / f"base-{key}"
    with exclusively(cache.with_suffix(".lock")):
        builder = environment(cache / "builder", *builders)
        python = environment(cache / "base", *dependencies)
        run(builder, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
        (wheel,) = tmp_path.glob("*.whl")
        pip = (python, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", wheel)
        run(*pip, "check")
        yield python


@pytest.fixture
def led(own_embedded_broker: RunningBroker, tmp_path: Path) -> Iterator[Led]:
    settings = BusSettings(url=own_embedded_broker.service_url, data_dir=str(tmp_path))
    with leading(lambda: connect(settings)) as led:
        yield led


@pytest.mark.timeout(400)  # the first time on a machine the dependencies are fetched
def test_a_base_install_publishes_and_follows(
    base_python: Path, led: Led, own_embedded_broker: RunningBroker, tmp_path: Path
) -> None:
    """DeployModel to accepted, and a rejection with its code and field, with the base's dependencies alone."""
    said = run(base_python, "-I", "-c", PROGRAM, own_embedded_broker.service_url, cwd=tmp_path, timeout=PROGRAM_SECONDS)
    assert said.splitlines() == ["1 ScheduleFailed", "NOT_FOUND event.name"]
    assert "default/iris" in led.state.models
