"""Computes digests of everything that a response depends on besides its prompt and the model, for the rollout cache."""

from __future__ import annotations

from typing import Any

from tasks.config.cache_keys import result_options
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.lineage.code_digest import code_digest
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.tables.schemas import json_digest

ENGINE, SERVER, TOKENISER = (
    "tasks.generation.engine",
    "tasks.rollouts.policy_server",
    "tasks.generation.chat_template",
)
"""The modules that sample from an engine and from a server, and the module that tokenises prompts for both.

With the modules that they import, and the pinned versions of vLLM, transformers and others that these import, they are
all code that a response to a single prompt depends on."""
EPISODES = "tasks.rollouts.episodes"
"""The module that plays episodes, with the same for the parts of the environments that all of them share."""
UNRELATED = (
    "tasks.config.loading",  # how options are read; their values are hashed
    "tasks.config.fields",
    "tasks.config.connection",
    "tasks.config.descriptions",
    "tasks.environments",  # in the keys of episodes (`compute_environment_digest`)
    "tasks.failures",  # classes of errors
    "tasks.generation.adapter",  # weight updates of training; the stages that cache responses have none
    "tasks.generation.engine_output",  # error messages
    "tasks.generation.engine_stats",  # counters
    "tasks.generation.scheduler",
    "tasks.generation.weight_transfer",
    "tasks.storage.tensor_digest",
    "tasks.tables",  # how rows are stored; the cache has another version (`FORMAT`)
    "tasks.verifiers",  # in the keys of verdicts (`JudgedBy`) and of episodes
)
"""Code that the modules import and that does not change a response."""


def resolve_dtype(engine: EngineConfig) -> precision.Dtype | None:
    """Return the data type of an engine on this machine, or None for a server, whose type is unknown."""
    return None if engine.server is not None else precision.resolve(engine.dtype, gpu=has_gpu())


def describe_generation(engine: EngineConfig, sampling: SamplingConfig) -> dict[str, Any]:
    """Return everything except prompt and model that decides a response, as JSON values: options, data type and code.

    The number of samples and the context length, which every prompt fits, are not included. The data type is the one
    that `auto` means on this machine, so that machines with different types do not share responses. A server has its
    own engine, whose version and data type are unknown: only the code that sends its requests is included.
    """
    served = engine.server is not None
    return {
        "sampling": {name: value for name, value in result_options(sampling).items() if name != "samples"},
        "dtype": resolve_dtype(engine),
        "seed": engine.seed,
        "vllm": engine.vllm,
        "server": engine.server and engine.server.model,
        "code": [code_digest(module, UNRELATED) for module in (SERVER if served else ENGINE, TOKENISER)],
    }


def compute_environment_digest(environment: str) -> str:
    """Return the digest of the project's code that plays the episodes of an environment (column `environment`).

    The digests of a user's files are in the column itself.
    """
    spec = EnvironmentSpec.from_json(environment)
    assert spec is not None
    paths = [spec.path, *(tool["path"] for tool in spec.tools)]
    modules = {EPISODES, *(path.rpartition(".")[0] for path in paths if path.startswith("tasks."))}
    codes = [code_digest(module, ("tasks.verifiers",)) for module in sorted(modules)]
    return json_digest(codes)
