"""Computes the cost of a model on GPUs from its shape and the datasheet: bytes, seconds and utilisation.

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
from tasks.storage.model_folder import EXPERTS

GB = 1e9
LEARNER_MFU = {2e9: 0.25, float("inf"): 0.3}
"""Fraction of a GPU's peak operations that the learner is expected to reach, by the largest number of parameters.

On an H200, 26% were measured with 1.5 billion parameters (`gpu_check`). Larger models have larger matrix products: with
the same kernels, 30% are computed for 32 billion.
"""
PREFILL_MFU = 0.4
"""Fraction of a GPU's peak operations that an engine is expected to reach when it computes prompts. Not measured."""
MBU = 0.6
"""Fraction of a GPU's peak bandwidth that an engine is expected to reach when it decodes. Not measured."""

WEIGHT = 2
"""Bytes of a weight, and of an element of the KV cache, in bfloat16."""


class ShapeError(MistakeError):
    """The shape of a model is not known, or `Architecture` cannot describe it."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's datasheet: memory in bytes, bandwidth in bytes/s, dense bfloat16 operations/s."""

    memory: float
    bandwidth: float
    flops: float


GPUS: Mapping[str, Gpu] = {
    "A100": Gpu(80 * GB, 2039 * GB, 312e12),
    "A100-40GB": Gpu(40 * GB, 1555 * GB, 312e12),
    "H100": Gpu(80 * GB, 3350 * GB, 989e12),
    "H200": Gpu(141 * GB, 4800 * GB, 989e12),
    "GH200": Gpu(96 * GB, 4000 * GB, 989e12),  # GH200's data sheet: HBM3 of 96 GB, 4 TB/s; torch: "NVIDIA GH200 480GB"
    "H20": Gpu(96 * GB, 4000 * GB, 148e12),  # HGX H20's data sheet
    "B200": Gpu(180 * GB, 8000 * GB, 2250e12),
    "B300": Gpu(288 * GB, 8000 * GB, 2250e12),  # HGX B300's: of 8 GPUs 2.3 TB, and 36 PFLOP/s with sparsity
    "L40S": Gpu(48 * GB, 864 * GB, 362e12),
    "L40": Gpu(48 * GB, 864 * GB, 181e12),  # its data sheet: 362 with sparsity
    "L4": Gpu(24 * GB, 300 * GB, 121e12),
    "A10": Gpu(24 * GB, 600 * GB, 125e12),  # its data sheet
    "A10G": Gpu(24 * GB, 600 * GB, 70e12),  # its data sheet, of AWS: fewer operations than A10
    # With sums in float32, which have half the rate of the same chips for data centers. The appendices of NVIDIA's
    # papers on the architectures GA102, Ada and RTX Blackwell: "Peak BF16 Tensor TFLOPS with FP32 Accumulate".
    "RTX-3090": Gpu(24 * GB, 936 * GB, 71e12),
    "RTX-4090": Gpu(24 * GB, 1008 * GB, 165.2e12),
    "RTX-5090": Gpu(32 * GB, 1792 * GB, 209.5e12),
    "RTX-6000-Ada": Gpu(48 * GB, 960 * GB, 364.2e12),  # its data sheet: 1,457 in 8 bits with sparsity, four times that
}
"""NVIDIA's data sheets, for the SXM form if there are several. A key is made of words of torch's name for the GPU."""

OTHER_FORMS = re.compile(r"PCIe|PCIE|NVL|MIG|Ti|D|Laptop|3e|64GB|144G|\d+[ACQ]")
"""Words in a GPU's name that indicate other memory, clocks or units than in `GPUS`, or a part of a GPU (MIG, vGPU)."""


def find_gpu(name: str) -> Gpu | None:
    """Return the data sheet of the GPU that torch calls `name`, such as "NVIDIA H100 80GB HBM3", or None.

    If the name has the words of several keys, the key with the most words counts.
    """
    words = _split_words(name)
    if any(map(OTHER_FORMS.fullmatch, words)):
        return None
    known = max(
        (key for key in GPUS if _split_words(key) <= words), key=lambda key: len(_split_words(key)), default=None
    )
    return GPUS[known] if known else None


