"""Starts a vLLM server with an OpenAI-compatible API for a judge, as a child process for the duration of a block."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tasks.failures import InfrastructureError
from tasks.machine import cpu_variables, precision
from tasks.machine.engine_errors import find_last_error, make_memory_error
from tasks.machine.image import check_image_of_pod
from tasks.machine.memory_limit import add_cause, watch
from tasks.machine.resources import has_gpu
from tasks.storage.model_folder import check_model_folder
from tasks.verifiers.chat.config import AnyJudgeConfig, JudgeConfig, RewardModelConfig, ServerConfig

ROOT = Path(__file__).parents[3]
"""Folder that contains the package `tasks`, for the server's Python path."""
LAUNCHER = "tasks.verifiers.chat.launcher"
"""Module that the server process runs."""
EXECUTOR = "tasks.generation.executor.InProcessExecutor"
"""vLLM executor for one device: the model runs in the engine's process."""
EXECUTOR_OF_SEVERAL = "tasks.generation.executor.WatchedMultiprocExecutor"
"""vLLM executor for several devices: one process per device, which ends with the server."""
KEY_PREFIX = "RLVR_JUDGE_KEY_"
"""Prefix of the environment variables that contain the API keys of such servers."""
HOST = "127.0.0.1"
"""Address that such servers listen on (loopback only)."""
_POLL_SECONDS = 0.25
_STOP_SECONDS = 20.0  # with a GPU; without one, the system frees all resources of a killed server
_LAST_LINES = 15
_TAIL = 20_000

logger = logging.getLogger(__name__)


class ServerError(InfrastructureError):
    """The judge's server did not start. The message contains the last error in its log, or the log's last lines."""


@contextlib.contextmanager
def serve(config: AnyJudgeConfig) -> Iterator[AnyJudgeConfig]:
    """Serve the judge's model for the duration of the block, and yield the configuration of a client of the server.

    If `url` is set, or for a reward model, nothing is started and the configuration is yielded unchanged. Otherwise
    `url`, `api_key_env` and `context_tokens` are filled in. The server listens on the loopback interface only and
    requires a random API key, which is stored in an environment variable of this process for the duration of the block.
    The server ends with the block or with this process, however that ends.

    Raises:
        ValueError: If a model folder is not one, or a hub id has no revision.
        ImageError: If the image is for machines with GPUs and the pod has none, or the other way round.
        ServerError: If the server ends during startup, or does not start in time.
        ShortOfMemoryError, MemoryLimitError: If it does not start for lack of memory; the second if waiting cannot
            help.
    """
    if isinstance(config, RewardModelConfig) or config.url is not None:
        yield config
        return
    check_image_of_pod()
    options = _build_arguments(config)
    variable = KEY_PREFIX + secrets.token_hex(4).upper()
    os.environ[variable] = secrets.token_urlsafe(32)
    try:
        with (
            tempfile.TemporaryFile(prefix="judge-server-") as log,
            _start_server(config, options, variable, log) as port,
        ):
            served = {
                "url": f"http://{HOST}:{port}/v1",
                "api_key_env": variable,
                "context_tokens": config.server.max_model_len,
            }
            yield config.model_copy(update=served)
    finally:
        del os.environ[variable]


@contextlib.contextmanager
def _start_server(config: JudgeConfig, options: list[str], variable: str, log: IO[bytes]) -> Iterator[int]:
    watch()
    port = _find_free_port()
    server = subprocess.Popen(  # noqa: S603 our own module, without a shell
        [sys.executable, "-m", LAUNCHER, str(os.getpid()), *options, "--host", HOST, "--port", str(port)],
        env=_build_environment(config, os.environ[variable]),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # the engine joins this process group, so that one signal reaches both
    )
    try:
        started = time.monotonic()
        _wait_until_healthy(config, server, port, log)
        logger.info("the judge %s serves on port %d after %.0f s", config.model, port, time.monotonic() - started)
        yield port
    finally:
        _stop(server)


