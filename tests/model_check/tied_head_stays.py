"""A vLLM worker's extension under which a tied head keeps the old embedding over a weight update.

Where a CPU's kernel packs a head, that is what becomes of it without `finish_weight_update`; elsewhere a copy is made
here. Importing it changes the process, which is a worker's alone.
"""

import torch
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

from tasks.generation.weight_transfer import SafetensorsWeightTransferEngine, WorkerExtension

__all__ = ["WorkerExtension"]

start = SafetensorsWeightTransferEngine.start_weight_update


def start_and_copy(self):
    self.embedding = self.model.model.embed_tokens.weight.detach().clone()
    start(self)


def finish_without_the_head(self):
    finalize_layerwise_reload(self.model, self.model_config)
    head = self.model.lm_head
    head.weight = torch.nn.Parameter(self.embedding, requires_grad=False)
    head.quant_method.process_weights_after_loading(head)


SafetensorsWeightTransferEngine.start_weight_update = start_and_copy
SafetensorsWeightTransferEngine.finish_weight_update = finish_without_the_head
