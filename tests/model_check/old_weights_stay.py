"""vLLM workers' extensions under which an engine goes on with old values of some tensors after a weight update.

`RLVR_OLD` is a regular expression for their names in the checkpoint, and `RLVR_OLD_SHARE` the share of the old value in
what the model is given in their place. What arrived is digested before. Importing this module changes the process,
which is a worker's alone.
"""

import os
import re
from pathlib import Path

from safetensors.torch import load_file

from tasks.generation import adapter, weight_transfer

OLD = re.compile(os.environ["RLVR_OLD"])
SHARE = float(os.environ["RLVR_OLD_SHARE"])
_digested = weight_transfer._read_tensors
_load = adapter._from_lora_tensors
_before = {}


class WorkerExtension(weight_transfer.WorkerExtension):
    """That of whole models, whose old values are those of the initial checkpoint."""


class AdapterExtension(adapter.WorkerExtension):
    """That of adapters, whose old values are those of the first one."""


def _mixed(name, tensor):
    if not OLD.search(name):
        return tensor
    return (SHARE * _before[name].float() + (1 - SHARE) * tensor.float()).to(tensor.dtype)


def _receive(self, update_info):
    for path in Path(self.model_config.model).glob("*.safetensors"):
        _before.update(load_file(path))
    receive(self, update_info)


def _load_adapter(*, tensors, **options):
    if _before:
        tensors = {name: _mixed(name, tensor) for name, tensor in tensors.items()}
    else:
        _before.update(tensors)
    return _load(tensors=tensors, **options)


receive = weight_transfer.SafetensorsWeightTransferEngine.receive_weights
weight_transfer.SafetensorsWeightTransferEngine.receive_weights = _receive
weight_transfer._read_tensors = lambda file, digest: ((name, _mixed(name, t)) for name, t in _digested(file, digest))
adapter._from_lora_tensors = _load_adapter
