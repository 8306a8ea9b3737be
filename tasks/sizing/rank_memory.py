"""Computes the memory of a learner rank, by use: ZeRO's formula, and measured activations.

    stage   weights and reference   gradients        optimizer
    1       2 P                     4 P              12 P / ranks
    2       2 P                     4 P / ranks      12 P / ranks
    3       2 P / ranks             4 P / ranks      12 P / ranks     and the parameters that are gathered

`P` is the number of parameters, including all experts. Data that is offloaded to main memory does not count. Gradients
are only offloaded at stage 3, since DeepSpeed adds them up on the GPU at the other stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import WEIGHT, Architecture

OPTIMIZER = 12
"""Bytes per parameter: float32 master weight, and AdamW's two moments (ZeRO, Rajbhandari et al. 2020, section 3.1)."""
GRADIENT = 4
"""Bytes per parameter: gradients are summed in float32 (`learner.deepspeed_config`); 2 in the ZeRO paper."""
MIXED = 4
"""Bytes per parameter of a reference policy that follows the policy: its exact weights, in float32 (`reference`)."""
LIVE_PARAMETERS = 1e9
"""Largest number of whole parameters in memory at a time with DeepSpeed's ZeRO 3 (`stage3_max_live_parameters`)."""
STORED = (22, 8)
"""Bytes stored for the backward pass, per token and layer: for a hidden unit, and for a unit of the gated MLP.

The MLP stores, in 16 bits: gate, up projection, activation of the gate, product. Attention and norms were measured: 22
on an H200 with torch 2.11 (`gpu_check`). With an MLP without gates and with dropout, the total is 34 for a hidden unit
(Korthikanti et al. 2022, table 2).
"""
BACKWARD = (8, 6)
"""Additional bytes per token for the backward pass of one layer: for a hidden unit, and for a unit of the MLP."""
ROUTED = (4, 4)
"""Bytes per hidden unit of a token and per expert chosen for it: stored bytes, and additional bytes in the backward
pass.

In 16 bits, the expert's input and output are stored (measured, with the grouped kernel that transformers uses by
default), and the backward pass has a gradient of both.
"""
ON_THE_WAY = 2
"""Number of layers whose inputs are on the GPU at a time with offloading: one is computed, and one is copied."""
LOGITS = 12
"""Bytes per logit: the logits, their softmax and their gradient in float32. A compiled head needs less (`logits`), but
that was not measured on a GPU."""
FLOAT32_HEAD = 8
"""Bytes per weight of a head that computes in float32 (`head_dtype`): a copy of the weight, and its gradient."""


@dataclass(frozen=True)
class LearnerMemory:
    """Memory of one learner rank, bytes, by use.

    Attributes:
        weights, gradients, optimizer: this rank's shards for the policy.
        gathered: whole parameters with ZeRO 3, for the modules that are computed now or next.
        copies: this rank's part of the copy of the weights that each group of ranks has with ZeRO 3 for the backward
            pass (`zero_hpz_partition_size`).
        reference: this rank's shard of the reference policy's weights.
        mixed: float32 copies of the reference weights, if the reference policy follows the policy.
        activations: stored activations, and what the backward pass needs in addition for one layer.
        logits: memory of logits, and of a head in float32, that exceeds the memory of a layer's backward pass.
        offloaded: what the rank keeps in main memory instead. It is not part of the total.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    copies: float
    reference: float
    mixed: float
    activations: float
    logits: float
    offloaded: float = 0.0

    @property
    def uses(self) -> dict[str, float]:
        """The bytes of the rank's memory, by use."""
        return {name: size for name, size in vars(self).items() if name != "offloaded"}

    @property
    def total(self) -> float:
        """Sum of all uses."""
        return sum(self.uses.values())

    @property
    def states(self) -> float:
        """Bytes that stay from one step to the next: weights, the optimizer's state, and the reference policy."""
        return self.weights + self.optimizer + self.reference + self.mixed