def _wait_until_healthy(config: JudgeConfig, server: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    import httpx2

    limit = config.server.start_timeout_seconds
    deadline = time.monotonic() + limit
    with httpx2.Client(timeout=5.0, trust_env=False) as client:
        while time.monotonic() < deadline:
            if (code := server.poll()) is not None:
                ended, reason = f"the server of judge {config.model!r} ended with exit code {code}", _find_reason(log)
                if short := make_memory_error(ended, reason, "verifiers.judge.server.cpu_kv_cache_gib"):
                    raise short
                raise ServerError(f"{add_cause(ended)}: {reason}")
            with contextlib.suppress(httpx2.TransportError):  # not listening yet
                if client.get(f"http://{HOST}:{port}/health").status_code == 200:
                    return
            time.sleep(_POLL_SECONDS)
    raise ServerError(f"the server of judge {config.model!r} was not ready after {limit:g} s: {_find_reason(log)}")


def _build_arguments(config: JudgeConfig) -> list[str]:
    """Return the command line of the server, after cheap checks of the model."""
    model = Path(config.model)
    if model.is_dir():
        check_model_folder(model)
    elif config.revision is None or model.is_absolute():
        raise ValueError(f"judge model {config.model!r}: neither a folder nor a hub id with a revision")
    server = config.server
    options = {
        "model": config.model,
        "served-model-name": config.model,
        "dtype": _choose_dtype(server),
        "max-model-len": server.max_model_len,
        "max-num-seqs": server.max_num_seqs,
        "tensor-parallel-size": server.tensor_parallel_size,
        "gpu-memory-utilization": server.gpu_memory_utilization,
        # If blanks between two JSON tokens are allowed, a small judge may generate them until the token limit.
        "structured-outputs-config": '{"disable_any_whitespace": true, "backend": "xgrammar"}',
    }
    if config.revision is not None:
        options["revision"] = config.revision
    if not has_gpu():
        options["kv-cache-memory-bytes"] = round(server.cpu_kv_cache_gib * 2**30)
    options["distributed-executor-backend"] = EXECUTOR if server.tensor_parallel_size == 1 else EXECUTOR_OF_SEVERAL
    flags = ["--disable-uvicorn-access-log"]
    if _is_eager(server):
        flags.append("--enforce-eager")
    stated = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [*stated, *flags, *server.extra_args]


def _build_environment(config: JudgeConfig, key: str) -> dict[str, str]:
    """Return the environment of the server. It contains the API key, because command lines are public."""
    server = config.server
    settings = {
        "VLLM_API_KEY": key,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if not has_gpu():
        settings |= cpu_variables.ENGINE | {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(server.cpu_threads or len(os.sched_getaffinity(0))),
        }
        if _is_eager(server):
            settings["TORCHDYNAMO_DISABLE"] = "1"  # no compiler is needed, as for a policy's engine
    settings |= make_gpu_environment(server.gpus)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(KEY_PREFIX)}
    return inherited | settings


def make_gpu_environment(gpus: int) -> dict[str, str]:
    """Return an environment that shows a server the last `gpus` of this process's GPUs; an engine uses the first."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(index) for index in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[-gpus:])} if torch.cuda.device_count() else {}


def _is_eager(server: ServerConfig) -> bool:
    return not has_gpu() if server.enforce_eager is None else server.enforce_eager


def _choose_dtype(server: ServerConfig) -> str:
    # vLLM's `auto` uses the checkpoint's type on any processor.
    slow = server.dtype == "auto" and precision.resolve("auto", gpu=has_gpu()) == "float32"
    return "float32" if slow else server.dtype


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and its engine, and kill the remaining processes of the group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.terminate()
        server.wait(_STOP_SECONDS if has_gpu() else 1.0)
    with contextlib.suppress(ProcessLookupError):  # nothing is left
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _find_reason(log: IO[bytes]) -> str:
    """Return the last error in the log of a server, or the last lines if there is none."""
    log.seek(0)
    text = log.read()[-_TAIL:].decode("utf-8", "replace")
    return ": ".join(find_last_error(text) or ()) or "\n".join(text.splitlines()[-_LAST_LINES:])
