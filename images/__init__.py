"""The images of the tasks, one per set of dependencies, by name.

`pyflyte register --image data=... --image generation=... --image training=...` says which container each name stands
for; `images/Dockerfile` builds all three. Each holds what its tasks import (`EXTRAS`): `make test-images` runs every
task in an environment of its image.
"""

DATA = "{{.image.data.fqn}}:{{.image.data.version}}"
"""pandas, pyarrow, verifiers: sourcing, mixing, comparing, reporting."""

GENERATION = "{{.image.generation.fqn}}:{{.image.generation.version}}"
"""vLLM and transformers: difficulty and evaluation."""

TRAINING = "{{.image.training.fqn}}:{{.image.training.version}}"
"""vLLM, DeepSpeed and Ray: training."""

EXTRAS = {"data": "data", "generation": "gpu", "training": "gpu"}
"""The extra of pyproject.toml that an image installs; those with CUDA install `liger` beside it."""
