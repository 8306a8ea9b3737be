"""The cost of a model on GPUs: bytes, seconds and utilisation, from its shape and the datasheet.

Sizes are bytes, rates per second. `P` is the number of parameters, bfloat16 weights are 2 P bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError

GB = 1e9
WEIGHT = 2
"""Bytes of a weight, and of an element of the KV cache, in bfloat16."""
OPTIMIZER = 12
"""Bytes a parameter: float32 master weight, and AdamW's two moments (ZeRO, Rajbhandari et al. 2020, section 3.1)."""
GRADIENT = 4
"""Bytes a parameter: gradients are summed in float32 (`learner.deepspeed_config`); 2 in the ZeRO paper."""
MIXED = 4
"""Bytes a parameter of a reference policy that follows the policy: its exact weights, in float32 (`reference`)."""
LIVE_PARAMETERS = 1e9
"""Parameters of which DeepSpeed's ZeRO 3 holds the whole at a time, at most (`stage3_max_live_parameters`)."""
STORED = (22, 8)
"""Bytes a token and a layer that wait for the backward pass: for a hidden unit, and for a unit of the gated MLP.

Of the MLP, in 16 bits: gate, up projection, activation of the gate, product. Attention and norms were measured: 22 on
an H200 with torch 2.11 (`gpu_check`). Of an MLP without gates and with dropout it is 34 for a hidden unit in all
(Korthikanti et al. 2022, table 2).
"""
BACKWARD = (8, 6)
"""Bytes a token that the backward pass of one layer needs besides: for a hidden unit, and for a unit of the MLP."""
LOGITS = 12
"""Bytes a logit: the logits, their softmax and their gradient in float32."""


class ShapeError(MistakeError):
    """The shape of a model is not known, or is not that of a dense decoder."""


@dataclass(frozen=True)
class Gpu:
    """A GPU by its datasheet: memory in bytes, bandwidth in bytes/s, dense bfloat16 operations/s."""

    memory: float
    bandwidth: float
    flops: float


GPUS: Mapping[str, Gpu] = {
    "A100": Gpu(80 * GB, 2039 * GB, 312e12),
    "H100": Gpu(80 * GB, 3350 * GB, 989e12),
    "H200": Gpu(141 * GB, 4800 * GB, 989e12),
    "B200": Gpu(180 * GB, 8000 * GB, 2250e12),
    "L40S": Gpu(48 * GB, 864 * GB, 362e12),
    "L4": Gpu(24 * GB, 300 * GB, 121e12),
}
"""NVIDIA's datasheets, of the SXM form where there are several."""

OTHER_FORMS = frozenset({"PCIe", "PCIE", "NVL", "MIG", "40GB"})
"""Words in a GPU's name by which its memory or its clocks are other ones than those in `GPUS`."""


def gpu_called(name: str) -> Gpu | None:
    """Return the datasheet of the GPU that torch calls `name`, such as "NVIDIA H100 80GB HBM3"; None: not known."""
    words = set(re.split(r"[\s-]+", name))
    return None if words & OTHER_FORMS else next((gpu for known, gpu in GPUS.items() if known in words), None)


@dataclass(frozen=True)
class Architecture:
    """The shape of a dense decoder with a gated MLP.

    Attributes:
        window: tokens that layers with sliding-window attention attend to; None: there are no such layers.
        full_layers: layers that attend to all; None: every one.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool = False
    attention_bias: bool = False
    window: int | None = None
    full_layers: int | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Architecture:
        """From a model's `config.json`.

        Raises:
            KeyError, ValueError: it is not that of such a decoder.
        """
        for experts in ("num_experts", "num_local_experts", "n_routed_experts"):
            if (config.get(experts) or 0) > 1:
                raise ValueError(f"{experts} = {config[experts]}")
        heads = config["num_attention_heads"]
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        kinds = config.get("layer_types") or ["sliding_attention"] * config["num_hidden_layers"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
            window=window,
            full_layers=kinds.count("full_attention") if window else None,
        )

    @property
    def parameters(self) -> int:
        """Number of parameters, P."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys
        attention += (queries + 2 * keys) * self.attention_bias
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden

    def attended(self, context: float) -> float:
        """Return how many of `context` tokens a layer attends to and has in its cache, mean over layers."""
        if self.window is None or self.full_layers is None:
            return context
        windowed = self.layers - self.full_layers
        return (self.full_layers * context + windowed * min(context, self.window)) / self.layers

    def kv_cache(self, context: float) -> float:
        """Return the bytes of the KV cache of a sequence of `context` tokens."""
        return 2 * self.layers * self.kv_heads * self.head_size * WEIGHT * self.attended(context)

    def forward_flops(self, context: float) -> float:
        """Return the floating point operations of one token after `context` others.

        They are 2 for each parameter, and for attention 4 for each layer, unit of width and position.
        """
        return 2 * self.parameters + 4 * self.layers * self.heads * self.head_size * self.attended(context)


