"""The images of the tasks, one per set of dependencies, by name.

`pyflyte register --image data=... --image generation=... --image training=...` says which container each name stands
for; `images/Dockerfile` builds all three, for machines with GPUs or for those without. Each holds what its tasks import
(`EXTRAS`): `make test-images` runs every task in an environment of its image.
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
"""The extra of pyproject.toml that an image installs, by accelerator; those with CUDA install `liger` beside it."""
