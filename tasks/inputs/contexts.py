"""Checks that the engines of a run have no longer context than its models, before anything is paid for."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.config.loading import SpecError
from tasks.generation.config import EngineConfig
from tasks.generation.models import HubModel, LocalFolder, ModelSpec
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.sourcing.hub import COMMIT

logger = logging.getLogger(__name__)

LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""Environment variable that makes vLLM accept any context."""


def check_contexts(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Check that every model allows the context of the engines that load it, as far as its config.json can be read.

    An engine of the evaluation starts after training, and would fail then.

    Raises:
        SpecError: `max_model_len` of an engine is more than the model's longest sequence.
    """
    of_evaluation = {"evaluation: engine": evaluation.engine}
    of_all = {"training: actors.engine": training.actors.engine, **of_evaluation}
    if data.difficulty is not None:
        of_all |= {f"{data.name}: difficulty.engine": data.difficulty.engine}
    _check(training.model, of_all)
    for model in evaluation.policies.values():
        _check(model, of_evaluation)


def _check(model: ModelSpec, engines: Mapping[str, EngineConfig]) -> None:
    longest = find_longest_sequence(_read_configuration(model))
    if longest is None or os.environ.get(LONGER) not in (None, "", "0"):
        return
    for where, engine in engines.items():
        if engine.server is None and "hf_overrides" not in engine.vllm and engine.max_model_len > longest:
            raise SpecError(
                f"{where}.max_model_len = {engine.max_model_len}: {model.name} is limited to {longest} tokens (its "
                "config.json); lower it, and the lengths of responses with it, or extend the model with "
                f"{where.partition(': ')[2]}.vllm.hf_overrides"
            )


def find_longest_sequence(configuration: Mapping[str, Any]) -> int | None:
    """Return the largest number of tokens of a sequence that vLLM accepts for a model, or None if it is not known.

    Args:
        configuration: the content of the model's config.json. Scaled RoPE extends the sequence by its factor; of
            several kinds of layers the largest counts.
    """
    shape = configuration.get("text_config", configuration)
    positions = shape.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    rope = shape.get("rope_parameters") or shape.get("rope_scaling")
    kinds = [rope, *rope.values()] if isinstance(rope, Mapping) else []
    longest = [float(positions)]
    for kind in kinds:
        if isinstance(kind, Mapping):
            original = max(positions, kind.get("original_max_position_embeddings") or 0)
            longest.append(original * (kind.get("factor") or 1))
    return int(max(longest))


def _read_configuration(model: ModelSpec) -> Mapping[str, Any]:
    """Return a model's config.json, or an empty mapping if it cannot be read before the model is loaded."""
    source = model.source
    try:
        if isinstance(source, LocalFolder):
            content = json.loads((Path(source.path).expanduser() / "config.json").read_text())
        elif isinstance(source, HubModel):
            content = json.loads(_download_configuration(source).read_text())
        else:
            return {}
    except (OSError, ValueError) as error:
        logger.info("the context of %s is not known before it is loaded: %s", model.name, error)
        return {}
    return content if isinstance(content, Mapping) else {}


def _download_configuration(source: HubModel) -> Path:
    """Return the path of a model's config.json. Raises `OSError` if the hub does not give it.

    As in `resolve_revision`, a commit needs no network: its file is only read if it was downloaded before.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        is_commit = COMMIT.fullmatch(source.revision) is not None
        return Path(hf_hub_download(source.name, "config.json", revision=source.revision, local_files_only=is_commit))
    except HfHubHTTPError as error:
        raise OSError(str(error)) from None
