"""Reads the rates that `make gpu-check` measured on a card, for a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tasks.failures import MistakeError
from tasks.sizing.roofline import GB

CHECK = "weights"
"""Name of the check that measures the rates."""
WRITES, LOADS = "learner to file, GB/s", "file to engine, GB/s"
"""Names of its results: a version written by the learner, and loaded by an engine on one GPU, both with its digest."""


class MeasuredError(MistakeError):
    """A file is not the result of `make gpu-check JSON=file`, or its check of weights did not pass."""


@dataclass(frozen=True)
class WeightRates:
    """The speed at which weights go through shared memory.

    Attributes:
        write: bytes/s at which the learner writes them into its node's shared memory.
        load: bytes/s at which an engine loads them from there, for each of its GPUs.
        measured_on: name of the GPU that the rates were measured on, or empty if they are assumed.
    """

    write: float = 10 * GB
    load: float = 2 * GB
    measured_on: str = ""


ASSUMED = WeightRates()
"""Rates without a measurement. The learner's is about that of offloaded states, 14 GB/s on an H200, less the digest."""


def read_measured_rates(file: Path) -> WeightRates:
    """Return the rates in the results of `make gpu-check JSON=file`.

    Raises:
        MeasuredError: the file does not contain them.
    """
    try:
        results = json.loads(file.read_text())
        figures = next(check["figures"] for check in results["checks"] if check["name"] == CHECK)
        return WeightRates(figures[WRITES] * GB, figures[LOADS] * GB, results["machine"]["gpu"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise MeasuredError(
            f"{file} has no rates of weights ({error!r}): `make gpu-check JSON=file` measures them (check {CHECK})"
        ) from None
