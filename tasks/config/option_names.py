"""Finds the option that a user means by an unknown key: a nested one, or an option with another name in TRL or verl."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from tasks.config.nested_values import leaves

SIMILAR = 0.75
"""Smallest similarity of a key to the name of a nested option that is suggested, a ratio of difflib's."""
MOST = 3
"""Maximum number of options that are suggested for one key."""

OF_TRL = {
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.eps",
    "delta": "objective.dual_clip",
    "epsilon": "objective.clip_low",
    "epsilon_high": "objective.clip_high",
    "eval_steps": "validation.every",
    "generation_batch_size": "groups_per_step",
    "gradient_accumulation_steps": "groups_per_step",
    "loss_type": "objective.aggregation",
    "lr_scheduler_type": "optimizer.schedule",
    "mask_truncated_completions": "objective.shaping.filter_truncated",
    "max_completion_length": "sampling.max_tokens",
    "max_steps": "steps",
    "num_completions_to_print": "log_completions",
    "num_generations": "sampling.samples",
    "num_iterations": "updates.epochs",
    "per_device_train_batch_size": "groups_per_step",
    "ref_model_mixup_alpha": "objective.kl.sync_alpha",
    "ref_model_sync_steps": "objective.kl.sync_every",
    "report_to": "trackers",
    "save_steps": "checkpoint_every",
    "scale_rewards": "objective.normalization",
    "steps_per_generation": "updates.minibatches",
    "use_liger_kernel": "learner.liger",
    "vllm_gpu_memory_utilization": "actors.engine.gpu_memory_utilization",
    "vllm_importance_sampling_cap": "objective.correction.max",
    "vllm_importance_sampling_correction": "objective.correction",
    "vllm_max_model_length": "actors.engine.max_model_len",
    "vllm_tensor_parallel_size": "actors.engine.tensor_parallel_size",
}
"""Options of TRL's `GRPOConfig` by their names there, and the options of a recipe that set the same."""

OF_VERL = {
    "actor_rollout_ref.actor.clip_ratio": "objective.clip_low",
    "actor_rollout_ref.actor.clip_ratio_c": "objective.dual_clip",
    "actor_rollout_ref.actor.clip_ratio_high": "objective.clip_high",
    "actor_rollout_ref.actor.clip_ratio_low": "objective.clip_low",
    "actor_rollout_ref.actor.entropy_coeff": "objective.entropy_coefficient",
    "actor_rollout_ref.actor.grad_clip": "optimizer.max_grad_norm",
    "actor_rollout_ref.actor.kl_loss_coef": "objective.kl.beta",
    "actor_rollout_ref.actor.kl_loss_type": "objective.kl.estimator",
    "actor_rollout_ref.actor.loss_agg_mode": "objective.aggregation",
    "actor_rollout_ref.actor.optim.lr": "optimizer.learning_rate",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "optimizer.warmup_steps",
    "actor_rollout_ref.actor.optim.warmup_style": "optimizer.schedule",
    "actor_rollout_ref.actor.optim.weight_decay": "optimizer.weight_decay",
    "actor_rollout_ref.actor.ppo_epochs": "updates.epochs",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "learner.micro_batch_tokens",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "updates.minibatches",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "learner.gradient_checkpointing",
    "actor_rollout_ref.model.path": "model.source",
    "actor_rollout_ref.model.use_liger": "learner.liger",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "actors.engine.gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_model_len": "actors.engine.max_model_len",
    "actor_rollout_ref.rollout.max_num_seqs": "actors.engine.max_num_seqs",
    "actor_rollout_ref.rollout.n": "sampling.samples",
    "actor_rollout_ref.rollout.temperature": "sampling.temperature",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "actors.engine.tensor_parallel_size",
    "actor_rollout_ref.rollout.top_k": "sampling.top_k",
    "actor_rollout_ref.rollout.top_p": "sampling.top_p",
    "algorithm.adv_estimator": "objective.advantage",
    "algorithm.norm_adv_by_std_in_grpo": "objective.normalization",
    "data.max_response_length": "sampling.max_tokens",
    "data.train_batch_size": "groups_per_step",
    "trainer.logger": "trackers",
    "trainer.n_gpus_per_node": "cluster.gpus_per_node",
    "trainer.save_freq": "checkpoint_every",
    "trainer.test_freq": "validation.every",
    "trainer.total_training_steps": "steps",
}
"""Options of verl's `ppo_trainer.yaml` by their names there, and the options of a recipe that set the same."""