def _split_words(name: str) -> set[str]:
    return set(re.split(r"[\s-]+", name))


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture: gated MLPs. A router chooses some of them for each token.

    Attributes:
        layers: number of layers with experts; other layers have a dense MLP.
        count: number of experts of such a layer.
        chosen: number of experts that are chosen for a token.
        intermediate: width of one expert.
        shared: width of the shared MLP that is used for every token, or 0 if there is none.
    """

    layers: int
    count: int
    chosen: int
    intermediate: int
    shared: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Experts | None:
        """Read the experts from a model's `config.json` (Qwen, Mixtral and DeepSeek names), or None if it has none.

        Raises:
            KeyError: the number of chosen experts is missing.
            ValueError: the order of layers with and without experts differs from these models.
        """
        count = next((config[name] for name in EXPERTS if config.get(name)), 0)
        if count < 2:
            return None
        if config.get("moe_layer_freq", 1) != 1:
            raise ValueError(f"moe_layer_freq = {config['moe_layer_freq']}")
        step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
        first = config.get("first_k_dense_replace", 0)
        layers = range(first, config["num_hidden_layers"])
        width = config.get("moe_intermediate_size") or config["intermediate_size"]
        return cls(
            layers=sum(layer not in dense and (layer + 1) % step == 0 for layer in layers),
            count=count,
            chosen=config["num_experts_per_tok"],
            intermediate=width,
            shared=config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * width,
        )

    @property
    def width(self) -> int:
        """Sum of the widths of all MLPs that are used for a token in a layer."""
        return self.chosen * self.intermediate + self.shared

    def read(self, sequences: float) -> float:
        """Return the number of a layer's experts that a decoding step of `sequences` reads, if each chooses randomly.

        A sequence does not choose an expert with a probability of 1 - chosen / count; an expert that none chooses is
        not read.
        """
        return self.count * (1 - (1 - self.chosen / self.count) ** sequences)


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder with gated MLPs, dense or with experts.

    Attributes:
        intermediate: width of the MLP in layers without experts.
        window: number of tokens that layers with sliding-window attention attend to, or None without such layers.
        full_layers: number of layers that attend to all tokens, or None for all layers.
        qk_norm: whether there is a norm over each head's queries, and another over its keys.
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
    qk_norm: bool = False
    experts: Experts | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """Read the shape from a model's `config.json`.

        Raises:
            KeyError, ValueError: the model is not such a decoder.
        """
        if config.get("kv_lora_rank"):  # DeepSeek's latent attention has a different cache and different operations
            raise ValueError(f"kv_lora_rank = {config['kv_lora_rank']}")
        if not isinstance(config["intermediate_size"], int):  # Gemma 3n has one for each layer
            raise ValueError(f"intermediate_size = {config['intermediate_size']}")
        heads = config["num_attention_heads"]
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        kinds = config.get("layer_types") or ["sliding_attention"] * config["num_hidden_layers"]
        if others := set(kinds) - {"sliding_attention", "full_attention"}:
            raise ValueError(f"layer_types has {min(others)}")
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", config.get("model_type") in ("qwen2", "qwen2_moe"))),
            window=window,
            full_layers=kinds.count("full_attention") if window else None,
            qk_norm=config.get("model_type") in ("qwen3", "qwen3_moe"),
            experts=Experts.from_config(config),
        )

    @property
    def parameters(self) -> int:
        """Number of parameters, P."""
        return round(self._count_parameters(self.experts.count if self.experts else 0))

    @property
    def active_parameters(self) -> int:
        """Number of parameters used for a token: all, but only the chosen ones of a layer's experts."""
        return round(self._count_parameters(self.experts.chosen if self.experts else 0))

    @property
    def active_parameters_of_layers(self) -> int:
        """Number of parameters used for a token, without the embedding and the head."""
        return self.active_parameters - self.embedding_parameters * (1 if self.tied else 2)

    @property
    def embedding_parameters(self) -> int:
        """Number of parameters of the embedding, and of the head."""
        return self.vocabulary * self.hidden

    def read_parameters(self, sequences: float) -> float:
        """Return the number of parameters that a decoding step of `sequences` is expected to read (`Experts.read`)."""
        return self._count_parameters(self.experts.read(sequences) if self.experts else 0)

    def _count_parameters(self, experts: float) -> float:
        """Return the number of parameters, counting this number of experts in every layer with experts."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        mixed = self.experts.layers if self.experts else 0
        dense = (self.layers - mixed) * 3 * self.hidden * self.intermediate
        sparse = mixed * self._count_mixture_parameters(experts)
        return self.layers * self._attention + dense + sparse + embeddings + self.hidden

    @property
    def _attention(self) -> int:
        """Number of parameters of a layer's attention and norms."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        projections = 2 * self.hidden * queries + 2 * self.hidden * keys + (queries + 2 * keys) * self.attention_bias
        return projections + 2 * self.head_size * self.qk_norm + 2 * self.hidden

    def _count_mixture_parameters(self, experts: float) -> float:
        """Return the number of parameters of a layer's router, of this number of experts, and of the shared MLP."""
        if self.experts is None:
            return 0
        return self.hidden * (self.experts.count + 3 * (experts * self.experts.intermediate + self.experts.shared))

    @property
    def largest_layer(self) -> int:
        """Number of parameters of the largest layer."""
        mlp = 3 * self.hidden * self.intermediate if self.experts is None or self.experts.layers < self.layers else 0
        mixture = self._count_mixture_parameters(self.experts.count) if self.experts else 0
        return self._attention + round(max(mlp, mixture))

    @property
    def largest_module(self) -> int:
        """Number of parameters of the largest layer, or of the embedding if that is larger."""
        return max(self.largest_layer, self.embedding_parameters)

    def count_attended(self, context: float) -> float:
        """Return how many of `context` tokens a layer attends to and has in its cache, averaged over layers."""
        if self.window is None or self.full_layers is None:
            return context
        windowed = self.layers - self.full_layers
        return (self.full_layers * context + windowed * min(context, self.window)) / self.layers

    def compute_kv_cache_bytes(self, context: float) -> float:
        """Return the bytes of the KV cache of a sequence of `context` tokens."""
        return 2 * self.layers * self.kv_heads * self.head_size * WEIGHT * self.count_attended(context)

    @property
    def flops_of_a_pair(self) -> int:
        """Number of operations of a layer's attention for a token and another that it attends to.

        There are 2 for each unit of width of a score, and 2 for each unit that is added to the layer's result.
        """
        return 4 * self.heads * self.head_size

    def forward_flops(self, context: float) -> float:
        """Return the number of floating point operations for one token after `context` others.

        It is 2 for each parameter used and, for attention, 4 for each layer, unit of width and position.
        """
        return 2 * self.active_parameters + self.layers * self.flops_of_a_pair * self.count_attended(context)


