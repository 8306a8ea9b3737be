"""Chooses the kernels that a rank computes a model with, as the learner's options say."""

from __future__ import annotations

import sys

import torch
from transformers import PreTrainedModel

from tasks.failures import MistakeError
from tasks.recipe.learner import LearnerConfig, check_dense_attention
from tasks.training.learner import flash_attention
from tasks.training.learner.fused_layers import fuse
from tasks.training.learner.policy import Policy


def check_kernels(policy: Policy, options: LearnerConfig) -> None:
    """Check that the kernels for the head and for attention can compute a policy.

    Raises:
        MistakeError: `learner.liger` is true, and its kernel cannot compute the head.
        DenseAttentionError: rows are too long for the attention that this GPU supports for the learner's type.
    """
    if options.liger is True and not policy.can_be_fused:
        raise MistakeError(
            "learner.liger = true: the model's head has a bias, or its logits a cap, which the kernel does not have; "
            "set it to auto"
        )
    if policy.attends_densely:
        check_dense_attention(options)


def choose_attention(model: PreTrainedModel, options: LearnerConfig, *, prints: bool) -> None:
    """Use FlashAttention 4 or 2 from now on in this process, as `learner.attention` says.

    Args:
        model: the model that it will compute.
        options: the learner's options.
        prints: whether a line says, on a machine with GPUs, which is used and why 4 is not.

    Raises:
        MistakeError: `learner.attention` is fa4, and it cannot compute the model.
    """
    flash_attention.switch_off()
    if options.attention == "fa2" or (options.attention == "auto" and not torch.cuda.is_available()):
        return
    reason = flash_attention.switch_on(flash_attention.Heads.from_config(model.config), model.dtype, _choose_device())
    if reason and options.attention == "fa4":
        raise MistakeError(f"learner.attention = fa4: {reason}; set it to auto")
    if prints:
        _print(f"does not use FlashAttention 4: {reason}" if reason else "uses FlashAttention 4")


def fuse_layers(model: PreTrainedModel, options: LearnerConfig, *, prints: bool) -> None:
    """Replace functions of a model's layers by fused ones, as `learner.fused_layers` says.

    Args:
        model: changed in place.
        options: the learner's options.
        prints: whether a line says what was replaced.

    Raises:
        MistakeError: `learner.fused_layers` is true, and no layer can be fused.
    """
    if not options.fuses_layers(gpu=torch.cuda.is_available()):
        return
    replacements = fuse(model, _choose_device())
    if options.fused_layers is True and not replacements.counts:
        raise MistakeError(f"learner.fused_layers = true: the learner fuses {replacements}; set it to auto")
    if prints:
        _print(f"fuses {replacements}")


def _choose_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _print(what: str) -> None:
    print(f"the learner {what}", file=sys.stderr, flush=True)
