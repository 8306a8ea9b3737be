"""Replays in the learner's routers the experts that an engine's routers chose.

Rollout Routing Replay (Ma et al. 2025, arXiv:2510.11370). Rounding lets engine and learner choose different experts for
a token, and so give it very different probabilities. Only the choice is replayed:

    hidden ──► logits ──softmax──► probabilities ──top k──► experts  ◄── replaced by the engine's
                                         │                     │
                                         └──────gather─────────┴──► weights of the experts

The weights are the learner's own, so that the gradient reaches the router.
"""

from __future__ import annotations

import re
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tasks.recipe.routing_replay import check_model_type

LAYER = re.compile(r"\.layers\.(\d+)\.")
"""The number of a layer in the name of a module."""

RouterOutput = tuple[Tensor, Tensor, Tensor]
"""A router's logits `[T, experts]`, and the weights and numbers of the chosen experts, both `[T, k]`."""


class RouteReplay:
    """Gives the routers of a model the experts of each token.

    Attributes:
        routes: int16 `[T, layers, k]`, the experts of each token of a row in each layer of the model, also in layers
            without experts; -1 for tokens whose experts the router chooses. If None, it chooses all.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Add a hook to each router of `model`.

        Raises:
            ModelError: the routers of this type of model are not supported.
        """
        config = model.config.get_text_config()
        check_model_type(config.model_type)
        self.routes: Tensor | None = None
        self._layers: int = config.num_hidden_layers
        for name, module in model.named_modules():
            if hasattr(module, "norm_topk_prob"):
                [layer] = LAYER.findall(f".{name}")
                module.register_forward_hook(partial(self._replace, int(layer)))

    def begin(self, routes: Tensor | None) -> None:
        """Set the routes of the next row.

        They stay set in its backward pass, which computes layers again with gradient checkpointing. It must precede the
        next row.

        Raises:
            ValueError: the routes have another number of layers than the model.
        """
        if routes is not None and routes.shape[1] != self._layers:
            raise ValueError(f"routes have {routes.shape[1]} layers, and the model has {self._layers}")
        self.routes = routes

    def _replace(self, layer: int, router: nn.Module, _inputs: tuple[Tensor], output: RouterOutput) -> RouterOutput:
        if self.routes is None:
            return output
        logits, _, chosen = output
        given = self.routes[:, layer].to(chosen.dtype)
        experts = torch.where(given < 0, chosen, given)
        weights = logits.softmax(dim=-1, dtype=torch.float32).gather(1, experts)
        if router.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights.to(logits.dtype), experts
