"""A leader, an agent and a real Triton: load, infer, unload, and what goes wrong."""

from collections.abc import Iterator

import pytest

from magnetar_agent.environments import Environment
from tests.e2e.stand import RepositoryServerContract, Sample, Stand, settings_for, standing
from tests.e2e.test_adapters_triton import _DOUBLE

pytestmark = [pytest.mark.triton, pytest.mark.timeout(180)]

_SLOW_ONCE = """
import pathlib, time
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}})
        config.add_output({{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}})
        return config
    def initialize(self, args):
        started = pathlib.Path({started!r})
        if not started.exists():
            started.touch()
            time.sleep(600)
"""
_PAIR = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.5]}]}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("triton-models")
    started = folder / "started"
    sources = {"good": _DOUBLE, "broken": 'raise RuntimeError("boom")', "slow": _SLOW_ONCE.format(started=str(started))}
    for name, source in sources.items():
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(source)
    return Sample(("python",), folder / "good", folder / "broken", folder / "slow", started, _PAIR, [2.0, 5.0])


@pytest.fixture(scope="module")
def stand(triton_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with standing(settings_for("triton", tmp_path_factory.mktemp("agent"))) as stand:
        yield stand


class TestTriton(RepositoryServerContract):
    """One Triton that the agent starts and supervises."""
