"""Reads the options of a model's configuration that the learner needs: head, randomness, recurrence and RoPE.

Engines and transformers read these options automatically. The learner computes the head in chunks and packs rows, so it
has to read them, too. `tasks.model_check` compares the result with the model's own forward pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tasks.storage.model_folder import ModelError

SCALES = {"logit_scale": 1, "lm_head_multiplier": 1, "logits_scaling": -1}
"""Options that scale all logits, with an exponent for the value: 1 multiplies (Cohere, Falcon-H1), -1 divides
(Granite)."""
OTHER_SCALES = {("hyperclovax", "logits_scaling"): 1}
"""Exponents for model types that use an option of `SCALES` differently."""
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Options that bound all logits by `cap * tanh(logits / cap)` (Gemma 2, RecurrentGemma, xLSTM)."""
RANDOM = re.compile("drop|jitter")
"""Names of options that make a forward pass random in training: dropout, layer dropout, router noise."""
RECURRENT_LAYERS = {"conv", "linear_attention", "hybrid", "hybrid_sliding", "mamba", "recurrent"}
"""Layer types that carry a state from token to token, and so from one packed sequence into the next."""


@dataclass(frozen=True)
class LogitsShape:
    """The function from a head's product to logits: `cap * tanh(scale * (hidden @ weight.T + bias) / cap)`.

    Attributes:
        scale: factor on all logits.
        cap: bound of all logits, or None if they are not bounded.
    """

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> LogitsShape:
        """Return the function that the options of `config` define."""
        text = config.get_text_config()
        scale = 1.0
        for name, exponent in SCALES.items():
            if value := getattr(text, name, None):
                scale *= value ** OTHER_SCALES.get((text.model_type, name), exponent)
        caps = (getattr(text, name, None) for name in CAPS)
        return cls(scale=scale, cap=next((cap for cap in caps if cap), None))


def without_randomness(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return `config` with every dropout and router noise set to 0.

    The importance ratio compares two policies; dropout would add noise to both.
    """
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in vars(part).items():
            if RANDOM.search(name) and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


def freeze_constants(model: PreTrainedModel) -> None:
    """Freeze parameters that the model's class declares with `requires_grad=False`, such as a router's correction bias.

    transformers loses this flag when it loads a checkpoint. Weight decay would then shrink these parameters.
    """
    with torch.device("meta"):
        declared = AutoModelForCausalLM.from_config(model.config)
    constants = {name for name, parameter in declared.named_parameters() if not parameter.requires_grad}
    for name, parameter in model.named_parameters():
        if name in constants:
            parameter.requires_grad_(False)


def carries_state(model: PreTrainedModel) -> bool:
    """Return whether a layer carries a state, or a convolution, from token to token; rows then contain one sequence."""
    layers = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    return (
        bool(layers & RECURRENT_LAYERS)
        or model._is_stateful
        or any(isinstance(module, nn.Conv1d) for module in model.modules())
    )


def fix_rope(model: PreTrainedModel, longest: int | None = None) -> None:
    """Fix RoPE variants that depend on the length of a row to one choice for all rows, the same as in vLLM.

    transformers chooses by the longest sequence of a row, so that a sequence would depend on the other sequences in its
    row. With `longrope` vLLM uses the long factors for all sequences if its context exceeds the original window. With
    `dynamic` it scales nothing, which is correct up to the window.

    Args:
        model: changed in place.
        longest: number of tokens of the longest sequence that engines generate (`engine.max_model_len`). Optional. If
            None, the model's context.

    Raises:
        ModelError: RoPE is `dynamic`, and sequences can be longer than the window.
    """
    longest = longest or getattr(model.config.get_text_config(), "max_position_embeddings", 0)
    for module in model.modules():
        for layer_type, kind in _find_ropes(module):
            prefix, kinds = (f"{layer_type}_", {"layer_type": layer_type}) if layer_type else ("", {})
            config: Any = module.config
            parameters: dict[str, Any] = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
            if kind == "longrope" and longest > (window := parameters["original_max_position_embeddings"]):
                frequencies: Tensor = getattr(module, f"{prefix}inv_freq")
                long, _ = ROPE_INIT_FUNCTIONS[kind](config, frequencies.device, seq_len=window + 1, **kinds)
                module.register_buffer(f"{prefix}inv_freq", long, persistent=False)
            elif "dynamic" in kind and longest > (window := config.max_position_embeddings):
                raise ModelError(
                    f"model {model.config.name_or_path}: its RoPE (`dynamic`) changes with the length of a sequence "
                    f"beyond {window:,} tokens, which packed rows and engines cannot follow; lower "
                    f"actors.engine.max_model_len = {longest:,} to {window:,}"
                )


def _find_ropes(module: nn.Module) -> Iterator[tuple[str | None, str]]:
    """Yield the type of each RoPE of a module that depends on the length, by layer type; mark it as fixed."""
    kinds: Any = getattr(module, "rope_type", None)
    if isinstance(kinds, str):
        if kinds == "longrope" or "dynamic" in kinds:
            setattr(module, "rope_type", "default")  # noqa: B010 a plain attribute, which nn.Module does not declare
            yield None, kinds
    elif isinstance(kinds, dict):
        for layer_type, kind in list(kinds.items()):
            if kind == "longrope" or "dynamic" in kind:
                kinds[layer_type] = "default"
                yield layer_type, kind
