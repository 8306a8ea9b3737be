"""Other libraries' progress bars and routine warnings, kept off the terminal and out of a pod's log.

`RLVR_VERBOSE=1` brings them back.
"""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial

SETTINGS = {
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",  # of child processes
    "RAY_LOGGER_LEVEL": "error",
    "RAY_LOG_TO_DRIVER": "0",  # what an actor raises reaches us as an exception; the rest is in Ray's log folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library.triton",  # it says without need that a CPU has no Triton
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


ROUTINE = {
    "DeepSpeed": ("Setting accelerator to CPU",),
    "flytekit": ("Unclosed client session", "Unclosed connector"),  # as errors, where it used S3 and the process ends
}
"""Lines of loggers that say nothing about a run."""


def silence_libraries() -> None:
    """Set what must be set before those libraries are imported; what the user has set stays."""
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


def silence_progress_bars() -> None:
    """Turn off the bars of transformers; it has no environment variable for them."""
    if os.environ.get("TRANSFORMERS_VERBOSITY") == "error":
        import transformers

        transformers.utils.logging.disable_progress_bar()
