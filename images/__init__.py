"""Defines the names of the tasks' images, one per set of dependencies.

`pyflyte register --image data=... --image generation=... --image training=...` sets the container image for each name.
`images/Dockerfile` builds all three, for machines with or without GPUs. Each contains what its tasks import (`EXTRAS`):
`make test-images` runs every task in an environment of its image.
"""

DATA = "{{.image.data.fqn}}:{{.image.data.version}}"
"""pandas, pyarrow, verifiers: sourcing, mixing, comparing, reporting."""

GENERATION = "{{.image.generation.fqn}}:{{.image.generation.version}}"
"""vLLM and transformers: difficulty and evaluation."""

TRAINING = "{{.image.training.fqn}}:{{.image.training.version}}"
"""vLLM, DeepSpeed and Ray: training."""

EXTRAS = {
    "cuda": {"data": "data", "generation": "gpu", "training": "gpu"},
    "none": {"data": "data", "generation": "cpu", "training": "cpu"},
}
"""The extra of pyproject.toml that an image installs, by accelerator. Images with CUDA also install `liger`."""
