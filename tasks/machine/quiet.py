"""Silences other libraries' progress bars and routine warnings, on the terminal and in a pod's log.

`RLVR_VERBOSE=1` in the environment leaves them on.
"""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial, wraps
from typing import Any

SETTINGS = {
    "TQDM_DISABLE": "1",
    "HF_HUB_VERBOSITY": "error",  # it logs two lines for every request that it repeats; ours says why, once
    "PYTHONWARNINGS": "ignore",  # of child processes
    "RAY_LOGGER_LEVEL": "error",
    "RAY_LOG_TO_DRIVER": "0",  # an actor's error is raised in the driver as well; the rest is in Ray's log folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library.triton",  # warns on every CPU that there is no Triton
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Environment variables by which those libraries are silenced."""

ROUTINE = {
    "DeepSpeed": ("Setting accelerator to CPU",),
    "flytekit": ("Unclosed client session", "Unclosed connector"),  # logged as errors when a process that used S3 ends
}
"""Texts by which routine lines of a logger are recognised and dropped, by the logger's name."""


RETRIED = "retries remaining, so the task will be retried"
"""Text of a line that Ray prints for every call to an actor that has died, also while Ctrl-C ends them all."""


def silence_libraries() -> None:
    """Set `SETTINGS` and filter warnings; called before those libraries are imported. A variable that is set stays."""
    if os.environ.get("RLVR_VERBOSE") == "1":
        return
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for category in (DeprecationWarning, FutureWarning, SyntaxWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    for logger, routine in ROUTINE.items():
        logging.getLogger(logger).addFilter(partial(_is_none_of, routine))


def _is_none_of(routine: tuple[str, ...], record: logging.LogRecord) -> bool:
    return not any(line in record.getMessage() for line in routine)


def silence_retries() -> None:
    """Drop Ray's lines about calls that it repeats (`RETRIED`), unless `RLVR_VERBOSE` is set.

    Ray has no option for them. A process that was lost is reported by the run itself, with its reason.
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
    """Turn off the bars of transformers, which has no environment variable for them, unless `RLVR_VERBOSE` is set."""
    if os.environ.get("TRANSFORMERS_VERBOSITY") == "error":
        import transformers

        transformers.utils.logging.disable_progress_bar()
