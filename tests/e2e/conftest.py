"""Real inference servers, one of each for the whole run, and models for them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.environments import Environment, ensure
from magnetar_agent.launch import launch_mlserver, launch_triton
from magnetar_agent.server_process import ServerProcess

# Magnetar's own environment has no scikit-learn: the model is trained where it will be served.
_TRAIN = """
import sys, joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
joblib.dump(LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True)), sys.argv[1])
"""


@pytest.fixture(scope="session")
def mlserver_env() -> Environment:
    """MLServer's environment in the cache; the test carries the marker `mlserver`."""
    return ensure("mlserver")


@pytest.fixture(scope="session")
def triton_env() -> Environment:
    """Triton's environment in the cache; the test carries the marker `triton`."""
    return ensure("triton")


@pytest.fixture(scope="session")
def iris_artifact(mlserver_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real scikit-learn model, `model.joblib`: iris by logistic regression."""
    folder = tmp_path_factory.mktemp("iris")
    subprocess.run([mlserver_env.python, "-c", _TRAIN, folder / "model.joblib"], check=True)
    return folder


@pytest.fixture(scope="session")
def mlserver(mlserver_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running MLServer with nothing loaded, shared by all tests: each uses model names of its own."""
    server = ServerProcess(lambda: launch_mlserver(mlserver_env, tmp_path_factory.mktemp("mlserver")))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def triton(triton_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running Triton with nothing loaded, shared by all tests: each uses model names of its own."""
    server = ServerProcess(lambda: launch_triton(triton_env, tmp_path_factory.mktemp("triton")))
    server.start()
    yield server
    server.stop()
