"""Peak memory of log-probabilities with gradients at 16k tokens of a 49k vocabulary: in chunks, and as a whole."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from tasks.training.learner.logprobs import token_logprobs

TOKENS, HIDDEN, VOCABULARY = 16_384, 576, 49_152


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The learner's."""
    return token_logprobs(hidden, weight, targets)[0]


def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """What one would write: all logits, in float32, at once."""
    return (hidden @ weight.T).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]


def peak(logprobs: Callable[[Tensor, Tensor, Tensor], Tensor]) -> dict[str, float]:
    """MiB above what inputs and gradients take, and seconds, of one forward and backward pass in bfloat16."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=draw).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=draw).mul_(0.02).bfloat16().requires_grad_()
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=draw)
    for each in (hidden, weight):
        each.grad = torch.zeros_like(each)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    logprobs(hidden, weight, targets).mean().backward()
    seconds = time.perf_counter() - started
    return {"mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(peak({"chunked": chunked, "whole": whole}[sys.argv[1]])))
