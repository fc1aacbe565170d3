"""The demo's model: iris flowers by logistic regression, trained where it will be served."""

import subprocess
from pathlib import Path
from typing import Any

from magnetar_agent.environments import Environment, plain_environment
from magnetar_cli.exit_codes import CommandError

# Magnetar's own environment has no scikit-learn; the inference server's has.
_TRAIN = """
import sys, joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
features, species = load_iris(return_X_y=True)
model = LogisticRegression(max_iter=500).fit(features, species)
joblib.dump(model, sys.argv[1])
print(f"{model.score(features, species):.3f}")
"""
_TRAIN_S = 120

SPECIES = ("setosa", "versicolor", "virginica")
"""What the classes 0, 1 and 2 are called."""

SAMPLES = (((5.1, 3.5, 1.4, 0.2), 0), ((5.7, 2.8, 4.1, 1.3), 1), ((6.3, 3.3, 6.0, 2.5), 2))
"""Flowers (sepal length and width, petal length and width, in cm) and the class of each, from Fisher's data."""


def train(environment: Environment, folder: Path) -> str:
    """Train the model into ``folder/model.joblib``; return its accuracy on the data it was trained on.

    Raises:
        CommandError: the training failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(environment.python), "-c", _TRAIN, str(folder / "model.joblib")]
    variables = plain_environment() | dict(environment.variables)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_TRAIN_S, check=False)
    if done.returncode:
        raise CommandError(f"the training failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return done.stdout.strip()


def request() -> dict[str, Any]:
    """Return an inference request for all samples."""
    data = [list(flower) for flower, _ in SAMPLES]
    return {"inputs": [{"name": "flowers", "shape": [len(data), 4], "datatype": "FP32", "data": data}]}


def is_right(answer: dict[str, Any]) -> bool:
    """Whether an answer to :func:`request` names the class of each sample."""
    return [int(each) for each in answer["outputs"][0]["data"]] == [known for _, known in SAMPLES]
