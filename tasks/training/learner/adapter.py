"""Implements LoRA (Hu et al. 2021, arXiv:2106.09685): the policy is `W + (alpha / rank) B A`; only A and B are trained.

The layers are peft's. They are added to the model in place, so that its forward pass and its parameters' names do not
change. Actors receive the adapter as a folder that peft and vLLM read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.failures import MistakeError
from tasks.generation.interface import ServedAdapter
from tasks.recipe.learner import LoraConfig
from tasks.storage.durable import write_whole
from tasks.storage.tensor_digest import Contents, compute_contents

if TYPE_CHECKING:
    import peft
    from torch import Tensor, nn
    from transformers import PreTrainedModel

WEIGHTS = "adapter_model.safetensors"
"""Name of the weights file in an adapter's folder, as in peft."""
_NAME = "default"


def add_adapter(model: PreTrainedModel, config: LoraConfig) -> None:
    """Add A (random) and B (zero) to the linear layers that `config` names, and freeze all other weights.

    Without names, these are all linear layers except the head. Experts that transformers stores in one tensor are not
    linear layers and get no adapter.

    Raises:
        ValueError: `target_modules` has a name that no linear layer of the model has; peft would ignore it.
    """
    from peft import inject_adapter_in_model

    inject_adapter_in_model(_make_peft_config(config, _find_adapted_layers(model, config)), model, adapter_name=_NAME)


def describe_adapter(folder: str | Path, config: LoraConfig) -> ServedAdapter:
    """Return what an engine needs to know about the adapter of the model in `folder`, without loading weights.

    Raises:
        MistakeError: for the reasons of `add_adapter`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return ServedAdapter(config.rank, tuple(sorted(_find_adapted_layers(model, config))))


def _find_adapted_layers(model: PreTrainedModel, config: LoraConfig) -> set[str]:
    from torch import nn

    head = model.get_output_embeddings()
    layers = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
    known = {name.rpartition(".")[2] for name, layer in layers if layer is not head}
    if unknown := set(config.target_modules or ()) - known:
        raise MistakeError(
            f"lora.target_modules = {', '.join(sorted(unknown))}: the model has {', '.join(sorted(known))}"
        )
    return set(config.target_modules or known)


def adapter_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the adapter's parameters by peft's names, two for every adapted layer.

    They are `<layer>.lora_A.weight` `[rank, in]` and `<layer>.lora_B.weight` `[out, rank]`.
    """
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            yield name.replace(f".{_NAME}.", "."), parameter


def base_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield all parameters except the adapter's, by their names in the checkpoint."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter


@contextlib.contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Disable the adapter within a block, so that the model is the initial checkpoint."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merge_adapter(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """Merge an adapter into the weights: `W + (alpha / rank) B A`, computed in float32 and rounded to the type of W.

    Args:
        base: the frozen weights by their names in the checkpoint.
        adapter: as `adapter_parameters` names them.
        config: rank and alpha.

    Returns:
        All of `base`, with the adapter merged into the layers that have one.
    """
    import torch

    weights = dict(base)
    for name, a in adapter.items():
        layer, _, rest = name.partition(".lora_A.")
        if rest:
            w, b = weights[f"{layer}.weight"], adapter[f"{layer}.lora_B.weight"]  # [out, in], [out, rank]
            scale = config.alpha / config.rank
            weights[f"{layer}.weight"] = torch.addmm(w.float(), b.float(), a.float(), alpha=scale).to(w.dtype)
    return weights


def select_layer(adapter: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of an adapter that belong to some of the frozen weights, as `merge_adapter` takes them."""
    return {name: tensor for name, tensor in adapter.items() if f"{name.partition('.lora_')[0]}.weight" in base}


def write_adapter(folder: Path, tensors: Mapping[str, Tensor], config: LoraConfig) -> Contents:
    """Write an adapter's folder as peft does; it appears, or replaces an older folder, when it is complete.

    Returns:
        Contents of the weights file.
    """
    from safetensors.torch import save_file

    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    with write_whole(folder) as partial:
        partial.mkdir(parents=True)
        save_file(named, partial / WEIGHTS)
        layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in tensors}
        _make_peft_config(config, layers).save_pretrained(str(partial))
    return compute_contents(named)


def _make_peft_config(config: LoraConfig, layers: Iterable[str]) -> peft.LoraConfig:
    from peft import LoraConfig as PeftConfig

    return PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=0.0,
        target_modules=sorted(layers),
        task_type="CAUSAL_LM",
    )
