"""A vLLM worker's extension under which a tied head keeps its packed copy of the embedding over a weight update.

Importing it changes the process, which is a worker's alone.
"""

from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

from tasks.generation.weight_transfer import SafetensorsWeightTransferEngine, WorkerExtension

__all__ = ["WorkerExtension"]

SafetensorsWeightTransferEngine.finish_weight_update = lambda self: finalize_layerwise_reload(
    self.model, self.model_config
)