def estimate_learner_memory(model: Architecture, config: TrainingConfig, *, gpu: bool = True) -> LearnerMemory:
    """Return the memory of a rank of a recipe with ZeRO.

    Stage 1 shards the optimizer's state, 2 also the gradients, 3 also the weights of policy and reference, which it
    gathers for the current modules. Loading does not need more: it comes before gradients and activations.

    With gradient checkpointing, activations are the inputs of the layers that are recomputed, all activations of the
    other layers, and all activations of the layer that is recomputed now. Logits count as far as they exceed what a
    layer needs for its backward pass, which begins after they are freed. With `lora` the model is frozen and an adapter
    is trained; the adapter's state is not counted.

    Args:
        model: the shape of policy and reference.
        config: the run's options.
        gpu: whether ranks have GPUs; without them, main memory also contains what is offloaded.
    """
    learner, kl, ranks, zero_stage = (
        config.learner,
        config.objective.kl,
        config.learner.ranks,
        config.learner.zero_stage,
    )
    tokens, group = learner.micro_batch_tokens, learner.ranks_with_a_copy
    referred = model.parameters if kl.beta > 0 and config.lora is None else 0
    share = {stage: 1 / ranks if zero_stage >= stage else 1.0 for stage in (1, 2, 3)}
    trained = 0 if config.lora else model.parameters
    most = learner.deepspeed.get("zero_optimization", {}).get("stage3_max_live_parameters", LIVE_PARAMETERS)
    live = min(model.parameters, max(most, model.largest_layer))
    every = learner.checkpoint_every_n_layers
    recomputed = range(0, model.layers, every) if learner.gradient_checkpointing else range(0)
    layers = _list_layers(model, tokens, recomputed)
    # the backward pass begins with the last layer, when everything is stored
    last_recomputed = model.layers - 1 in recomputed
    of_one = max(layer.backward + (layer.stored if last_recomputed else 0) for layer in layers)
    of_others = sum(layer.count * layer.stored for layer in layers)
    on_gpu = min(ON_THE_WAY, len(recomputed)) if gpu and learner.offload_activations else len(recomputed)
    inputs = WEIGHT * tokens * model.hidden * (len(recomputed) - on_gpu)  # in main memory
    activations = of_one + of_others + WEIGHT * tokens * model.hidden * on_gpu
    logits: float = LOGITS * min(learner.chunk_tokens(gpu=gpu), tokens) * model.vocabulary
    if config.head_dtype == "float32":
        logits += FLOAT32_HEAD * model.vocabulary * model.hidden
    gradients, optimizer = GRADIENT * trained * share[2], OPTIMIZER * trained * share[1]
    offloaded: float = inputs
    if gpu and learner.offloads_optimizer:
        offloaded += (GRADIENT + OPTIMIZER) * trained * share[1]  # at stages 1 and 2 the gradients are a copy
        gradients, optimizer = (0.0 if zero_stage == 3 else gradients), 0.0
    return LearnerMemory(
        weights=WEIGHT * model.parameters * share[3],
        gradients=gradients,
        optimizer=optimizer,
        gathered=WEIGHT * live if zero_stage == 3 and ranks > 1 else 0,
        copies=WEIGHT * model.parameters / min(group, ranks) if group > 1 else 0,
        reference=WEIGHT * referred * share[3],
        mixed=MIXED * referred * share[3] if (kl.sync_alpha or 1) < 1 else 0,
        activations=activations,
        logits=max(0, logits - of_one),
        offloaded=offloaded,
    )


@dataclass(frozen=True)
class _Layer:
    """Activation bytes of equal layers: stored by the forward pass, and added by the backward pass.

    `count` is the number of layers that are not recomputed.
    """

    count: int
    stored: float
    backward: float


def _list_layers(model: Architecture, tokens: int, recomputed: range) -> list[_Layer]:
    """Return the kinds of layers of the model: without experts, which come first, and with experts."""
    experts = model.experts
    dense = model.layers - (experts.layers if experts else 0)
    kinds = [(range(dense), model.intermediate, 0)]
    if experts:
        kinds.append((range(dense, model.layers), experts.width, experts.chosen))
    return [
        _Layer(
            sum(number not in recomputed for number in numbers),
            *(
                tokens * ((hidden + routed * chosen) * model.hidden + mlp * width)
                for hidden, mlp, routed in zip(STORED, BACKWARD, ROUTED, strict=True)
            ),
        )
        for numbers, width, chosen in kinds
        if numbers
    ]
