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


OTHER_KERNELS = 3
"""Tolerance between a learner and an engine in 16 bits, in those of the learner alone.

The kernels of an engine round in other places, layer after layer: SmolLM2 in bfloat16 is 0.076 nats from vLLM on a CPU.
"""


def rounding(dtype: Dtype) -> float:
    """Return the tolerance between two computations of transformers' in one type, nats."""
    return ROUNDING[dtype]


def engine_rounding(learner: Dtype | Auto, engine: Dtype | Auto) -> float:
    """Return the tolerance between a learner and an engine, nats, by the coarser of their types.

    Raises:
        KeyError: one of them is `auto`.
    """
    coarser = max(ROUNDING[learner], ROUNDING[engine])  # type: ignore[index]
    return coarser if coarser == ROUNDING["float32"] else OTHER_KERNELS * coarser
