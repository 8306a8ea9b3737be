"""A judge's own server: vLLM behind its OpenAI-compatible interface, in a child process for the length of a block."""

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
from tasks.machine import cpu_environment, precision
from tasks.machine.engine_errors import last_error, memory_error
from tasks.machine.image import check_image_of_pod
from tasks.machine.memory_limit import watch, with_cause
from tasks.machine.resources import has_gpu
from tasks.storage.model_folder import check_model_folder
from tasks.verifiers.chat.config import AnyJudgeConfig, JudgeConfig, RewardModelConfig, ServerConfig

ROOT = Path(__file__).parents[3]
"""Folder that holds the package `tasks`, for the server's Python path."""
LAUNCHER = "tasks.verifiers.chat.launcher"
"""Module that the server's process runs."""
EXECUTOR = "tasks.generation.executor.InProcessExecutor"
"""vLLM executor of a server on one device: the engine computes in its own process."""
EXECUTOR_OF_SEVERAL = "tasks.generation.executor.WatchedMultiprocExecutor"
"""vLLM executor of a server on several devices: a process for each, which end with the server."""
KEY_PREFIX = "RLVR_JUDGE_KEY_"
"""Prefix of the environment variables that hold the keys of such servers."""
HOST = "127.0.0.1"
"""Address that such servers listen on: this machine alone."""
_POLL_SECONDS = 0.25
_STOP_SECONDS = 20.0  # on a machine with a GPU; elsewhere, a server holds nothing that the system would not free
_LAST_LINES = 15
_TAIL = 20_000

logger = logging.getLogger(__name__)


class ServerError(InfrastructureError):
    """The judge's server did not start: infrastructure, with the last error in its log, or the last lines of that."""


@contextlib.contextmanager
def serving(config: AnyJudgeConfig) -> Iterator[AnyJudgeConfig]:
    """Serve the judge's model for the length of the block, and yield the configuration of a client of the server.

    Where `url` is given already, and for a reward model, it is the same configuration and nothing is started; else
    `url`, `api_key_env` and `context_tokens` are filled in. The server listens on this machine alone, asks for a random
    key, which stands in an environment variable of this process for the length of the block, and ends with the block or
    with this process, however that ends.

    Raises:
        ValueError: a model folder that is not one, or a hub id without a revision.
        ImageError: the image is for machines with GPUs and the pod has none, or the other way round.
        ServerError: the server ended while it started, or did not start in time.
        ShortOfMemoryError, MemoryLimitError: it did not start for memory; the second if no wait helps.
    """
    if isinstance(config, RewardModelConfig) or config.url is not None:
        yield config
        return
    check_image_of_pod()
    options = _options(config)
    variable = KEY_PREFIX + secrets.token_hex(4).upper()
    os.environ[variable] = secrets.token_urlsafe(32)
    try:
        with tempfile.TemporaryFile(prefix="judge-server-") as log, _listening(config, options, variable, log) as port:
            served = {
                "url": f"http://{HOST}:{port}/v1",
                "api_key_env": variable,
                "context_tokens": config.server.max_model_len,
            }
            yield config.model_copy(update=served)
    finally:
        del os.environ[variable]


@contextlib.contextmanager
def _listening(config: JudgeConfig, options: list[str], variable: str, log: IO[bytes]) -> Iterator[int]:
    watch()
    port = _free_port()
    server = subprocess.Popen(  # noqa: S603 our own module, without a shell
        [sys.executable, "-m", LAUNCHER, str(os.getpid()), *options, "--host", HOST, "--port", str(port)],
        env=_environment(config, os.environ[variable]),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # its engine is in the same process group, so that one signal reaches both
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
                ended, reason = f"the server of judge {config.model!r} ended with exit code {code}", _reason(log)
                if short := memory_error(ended, reason, "verifiers.judge.server.cpu_kv_cache_gib"):
                    raise short
                raise ServerError(f"{with_cause(ended)}: {reason}")
            with contextlib.suppress(httpx2.TransportError):  # not listening yet: that is what is waited for
                if client.get(f"http://{HOST}:{port}/health").status_code == 200:
                    return
            time.sleep(_POLL_SECONDS)
    raise ServerError(f"the server of judge {config.model!r} was not ready after {limit:g} s: {_reason(log)}")


def _options(config: JudgeConfig) -> list[str]:
    """Return the command line of the server, the model checked as far as that costs nothing."""
    model = Path(config.model)
    if model.is_dir():
        check_model_folder(model)
    elif config.revision is None or model.is_absolute():
        raise ValueError(f"judge model {config.model!r}: neither a folder nor a hub id with a revision")
    server = config.server
    options = {
        "model": config.model,
        "served-model-name": config.model,
        "dtype": _dtype(server),
        "max-model-len": server.max_model_len,
        "max-num-seqs": server.max_num_seqs,
        "tensor-parallel-size": server.tensor_parallel_size,
        "gpu-memory-utilization": server.gpu_memory_utilization,
        # A small judge that may put blanks between two tokens of JSON can go on with them to the end.
        "structured-outputs-config": '{"disable_any_whitespace": true, "backend": "xgrammar"}',
    }
    if config.revision is not None:
        options["revision"] = config.revision
    if not has_gpu():
        options["kv-cache-memory-bytes"] = round(server.cpu_kv_cache_gib * 2**30)
    options["distributed-executor-backend"] = EXECUTOR if server.tensor_parallel_size == 1 else EXECUTOR_OF_SEVERAL
    flags = ["--disable-uvicorn-access-log"]
    if _eager(server):
        flags.append("--enforce-eager")
    stated = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [*stated, *flags, *server.extra_args]


def _environment(config: JudgeConfig, key: str) -> dict[str, str]:
    """Return the environment of the server. It holds the key, as everyone can read a command line."""
    server = config.server
    settings = {
        "VLLM_API_KEY": key,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if not has_gpu():
        settings |= cpu_environment.ENGINE | {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(server.cpu_threads or len(os.sched_getaffinity(0))),
        }
        if _eager(server):
            settings["TORCHDYNAMO_DISABLE"] = "1"  # as for a policy's engine: no compiler is needed
    settings |= gpus_in_sight(server.gpus)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(KEY_PREFIX)}
    return inherited | settings


def gpus_in_sight(gpus: int) -> dict[str, str]:
    """Return the environment in which a server sees the last `gpus` of this process's GPUs; an engine has the first."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(index) for index in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[-gpus:])} if torch.cuda.device_count() else {}


def _eager(server: ServerConfig) -> bool:
    return not has_gpu() if server.enforce_eager is None else server.enforce_eager


def _dtype(server: ServerConfig) -> str:
    # vLLM's own `auto` is the checkpoint's type, on any processor.
    slow = server.dtype == "auto" and precision.resolve("auto", gpu=has_gpu()) == "float32"
    return "float32" if slow else server.dtype


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and its engine; processes of the group that are left after that are killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.terminate()
        server.wait(_STOP_SECONDS if has_gpu() else 1.0)
    with contextlib.suppress(ProcessLookupError):  # nothing is left
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _reason(log: IO[bytes]) -> str:
    """Return the last error in the log of a server; its last lines where it names none."""
    log.seek(0)
    text = log.read()[-_TAIL:].decode("utf-8", "replace")
    return ": ".join(last_error(text) or ()) or "\n".join(text.splitlines()[-_LAST_LINES:])