OTHERS = {
    "batch_size": "groups_per_step",
    "group_size": "sampling.samples",
    "lora_alpha": "lora.alpha",
    "lora_r": "lora.rank",
    "lora_target_modules": "lora.target_modules",
    "lr": "optimizer.learning_rate",
    "model_name_or_path": "model.source",
}
"""Names in papers and on command lines, and the options of a recipe that set the same."""
# Verl's names are also met without the sections that contain them, if no two sections have the same last name.
_LAST = [name.rpartition(".")[2] for name in OF_VERL]
ELSEWHERE = (
    {name: option for name, option in zip(_LAST, OF_VERL.values(), strict=True) if _LAST.count(name) == 1}
    | OTHERS
    | OF_VERL
    | OF_TRL
)
"""Names of options in other libraries, and the options of a recipe that set the same."""


def list_nested_options(model: type[BaseModel], above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    """Yield the dotted names of all options of a file of type `model`, except in lists and mappings by name."""
    for name, field in model.model_fields.items():
        yield name
        for inner in _find_sections(field.annotation):
            if inner not in above:
                yield from (f"{name}.{option}" for option in list_nested_options(inner, (*above, model)))


def make_option_hint(key: str, value: Any, model: type[BaseModel], siblings: Mapping[str, float]) -> str:
    """Return a hint in parentheses on the options of a file that an unknown key may mean, or an empty text.

    Args:
        key: the unknown key, with dots if it is in a section.
        value: its value. A mapping may be a section of another library's file.
        model: type of the file.
        siblings: names that are accepted instead of the key at its place, with their similarity to it (0 to 1).
    """
    options = list(dict.fromkeys(list_nested_options(model)))
    if isinstance(value, dict):
        known = [f"{name} is {ELSEWHERE[name]}" for name, _ in leaves(value, key) if ELSEWHERE.get(name) in options]
        return f" ({', '.join(known)} here)" if known else ""
    meant = [] if key in options else _find_meant(key, options, siblings)  # an option of another `kind`
    return f" (did you mean {' or '.join(map(repr, meant))}?)" if meant else ""


def _find_meant(key: str, options: list[str], siblings: Mapping[str, float]) -> list[str]:
    last = key.rpartition(".")[2]
    if same := [option for option in options if option.rpartition(".")[2] == last]:
        return _keep_shortest(same)
    for name in (key, last):
        if ELSEWHERE.get(name) in options:
            return [ELSEWHERE[name]]
    similar = {option: _compute_similarity(last, option.rpartition(".")[2]) for option in options}
    best = max(similar.values(), default=0.0)
    if best < SIMILAR or best <= max(siblings.values(), default=0.0):
        return []
    return _keep_shortest([option for option, similarity in similar.items() if similarity == best])


def compute_similarities(key: str, names: list[str]) -> dict[str, float]:
    """Return the similarity of a key to each name, 0 to 1."""
    return {name: _compute_similarity(key, name) for name in names}


def _compute_similarity(key: str, name: str) -> float:
    return difflib.SequenceMatcher(None, key, name).ratio()


def _keep_shortest(options: list[str]) -> list[str]:
    return sorted(options, key=lambda option: option.count("."))[:MOST]


def _find_sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an option's value may be. Models of its items are left out."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _find_sections(member)
    elif get_origin(annotation) is Annotated:
        yield from _find_sections(get_args(annotation)[0])