KNOWN: Mapping[str, Architecture] = {
    "SmolLM2-135M": Architecture(30, 576, 1536, 9, 3, 64, 49152, tied=True),
    "Olmo-3-7B": Architecture(32, 4096, 11008, 32, 32, 128, 100278, window=4096, full_layers=8),
    "Olmo-3-32B": Architecture(64, 5120, 27648, 40, 8, 128, 100278, window=4096, full_layers=16),
    "Qwen2.5-7B": Architecture(28, 3584, 18944, 28, 4, 128, 152064, attention_bias=True),
    "Qwen2.5-32B": Architecture(64, 5120, 27648, 40, 8, 128, 152064, attention_bias=True),
    "Qwen2.5-0.5B": Architecture(24, 896, 4864, 14, 2, 64, 151936, tied=True, attention_bias=True),
    "Qwen2.5-1.5B": Architecture(28, 1536, 8960, 12, 2, 128, 151936, tied=True, attention_bias=True),
    "Qwen2.5-Math-1.5B": Architecture(28, 1536, 8960, 12, 2, 128, 151936, tied=True, attention_bias=True),
    "deepseek-math-7b": Architecture(30, 4096, 11008, 32, 32, 128, 102400),
    "DeepSeek-R1-Distill-Qwen-1.5B": Architecture(28, 1536, 8960, 12, 2, 128, 151936, attention_bias=True),
}
"""Shapes of models, from their `config.json`, by the beginning of their name on the hub or of a package's file."""


def architecture(source: Mapping[str, Any], config: Path | None) -> Architecture:
    """Return the shape of the model that a recipe names, or that of a `config.json`.

    Raises:
        ShapeError: it is not known, or that of another kind of model.
    """
    if config is None and source.get("kind") == "folder":
        config = Path(source["path"]) / "config.json"
    if config is not None:
        try:
            return Architecture.of(json.loads(config.read_text()))
        except (OSError, ValueError, KeyError) as error:
            raise ShapeError(f"{config} is not the config.json of a dense decoder: {error!r}") from None
    name = str(source.get("name") or source.get("file") or "").rpartition("/")[2]
    for beginning in sorted(KNOWN, key=len, reverse=True):
        if name.startswith(beginning):
            return KNOWN[beginning]
    raise ShapeError(f"the shape of {name or 'this model'} is not known: give its config.json by --config")


def known_architecture(folder: Path) -> Architecture | None:
    """Return the shape of the model in a folder; None: it is not that of a dense decoder."""
    try:
        return architecture({"kind": "folder", "path": folder}, None)
    except ShapeError:
        return None


@dataclass(frozen=True)
class LearnerMemory:
    """Memory of one learner rank, bytes, by its use.

    Attributes:
        weights, gradients, optimizer: of the policy, as far as they are this rank's.
        gathered: whole parameters under ZeRO 3, for the modules that compute or will next.
        reference: weights of the reference policy, as far as they are this rank's.
        mixed: float32 copies of these, of a reference policy that follows the policy.
        activations: what waits for the backward pass, and what that needs besides for a layer.
        logits: what they need beyond the room of a layer's backward pass.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    reference: float
    mixed: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Sum of all uses."""
        return sum(vars(self).values())

    @property
    def states(self) -> float:
        """Bytes that stay from one step to the next: weights, the optimizer's state, and the reference policy."""
        return self.weights + self.optimizer + self.reference + self.mixed


