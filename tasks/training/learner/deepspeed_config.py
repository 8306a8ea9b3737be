"""Builds DeepSpeed's configuration for a learner."""

from __future__ import annotations

from typing import Any

from tasks.config.loading import merge
from tasks.recipe.run import TrainingConfig


def make_deepspeed_config(config: TrainingConfig, dtype: str) -> dict[str, Any]:
    """Return DeepSpeed's configuration: `dtype` with float32 master weights, ZeRO, AdamW, gradient clipping.

    The keys of `learner.deepspeed` are merged into it.

    The trainer ends a step's gradient accumulation itself (`managed_gradient_accumulation` is off), because the number
    of micro-batches differs from step to step. Gradients are summed in float32: bfloat16 would round away what later
    micro-batches add.

    Args:
        config: the run's options.
        dtype: `bfloat16` or `float32`, the type of weights and activations.
    """
    optimizer = config.optimizer
    ours = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "bf16": {"enabled": dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        # ZeRO 1 reduces the float32 sums, which must not be rounded; 2 and 3 reduce the gradients of each micro-batch
        **({"communication_data_type": "fp32"} if config.learner.zero_stage == 1 else {}),
        "zero_optimization": {
            "stage": config.learner.zero_stage,
            # stage 3 would gather parameters and reduce gradients on the stream that computes
            **({"overlap_comm": False} if config.learner.zero_stage < 3 else {}),
            "stage3_param_persistence_threshold": config.learner.persistence_threshold,
        },
        "gradient_clipping": optimizer.max_grad_norm,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": optimizer.learning_rate,
                "betas": [optimizer.beta1, optimizer.beta2],
                "eps": optimizer.eps,
                "weight_decay": optimizer.weight_decay,
                "torch_adam": True,
                "fused": True,
            },
        },
    }
    return merge(ours, config.learner.deepspeed)
