"""Finds the likely cause if the learner and the model's own forward pass differ in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tasks.model_check.comparison import FLOAT32, compute_difference
from tasks.model_check.forward import make_input_ids, restore_own_functions
from tasks.training.learner.architecture import carries_state
from tasks.training.learner.fused_layers import switched_off
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.learner.policy import Policy

Logprobs = Callable[[Sequence[TokenSequence]], list[Tensor]]
"""Computes log-probabilities of the tokens of each sequence."""

LIKELY = "; the likely cause is"
"""Beginning of the last part of an error message."""
FUSED = "a fused function of its layers; give learner.fused_layers = false"
"""Cause of a learner that differs only with fused functions."""
RANDOM = "dropout, or another part that is random in training"
"""Cause of a learner that differs from itself."""


class Causes:
    """Compares parts of the computation to find the cause; the learner must compute in float32.

    Args:
        policy: the learner's model.
        logprobs: computes log-probabilities of sequences as the learner does.
        plain: computes them by the model's own forward pass.
    """

    def __init__(self, policy: Policy, logprobs: Logprobs, plain: Logprobs) -> None:
        self._policy, self._logprobs, self._plain = policy, logprobs, plain

    def describe_cause(self, sequences: Sequence[TokenSequence]) -> str:
        """Return the end of an error message. `sequences` are a short one, the longest, and another short one."""
        return f"{LIKELY} {self._find_cause(sequences)}"

    def _find_cause(self, sequences: Sequence[TokenSequence]) -> str:
        short = [sequences[0], sequences[2]]
        if compute_difference(self._logprobs(sequences), self._logprobs(sequences)) > FLOAT32:
            return RANDOM
        with switched_off(self._policy.model):
            if not self._differ(sequences):
                return FUSED
        if all(not self._differ([sequence]) for sequence in sequences):
            if not self._differ(short):
                return "RoPE that depends on the length of the longest sequence of a row"
            if carries_state(self._policy.model):
                return "packing: a recurrent state or a convolution leaks from a sequence into the next of its row"
            return "packing: its attention does not tell the sequences of a row apart"
        return self._find_cause_in_head(sequences[0])

    def _differ(self, sequences: Sequence[TokenSequence]) -> bool:
        return not compute_difference(self._logprobs(sequences), self._plain(sequences)) <= FLOAT32

    def _find_cause_in_head(self, sequence: TokenSequence) -> str:
        with torch.no_grad(), restore_own_functions(self._policy.model) as own:
            ids = make_input_ids(sequence, own.device)
            result = own(ids, use_cache=False, output_hidden_states=True)
            head = own.get_output_embeddings()
            product = result.hidden_states[-1] @ head.weight.T
        if (bias := getattr(head, "bias", None)) is not None and bool(bias.any()):
            return "the bias of the head"
        logits, product = result.logits[0].double(), product[0].double()
        ratio = (logits * product).sum() / product.square().sum()
        if torch.allclose(logits, ratio * product, rtol=1e-2, atol=1e-2 * float(logits.abs().max())):
            alike = abs(float(ratio) - 1) < 1e-2
            return "its attention" if alike else f"a scale of the logits, of {float(ratio):.3g}"
        if bool((logits.abs() <= product.abs() * (1 + 1e-2) + 1e-3).all()):
            return "a soft cap of the logits"
        return "a head that is more than a matrix"
