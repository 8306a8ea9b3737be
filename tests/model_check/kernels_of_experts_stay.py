"""A vLLM worker's extension under which kernels of experts stay over a weight update, as vLLM by itself leaves them.

Importing it changes the process, which is a worker's alone.
"""

from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

from tasks.generation.weight_transfer import SafetensorsWeightTransferEngine, WorkerExtension

__all__ = ["WorkerExtension"]

SafetensorsWeightTransferEngine.start_weight_update = lambda self: initialize_layerwise_reload(self.model)
