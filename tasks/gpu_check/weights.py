"""Measures how fast weights go from a GPU into a file in shared memory, and from there to a GPU."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from tasks.gpu_check.results import Findings, SkippedError
from tasks.gpu_check.sizes import Sizes
from tasks.gpu_check.timing import measure_median_seconds, measure_seconds
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.planning.measured import LOADS, WRITES
from tasks.sizing.roofline import GB
from tasks.storage.tensor_digest import Contents, TensorDigest, compute_contents
from tasks.training.learner.weight_buffers import Layout, WeightBuffers, register


def check_weights(findings: Findings, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
    """Write weights as the learner does and load them as an engine does, and copy them plainly both ways.

    Every copy is one of memory that is registered with CUDA, and one of memory that is not. Without a GPU, both are the
    same.
    """
    tensors = _make_weights(sizes, device, dtype)
    size = sum(tensor.nbytes for tensor in tensors.values())
    free = shutil.disk_usage(SHARED_MEMORY).free if os.access(SHARED_MEMORY, os.W_OK) else 0
    if free < size:
        raise SkippedError(f"{SHARED_MEMORY} has {free / GB:.1f} GB free, and the weights take {size / GB:.1f} GB.")
    findings.figures["weights, GB"] = size / GB
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        _check_file(findings, Path(folder) / "version", tensors, size)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()]).view(torch.uint8)
    _copy_plainly(findings, flat, "not registered")
    _copy_plainly(findings, flat, "registered")


def _make_weights(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return random tensors in the shapes of the model's MLPs and of its embedding."""
    model = sizes.model
    shapes = {
        f"model.layers.{layer}.mlp.{name}.weight": (model.intermediate, model.hidden)
        for layer in range(model.layers)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    shapes["model.embed_tokens.weight"] = (model.vocabulary, model.hidden)
    return {name: torch.randn(shape, device=device, dtype=dtype) for name, shape in shapes.items()}


def _check_file(findings: Findings, path: Path, tensors: dict[str, Tensor], size: int) -> None:
    written: list[Contents] = []
    buffers = WeightBuffers(path.parent, Layout.build(tensors))

    def write() -> None:
        path.unlink(missing_ok=True)
        with buffers.open_version(path) as version:
            version.fill(tensors)
            written.append(version.contents())

    def load() -> None:
        digest = TensorDigest()
        with safe_open(path, framework="pt", device="cpu") as file:
            for name, target in tensors.items():
                tensor = file.get_tensor(name)
                digest.add(name, tensor)
                target.copy_(tensor)
            written.append(digest.contents())

    findings.figures["first version, with its memory, GB/s"] = size / measure_seconds(write) / GB
    findings.figures[WRITES] = size / measure_median_seconds(write) / GB
    findings.figures[LOADS] = size / measure_median_seconds(load) / GB
    written.append(compute_contents({name: tensor.cpu() for name, tensor in tensors.items()}))
    findings.require(len(set(written)) == 1, "A file contains other weights than were written.")
    findings.require(buffers.are_registered or not torch.cuda.is_available(), "CUDA does not register shared memory.")
    buffers.close()


def _copy_plainly(findings: Findings, weights: Tensor, kind: str) -> None:
    """Copy all weights at once to memory and back; `kind` says whether the memory is registered."""
    memory = torch.empty(weights.shape, dtype=weights.dtype)
    memory.zero_()  # its pages exist from here on
    if kind == "registered":
        register(memory)
    seconds = measure_median_seconds(lambda: memory.copy_(weights, non_blocking=True))
    findings.figures[f"GPU to memory, {kind}, GB/s"] = weights.nbytes / seconds / GB
    seconds = measure_median_seconds(lambda: weights.copy_(memory, non_blocking=True))
    findings.figures[f"memory to GPU, {kind}, GB/s"] = weights.nbytes / seconds / GB
    if kind == "registered" and torch.cuda.is_available():
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