_QWEN3_EXPERTS = Experts(layers=48, count=128, chosen=8, intermediate=768)

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
    "Qwen3-30B-A3B": Architecture(48, 2048, 6144, 32, 4, 128, 151936, qk_norm=True, experts=_QWEN3_EXPERTS),
}
"""Shapes of models, from their `config.json`, by the prefix of their name on the hub or of a package's file."""


def learner_mfu(model: Architecture) -> float:
    """Return the fraction of a GPU's peak operations that the learner is expected to reach (`LEARNER_MFU`)."""
    return next(mfu for most, mfu in LEARNER_MFU.items() if model.parameters <= most)


def read_architecture(source: Mapping[str, Any], config: Path | None) -> Architecture:
    """Return the shape of the model that a recipe names, or the shape in a `config.json`.

    Raises:
        ShapeError: the shape is not known, or `Architecture` cannot describe it.
    """
    if config is None and source.get("kind") == "folder":
        config = Path(source["path"]) / "config.json"
    if config is not None:
        try:
            return Architecture.from_config(json.loads(config.read_text()))
        except (OSError, ValueError, KeyError) as error:
            raise ShapeError(f"{config} is not the config.json of a decoder that can be planned: {error!r}") from None
    name = str(source.get("name") or source.get("file") or "").rpartition("/")[2]
    for beginning in sorted(KNOWN, key=len, reverse=True):
        if name.startswith(beginning):
            return KNOWN[beginning]
    raise ShapeError(f"the shape of {name or 'this model'} is not known: give its config.json by --config")


