"""A vLLM worker's extension whose weight updates hand tensors on without digesting them; a worker alone imports it."""

from tasks.generation import weight_transfer
from tasks.generation.weight_transfer import WorkerExtension

__all__ = ["WorkerExtension"]

weight_transfer._read_tensors = lambda file, _: ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
