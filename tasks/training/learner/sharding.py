"""Loads models directly in shards, one per rank: ZeRO 3 (Rajbhandari et al. 2020, arXiv:1910.02054).

DeepSpeed's `zero.Init` creates each parameter, keeps this rank's shard and frees the rest. transformers then gathers
the parameters of one module at a time, and fills them from the checkpoint.

    parameter [6, 3]: 18 numbers in a row     rank 0: 0 ... 8      rank 1: 9 ... 17
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, modeling_utils
from transformers.integrations.deepspeed import HfDeepSpeedConfig

T = TypeVar("T", bound=Tensor)

_Load = Callable[[PreTrainedModel, dict[str, Tensor], Any], tuple[list[str], set[str]]]
_LOADER = "_load_state_dict_into_zero3_model"
"""Name of transformers' function that fills a sharded model from all tensors of a checkpoint."""
_LAYER = re.compile(r".*?\.\d+\.")
"""Prefix of the names of a layer's tensors, such as `model.layers.3.`."""


@contextlib.contextmanager
def load_sharded(config: Mapping[str, Any] | None) -> Iterator[None]:
    """Let transformers load models sharded over all ranks within a block. Collective.

    A rank's memory never contains more than its shard of the model, the tensors of one layer, and the tensors of one
    module.

    Args:
        config: DeepSpeed's configuration, with ZeRO 3. Optional. If None, models are loaded whole.
    """
    if config is None:
        yield
        return
    load: _Load = getattr(modeling_utils, _LOADER)
    alive = HfDeepSpeedConfig(dict(config))  # transformers keeps only a weak reference to it
    setattr(modeling_utils, _LOADER, _load_by_layer(load))
    try:
        yield
    finally:
        setattr(modeling_utils, _LOADER, load)
        del alive


def _load_by_layer(load: _Load) -> _Load:
    """Return a function that calls `load` for one layer at a time, since it joins the experts of all its tensors first.

    The tensors of the checkpoint are memory-mapped files, which take no memory until they are joined or copied.
    """

    def load_in_parts(
        model: PreTrainedModel, tensors: dict[str, Tensor], options: Any = None
    ) -> tuple[list[str], set[str]]:
        errors: list[str] = []
        missing = set(model.state_dict())
        for layer_tensors in split_by_layer(tensors.items()).values():
            wrong, others = load(model, layer_tensors, options)
            errors += wrong
            missing &= others
        return errors, missing

    return load_in_parts


def split_by_layer(tensors: Iterable[tuple[str, T]]) -> dict[str, dict[str, T]]:
    """Return tensors or parameters by layer: a layer's by its prefix, and each other tensor alone by its name.

    Args:
        tensors: names and tensors. A layer's names begin with a prefix such as `model.layers.3.`.
    """
    layers: dict[str, dict[str, T]] = {}
    for name, tensor in tensors:
        layer = _LAYER.match(name)
        layers.setdefault(layer[0] if layer else name, {})[name] = tensor
    return layers


def get_whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of the whole parameter, which may be sharded."""
    shape: torch.Size = parameter.ds_shape if is_sharded(parameter) else parameter.shape  # type: ignore[attr-defined]
    return shape


def restore_buffers(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Recompute the buffers that no checkpoint contains, such as RoPE's frequencies, in the right types.

    `zero.Init` rounds every number that a model computes on initialisation to the type of its weights.

    Args:
        model: a model loaded within `load_sharded`; changed in place.
        dtype: type of its weights.
    """
    with torch.device("meta"):
        right = type(model)._from_config(model.config, dtype=dtype)
    for name, module in model.named_modules():
        rounded = False
        for buffer in module._non_persistent_buffers_set:
            ours, theirs = module._buffers[buffer], right.get_submodule(name)._buffers[buffer]
            if ours is not None and theirs is not None and ours.dtype != theirs.dtype:
                module._buffers[buffer] = torch.empty_like(ours, dtype=theirs.dtype)
                rounded = True
        if rounded:
            model._init_weights(module)


def is_sharded(parameter: nn.Parameter) -> bool:
    """Return whether DeepSpeed has sharded the parameter."""
    return hasattr(parameter, "ds_tensor")


def take_own_part(parameter: nn.Parameter) -> Tensor:
    """Return this rank's shard of a parameter, `[n]` in memory order, or all of it if it is not sharded.

    Writing to the shard changes the parameter, but not a copy of the whole parameter that DeepSpeed may have
    (`drop_copies`).
    """
    if not is_sharded(parameter):
        return parameter.data.view(-1)
    start, stop = compute_own_range(parameter)
    part: Tensor = parameter.ds_tensor.data[: stop - start]  # type: ignore[attr-defined]
    return part


def compute_own_range(parameter: nn.Parameter) -> tuple[int, int]:
    """Return start and stop of this rank's shard among the elements of a parameter, in memory order."""
    if not is_sharded(parameter):
        return 0, parameter.numel()
    size, numbers = parameter.ds_tensor.ds_numel, parameter.ds_numel  # type: ignore[attr-defined]
    start = min(torch.distributed.get_rank() * size, numbers)  # the last shards are padded
    return start, min(start + size, numbers)


def drop_copies(model: nn.Module) -> None:
    """Make DeepSpeed drop its copies of whole parameters, after shards were written. Collective.

    Small parameters, which are whole on every rank, are gathered again.
    """
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    whole: list[Any] = [
        parameter
        for parameter in model.parameters()
        if is_sharded(parameter) and parameter.ds_status == ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]
    ]
    if whole:
        whole[0].partition(whole)
    if staying := [parameter for parameter in whole if parameter.ds_persist]:
        staying[0].all_gather(staying)


def gather_experts_together(model: nn.Module) -> None:
    """Let ZeRO 3 gather all experts of a block together if every expert is a separate module.

    Ranks choose different experts, and a collective call for an expert that only one rank has chosen would never end.
    Experts in one tensor, as transformers stores most of them, are gathered together already.
    """
    from deepspeed.utils import set_z3_leaf_module

    for block in model.modules():
        if any(isinstance(child, nn.ModuleList) and "experts" in name for name, child in block.named_children()):
            set_z3_leaf_module(block, True)
