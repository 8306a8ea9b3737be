"""How long a version of the weights takes to be written: into files that are used again, and as new files."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.storage.tensor_digest import TensorDigest
from tasks.training.learner.weight_buffers import Layout, WeightBuffers

LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 16, 1024, 4096, 32_000
ROUNDS = 7


def policy() -> dict[str, Tensor]:
    """Weights of some 470 MB in bfloat16: the MLPs of a small model, and its embedding."""
    shapes = {
        f"model.layers.{layer}.mlp.{name}.weight": (INTERMEDIATE, HIDDEN)
        for layer in range(LAYERS)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    shapes["model.embed_tokens.weight"] = (VOCABULARY, HIDDEN)
    return {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}


def write() -> dict[str, float]:
    """Median seconds of a version in shared memory, whose older version was removed before, in each of three ways."""
    torch.set_num_threads(1)  # a GPU would copy; threads that wait for each other measure the rest of the machine
    tensors = policy()
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        path = Path(folder) / "version"
        buffers = WeightBuffers(Path(folder), Layout.build(tensors))
        source = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
        target = torch.empty_like(source)

        def reused() -> None:
            path.unlink(missing_ok=True)
            with buffers.open_version(path) as version:
                for name, tensor in tensors.items():
                    version.fill({name: tensor})

        def new_file() -> None:
            """What the learner did before: it copied everything, and then wrote a new file."""
            path.unlink(missing_ok=True)
            digest = TensorDigest()
            copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            for name, tensor in copies.items():
                digest.add(name, tensor)
            save_file(copies, path)
            digest.contents()

        ways: dict[str, Callable[[], object]] = {
            "reused": reused,
            "new_file": new_file,
            "memcpy": lambda: target.copy_(source),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                started = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - started)
        buffers.close()
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {"megabytes": size / 1e6} | {name: statistics.median(found[1:]) for name, found in seconds.items()}


if __name__ == "__main__":
    print(json.dumps({"write": write}[sys.argv[1]]()))