def learner_memory(
    model: Architecture,
    *,
    ranks: int,
    zero_stage: int,
    micro_batch_tokens: int,
    logprob_chunk_tokens: int,
    checkpointing: bool,
    reference: bool,
    following: bool = False,
    frozen: bool = False,
) -> LearnerMemory:
    """Return the memory of a rank under ZeRO.

    Stage 1 shards the optimizer's state, 2 the gradients too, 3 the weights of policy and reference too, and gathers
    them for the modules that compute. Loading needs no more than that: it comes before gradients and activations.

    With `checkpointing`, activations are the inputs of all layers and everything of the one that is recomputed; logits
    count as far as they exceed what a layer needs for its backward pass, which begins when they are gone. Of a `frozen`
    model an adapter is trained, whose own state is left out.

    Args:
        model: the shape of policy and reference.
        ranks: of the learner.
        zero_stage, micro_batch_tokens, logprob_chunk_tokens, checkpointing: options of the learner.
        reference: whether there is a reference policy with weights of its own.
        following: whether that follows the policy by a share of less than 1.
        frozen: whether an adapter is trained in place of the weights.
    """
    referred = model.parameters if reference else 0
    share = {stage: 1 / ranks if zero_stage >= stage else 1.0 for stage in (1, 2, 3)}
    trained = 0 if frozen else model.parameters
    stored, backward = (
        micro_batch_tokens * (hidden * model.hidden + mlp * model.intermediate) for hidden, mlp in (STORED, BACKWARD)
    )
    inputs = WEIGHT * micro_batch_tokens * model.hidden * model.layers
    layer = stored + backward if checkpointing else backward
    return LearnerMemory(
        weights=WEIGHT * model.parameters * share[3],
        gradients=GRADIENT * trained * share[2],
        optimizer=OPTIMIZER * trained * share[1],
        gathered=WEIGHT * min(model.parameters, LIVE_PARAMETERS) if zero_stage == 3 and ranks > 1 else 0,
        reference=WEIGHT * referred * share[3],
        mixed=MIXED * referred * share[3] if following else 0,
        activations=layer + (inputs if checkpointing else stored * model.layers),
        logits=max(0, LOGITS * min(logprob_chunk_tokens, micro_batch_tokens) * model.vocabulary - layer),
    )


def tokens_before(lengths: Iterable[tuple[int, int]]) -> float:
    """Return the mean number of tokens before a token of a response, in prompt and response.

    Args:
        lengths: tokens of the prompt and of the response, of each response; at least one has a token.
    """
    before = total = 0
    for prompt, response in lengths:
        before += response * prompt + response * (response - 1) // 2
        total += response
    return before / total


def kv_room(model: Architecture, gpu: Gpu, *, gpus: int, utilization: float) -> float:
    """Return the bytes for the KV cache of one engine on `gpus`; below 0 where not even the weights fit."""
    return gpus * gpu.memory * utilization - WEIGHT * model.parameters


def decode_seconds(
    model: Architecture, gpu: Gpu, *, gpus: int, context: float, efficiency: float
) -> tuple[float, float]:
    """Return the seconds of a decoding step of n sequences, a + b n, as `(a, b)`.

    Reading the weights takes a; each sequence reads its KV cache of `context` tokens, or computes if that takes longer.
    """
    bandwidth, flops = gpus * gpu.bandwidth * efficiency, gpus * gpu.flops * efficiency
    reading = model.kv_cache(context) / bandwidth
    return WEIGHT * model.parameters / bandwidth, max(reading, model.forward_flops(context) / flops)


def learner_tokens_per_second(
    model: Architecture,
    gpu: Gpu,
    *,
    ranks: int,
    context: float,
    checkpointing: bool,
    mfu: float,
    reference: bool = False,
) -> float:
    """Return the trained tokens/s of the learner.

    A token takes the operations of three forward passes, of one more where activations are recomputed, and of one more
    with a reference policy.

    `context` is the mean number of tokens before one.
    """
    passes = 3 + checkpointing + reference
    return ranks * gpu.flops * mfu / (passes * model.forward_flops(context))


def model_flops_utilization(
    tokens_per_second: float,
    model: Architecture,
    gpu: Gpu,
    *,
    gpus: int,
    context: float,
    training: bool = False,
    frozen: bool = False,
) -> float:
    """Return the MFU: operations that the tokens need over those that the GPUs could do.

    The definition is PaLM's (Chowdhery et al. 2022, appendix B). Training takes three forward passes; with `frozen`
    weights, of which an adapter is trained, it takes two, since no gradient of them is computed.

    What is computed again does not count. `context` is the mean number of tokens before one.
    """
    passes = (2 if frozen else 3) if training else 1
    return passes * model.forward_flops(context) * tokens_per_second / (gpus * gpu.flops)


def model_bandwidth_utilization(
    tokens_per_second: float, model: Architecture, gpu: Gpu, *, gpus: int, sequences: float, context: float
) -> float:
    """Return the MBU: bytes that decoding must read over those that the GPUs could (Databricks 2023).

    A step makes a token of each of `sequences`, reads the weights once, and the KV cache of all of them.
    """
    steps = tokens_per_second / sequences
    read = WEIGHT * model.parameters + sequences * model.kv_cache(context)
    return steps * read / (gpus * gpu.bandwidth)
