"""Lists the keys of DeepSpeed's configuration that are passed through, and the rejected keys with the reasons.

DeepSpeed ignores unknown top-level keys of its configuration, so `deepspeed_keys.yaml` lists the names, as of the
version that this project pins. A test compares them with the installed DeepSpeed, as far as it has a list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tasks.config.loading import Config, close_match, read_yaml

VERSION = "0.19.8"
"""Version of DeepSpeed whose keys are listed."""


class _Keys(Config):
    """The content of `deepspeed_keys.yaml`."""

    top: frozenset[str]
    zero: frozenset[str]
    zero_below_3: frozenset[str]
    zero_3: frozenset[str]
    sizes: frozenset[str]
    mappings: frozenset[str]
    inner: dict[str, frozenset[str]]
    refused: dict[str, list[str]]


_KEYS = _Keys.model_validate(read_yaml(Path(__file__).with_suffix(".yaml")))
INNER_KEYS = {"zero_optimization": _KEYS.zero | _KEYS.zero_below_3 | _KEYS.zero_3, **_KEYS.inner}
"""Keys that are passed through in nested mappings of DeepSpeed's configuration, by the path of the mapping."""
REFUSED = {name: reason for reason, names in _KEYS.refused.items() for name in names}
"""Keys that DeepSpeed knows but that are rejected, by their path, each with the reason."""
_OFF = {"zero_hpz_partition_size": 1}
"""Values without an effect, for recipes that extend one with such a key: they cannot remove it."""
_PRESCALED = {"prescale_gradients": False, "gradient_predivide_factor": 1.0}
"""Keys about dividing gradients before they are summed over ranks, with DeepSpeed's defaults."""


def check_keys(keys: Mapping[str, Any], zero_stage: int) -> None:
    """Check keys of DeepSpeed's configuration that are merged into the learner's.

    Args:
        keys: the keys, as in DeepSpeed's own JSON.
        zero_stage: the ZeRO stage that the learner uses.

    Raises:
        ValueError: DeepSpeed has no such key or refuses its value, the key is rejected, or it has no effect at this
            stage.
    """
    _check(keys, "", _KEYS.top)
    zero = keys.get("zero_optimization", {})
    for names, fits, stages in ((_KEYS.zero_3, zero_stage == 3, "3"), (_KEYS.zero_below_3, zero_stage < 3, "1 and 2")):
        for name, value in zero.items():
            if name in names and not fits and _OFF.get(name) != value:
                raise ValueError(
                    f"zero_optimization.{name}: it has an effect only at stages {stages} of ZeRO, and "
                    f"learner.zero_stage is {zero_stage}"
                )
    if zero_stage == 1 and "communication_data_type" in keys:
        raise ValueError(
            "communication_data_type: with learner.zero_stage = 1 the sums of all micro-batches are reduced, which are "
            "float32 and must not be rounded"
        )
    for name, value in zero.items():
        _check_value(name, value)
    if zero_stage == 1 and zero.get("overlap_comm"):
        raise ValueError(
            "zero_optimization.overlap_comm: DeepSpeed has no overlap for the learner's rows at stage 1 of ZeRO: set "
            "learner.zero_stage to 2"
        )
    prescaled = [name for name, usual in _PRESCALED.items() if keys.get(name, usual) != usual]
    if prescaled and zero_stage > 1 and zero.get("reduce_scatter", True):
        raise ValueError(
            f"{prescaled[0]}: DeepSpeed supports it at stage {zero_stage} of ZeRO only with "
            "zero_optimization.reduce_scatter: false"
        )
    for name in ("offload_optimizer", "offload_param"):
        device = zero.get(name, {}).get("device", "cpu")
        if device not in ("cpu", "none"):
            raise ValueError(f"zero_optimization.{name}.device = {device!r}: {REFUSED['aio']}")


def _check_value(name: str, value: Any) -> None:
    """Check the value of a key of `zero_optimization`, which is a size, a mapping, or true or false."""
    if name in _KEYS.sizes:
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)
        if not whole:
            raise ValueError(f"zero_optimization.{name} = {value!r}: must be a whole number, at least 0")
    elif name not in _KEYS.mappings and not isinstance(value, bool):
        raise ValueError(f"zero_optimization.{name} = {value!r}: must be true or false")


def _check(keys: Any, path: str, known: Collection[str]) -> None:
    if not isinstance(keys, Mapping):
        raise ValueError(f"{path} = {keys!r}: must be a mapping")
    for name, value in keys.items():
        full = f"{path}.{name}".lstrip(".")
        if full in REFUSED:
            raise ValueError(f"{full} is not passed to DeepSpeed: {REFUSED[full]}; leave it out")
        if name not in known:
            refused = {key.rpartition(".")[2] for key in REFUSED if key.rpartition(".")[0] == path}
            raise ValueError(f"DeepSpeed {VERSION} has no key {full!r}{close_match(name, {*known, *refused})}")
        if full in INNER_KEYS:
            _check(value, full, INNER_KEYS[full])
