"""Largest differences of log-probabilities that count as rounding, by type."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.machine.precision import Auto, Dtype

ROUNDING: Mapping[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.06, "float16": 0.01}
"""Largest mean difference of a sequence's log-probabilities that counts as rounding, nats.

Three times what Llama, Qwen 2.5, Qwen 3 and Olmo 3 in miniature show, with 24 layers and weights of deviation 0.1: at
most 0.02 in bfloat16. In float32 it is 6e-7, or 0 where the learner's path on a CPU coincides with the model's own, and
the floor is 1e-4: SmolLM2, with 30 layers, is 1.2e-5 from vLLM, and kernels that add in another order differ more.
float16 has three bits more than bfloat16, an eighth of its rounding, and is not measured.
"""


def rounding(*dtypes: Dtype | Auto) -> float:
    """Return the tolerance between two computations, nats: that of the coarser of their types.

    Raises:
        KeyError: one of them is `auto`.
    """
    return max(ROUNDING[dtype] for dtype in dtypes)  # type: ignore[index]
