"""How MLServer and Triton are started: on this host only, with nothing loaded, and loading only on command."""

import json
from pathlib import Path

from magnetar_agent.environments import Environment, plain_environment
from magnetar_agent.ports import free_port
from magnetar_agent.server_process import Launch


def launch_mlserver(environment: Environment, folder: Path, *, host: str = "127.0.0.1") -> Launch:
    """Write MLServer's settings for free ports into `folder`, and say how to start it.

    Models run in the server's own process (`parallel_workers` 0): a worker process would survive a killed server.
    """
    repository = folder / "models"
    repository.mkdir(parents=True, exist_ok=True)
    http_port, grpc_port, metrics_port = (free_port(host) for _ in range(3))
    settings = {
        "host": host,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "model_repository_root": str(repository.absolute()),
        # After a restart the index is empty until the agent, who knows what is wanted, loads.
        "load_models_at_startup": False,
        "parallel_workers": 0,
        "debug": False,
        "use_structured_logging": False,
    }
    (folder / "settings.json").write_text(json.dumps(settings, indent=2))
    command = (str(environment.python), str(environment.server), "start", str(folder.absolute()))
    return Launch(
        "mlserver",
        command,
        plain_environment() | dict(environment.variables),
        folder,
        repository,
        host,
        http_port,
        grpc_port,
    )


def launch_triton(environment: Environment, folder: Path, *, host: str = "127.0.0.1") -> Launch:
    """Say how to start Triton in explicit mode on free ports."""
    repository = folder / "models"
    repository.mkdir(parents=True, exist_ok=True)
    http_port, grpc_port = free_port(host), free_port(host)
    command = (
        str(environment.server),
        f"--model-repository={repository.absolute()}",
        f"--backend-directory={environment.server.parent.parent / 'backends'}",
        "--model-control-mode=explicit",
        "--strict-readiness=false",  # else one model that failed to load makes the whole server "not ready"
        f"--http-address={host}",
        f"--http-port={http_port}",
        f"--grpc-address={host}",
        f"--grpc-port={grpc_port}",
        "--allow-metrics=false",
        "--exit-timeout-secs=5",
        # Two servers on one host must not share the shared-memory segments of their Python models.
        f"--backend-config=python,shm-region-prefix-name=magnetar-{http_port}",
    )
    return Launch(
        "triton",
        command,
        # NVML numbers the GPUs in the order of their PCI addresses, and so must whoever is given those numbers.
        plain_environment() | dict(environment.variables) | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        folder,
        repository,
        host,
        http_port,
        grpc_port,
    )
