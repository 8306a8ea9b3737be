"""Silences progress bars and routine warnings of other libraries, on the terminal and in a pod's log.

With `RLVR_VERBOSE=1` in the environment they are not silenced.
"""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial, wraps
from typing import Any

SETTINGS = {
    "TQDM_DISABLE": "1",
    "HF_HUB_VERBOSITY": "error",  # it logs two lines for every retry; our log gives the reason once
    "PYTHONWARNINGS": "ignore",  # for child processes
    "RAY_LOGGER_LEVEL": "error",
    "RAY_LOG_TO_DRIVER": "0",  # an actor's error is also raised in the driver; the rest is in Ray's log folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library.triton",  # warns on every CPU that there is no Triton
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # which is a file in an engine's processes
}
"""Environment variables that silence the libraries."""

ROUTINE = {
    "DeepSpeed": ("Setting accelerator to CPU",),
    "flytekit": ("Unclosed client session", "Unclosed connector"),  # logged as errors when a process that used S3 ends
    "vllm.v1.engine.async_llm": ("AsyncLLM output_handler failed",),  # the caller gets the same error
}
"""Texts of routine log lines that are dropped, by name of the logger."""


RETRIED = "retries remaining, so the task will be retried"
"""Text of the line that Ray prints for every call to a dead actor, also when Ctrl-C ends all actors."""


def silence_libraries() -> None:
    """Set `SETTINGS` and filter warnings, before the libraries are imported. Variables that are already set stay."""
    if os.environ.get("RLVR_VERBOSE") == "1":
        return
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for category in (DeprecationWarning, FutureWarning, SyntaxWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    for logger, routine in ROUTINE.items():
        logging.getLogger(logger).addFilter(partial(_should_print, routine))


def _should_print(routine: tuple[str, ...], record: logging.LogRecord) -> bool:
    return not any(line in record.getMessage() for line in routine)


def silence_retries() -> None:
    """Drop Ray's lines about retried calls (`RETRIED`), unless `RLVR_VERBOSE` is set.

    Ray has no option for them. The run reports lost processes with the reason.
    """
    from ray._private import worker

    printed = worker.print_to_stdstream
    if os.environ.get("RLVR_VERBOSE") == "1" or hasattr(printed, "__wrapped__"):
        return

    @wraps(printed)
    def print_others(data: dict[str, Any], *args: Any, **options: Any) -> None:
        lines = [line for line in data["lines"] if RETRIED not in line]
        if lines:
            printed({**data, "lines": lines}, *args, **options)

    worker.print_to_stdstream = print_others


def silence_progress_bars() -> None:
    """Turn off the progress bars of transformers if `TRANSFORMERS_VERBOSITY` is `error`, as in `SETTINGS`.

    There is no environment variable for them.
    """
    if os.environ.get("TRANSFORMERS_VERBOSITY") == "error":
        import transformers

        transformers.utils.logging.disable_progress_bar()