def find_known_architecture(source: Mapping[str, Any]) -> Architecture | None:
    """Return the shape of the model that a recipe names, or None if `read_architecture` cannot tell it."""
    try:
        return read_architecture(source, None)
    except ShapeError:
        return None


def find_architecture(folder: Path) -> Architecture | None:
    """Return the shape of the model in a folder, or None if `Architecture` cannot describe it."""
    return find_known_architecture({"kind": "folder", "path": folder})


def compute_tokens_before(lengths: Iterable[tuple[int, int]]) -> float:
    """Return the mean number of tokens before a token of a response, in prompt and response.

    Args:
        lengths: numbers of tokens of prompt and response, for each response; at least one response has a token.
    """
    before = total = 0
    for prompt, response in lengths:
        before += response * prompt + response * (response - 1) // 2
        total += response
    return before / total


def compute_kv_room(model: Architecture, gpu: Gpu, *, gpus: int, utilization: float) -> float:
    """Return the number of bytes for the KV cache of one engine on `gpus`, below 0 if not even the weights fit."""
    return gpus * gpu.memory * utilization - WEIGHT * model.parameters


def decode_seconds(
    model: Architecture, gpu: Gpu, *, gpus: int, context: float, efficiency: float, sequences: float
) -> tuple[float, float]:
    """Return the seconds of a decoding step of n sequences, a + b n, as `(a, b)`.

    Reading the weights takes a. Each sequence takes b, to read its KV cache of `context` tokens, or to compute if that
    takes longer. For a mixture, the experts that `sequences` sequences choose are read; fewer sequences would read
    fewer.
    """
    bandwidth, flops = gpus * gpu.bandwidth * efficiency, gpus * gpu.flops * efficiency
    reading = model.compute_kv_cache_bytes(context) / bandwidth
    weights = WEIGHT * model.read_parameters(sequences) / bandwidth
    return weights, max(reading, model.forward_flops(context) / flops)


def estimate_learner_tokens_per_second(
    model: Architecture,
    gpu: Gpu,
    *,
    ranks: int,
    context: float,
    checkpointing: bool,
    mfu: float,
    reference: bool = False,
) -> float:
    """Return the number of tokens that all `ranks` of the learner together train on in a second.

    A token needs the operations of three forward passes, one more if activations are recomputed, and one more with a
    reference policy.

    `context` is the mean number of tokens before a token.
    """
    passes = 3 + checkpointing + reference
    return ranks * gpu.flops * mfu / (passes * model.forward_flops(context))


def compute_flops_utilization(
    tokens_per_second: float,
    model: Architecture,
    gpu: Gpu,
    *,
    gpus: int,
    context: float,
    training: bool = False,
    frozen: bool = False,
) -> float:
    """Return the MFU: operations that the tokens need, divided by the GPUs' peak.

    The definition is PaLM's (Chowdhery et al. 2022, appendix B). Training needs the operations of three forward passes,
    or of two with `frozen` weights and an adapter, since no gradients of frozen weights are computed.

    Recomputation does not count. `context` is the mean number of tokens before a token.
    """
    passes = (2 if frozen else 3) if training else 1
    return passes * model.forward_flops(context) * tokens_per_second / (gpus * gpu.flops)


def compute_bandwidth_utilization(
    tokens_per_second: float, model: Architecture, gpu: Gpu, *, gpus: int, sequences: float, context: float
) -> float:
    """Return the MBU: bytes that decoding must read, divided by the GPUs' peak (Databricks 2023).

    A step generates one token for each of `sequences`. It reads the weights once, only the chosen ones of the experts,
    and the KV cache of all sequences.
    """
    steps = tokens_per_second / sequences
    read = WEIGHT * model.read_parameters(sequences) + sequences * model.compute_kv_cache_bytes(context)
    return steps * read / (gpus * gpu.bandwidth)
