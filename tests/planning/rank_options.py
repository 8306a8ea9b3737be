"""Options of a learner rank whose memory tests compute, by short names."""

from tasks.recipe.run import TrainingConfig


def rank_options(*, reference=False, following=False, frozen=False, offload_optimizer=False, **options):
    """Options of a run whose learner has the given options.

    Args:
        reference: whether there is a reference policy with its own weights; `following` moves it by half of the way.
        frozen: whether an adapter is trained instead of the weights.
        offload_optimizer: whether DeepSpeed keeps the optimizer's state in main memory.
        options: `float32_head`; `live_parameters` and `group` of ZeRO 3; `checkpointing`; others of the learner.
    """
    keys = {"offload_optimizer": {"device": "cpu"}} if offload_optimizer else {}
    for key, name in {"live_parameters": "stage3_max_live_parameters", "group": "zero_hpz_partition_size"}.items():
        if key in options:
            keys[name] = options.pop(key)
    kl = {"beta": float(reference), **({"sync_every": 1, "sync_alpha": 0.5} if following else {})}
    head = "float32" if options.pop("float32_head", False) else "model"
    learner = {"gradient_checkpointing": options.pop("checkpointing"), **options}
    return TrainingConfig.model_validate(
        {
            "learner": learner | ({"deepspeed": {"zero_optimization": keys}} if keys else {}),
            "objective": {"kl": kl},
            "head_dtype": head,
            "lora": {"rank": 16, "alpha": 32} if frozen else None,
        }
    )
