"""Checks a model before the first rollout: learner, engine and export must have the same policy."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import torch

from tasks.generation.engine import Engine
from tasks.generation.interface import EngineUse
from tasks.machine import precision
from tasks.machine.progress import Begin, track_activity
from tasks.machine.resources import has_gpu
from tasks.model_check.comparison import Difference
from tasks.model_check.engine import EngineComparison, make_prompts, sample_responses
from tasks.model_check.learner import ADAPTER, INITIAL_ADAPTER, LearnerCheck
from tasks.model_check.options import CheckedOptions
from tasks.model_check.own_functions import check_own_functions
from tasks.model_check.text import tokenize_text
from tasks.training.learner.adapter import describe_adapter
from tasks.training.learner.packing import Sequence


class Comparisons:
    """Numbers the comparisons of a check in the lines of its progress.

    Args:
        begin: shows the work that begins.
        total: the number of comparisons.
    """

    def __init__(self, begin: Begin, total: int) -> None:
        self._begin = begin
        self._total = total
        self._number = 0

    def begin(self, what: str) -> None:
        """Show the comparison that begins, such as `the learner and an engine`."""
        self._number += 1
        self._begin(f"comparison {self._number} of {self._total}: {what.rstrip(',')}")


def check_model(folder: Path, options: CheckedOptions, *, engine: bool = True) -> dict[str, Difference]:
    """Check that learner, the model's own forward pass, export and engine agree on one model.

    `LearnerCheck` compares the learner with the model. Then an engine samples from the initial checkpoint and, after a
    weight update, from the updated one, and `EngineComparison` compares its log-probabilities with the learner's.
    Before, the functions of the objective are called on dummy tensors (`check_own_functions`).

    Args:
        folder: a Hugging Face model folder.
        options: options of the run.
        engine: whether to start an engine.

    Returns:
        The differences of log-probabilities, by what was compared.

    Raises:
        ModelCheckError: two of them differ by more than rounding; the message names the likely cause.
        ModelError: the learner cannot compute the model.
        EngineOptionsError: vLLM does not serve the model, or its adapter.
        WeightsNotTakenError: the engine does not use a tensor, or got no tensor for one of its weights.
        EngineError: the engine died.
        OwnFunctionError: a loss or an advantage function of the user's cannot be used.
    """
    with track_activity("model check") as begin:
        return _check_model(folder, options, begin, engine=engine)


def _check_model(folder: Path, options: CheckedOptions, begin: Begin, *, engine: bool) -> dict[str, Difference]:
    if options.surrogate or options.advantage:
        begin("calling the functions of the objective")
        check_own_functions(options)
    begin("loading the model into the learner")
    dtypes = [precision.resolve(dtype, gpu=has_gpu()) for dtype in (options.learner.dtype, options.engine.dtype)]
    in_16_bits = (1 + (options.head_dtype == "float32")) * (dtypes[0] != "float32")
    comparisons = Comparisons(begin, 3 + in_16_bits + 2 * engine)
    learner = LearnerCheck(
        folder,
        tokenize_text(folder),
        dtype=dtypes[0],
        longest=options.engine.max_model_len,
        lora=options.lora,
        head_dtype=options.head_dtype,
        gradient_checkpointing=options.learner.gradient_checkpointing,
        fused_layers=options.learner.fuses_layers(gpu=has_gpu()),
        begin=comparisons.begin,
    )
    if not engine:
        return learner.check()
    with tempfile.TemporaryDirectory() as export:
        initial, updated = asyncio.run(_sample(folder, options, learner, Path(export), dtypes[1], begin))
    learner.return_to_device()
    comparison = EngineComparison(learner, dtypes[1])
    comparison.compare_initial(initial)
    comparison.compare_updated(updated)
    return learner.figures


async def _sample(
    folder: Path, options: CheckedOptions, learner: LearnerCheck, export: Path, dtype: precision.Dtype, begin: Begin
) -> tuple[list[Sequence], list[Sequence]]:
    """Check the learner, and return what one engine samples before an update and after it."""
    checking = asyncio.create_task(asyncio.to_thread(_check_learner, learner, export))
    if has_gpu():
        await checking
        learner.leave_device()  # for the engine
    else:
        await asyncio.sleep(0)  # the thread starts: the engine loads meanwhile
    adapter = describe_adapter(folder, options.lora) if options.lora else None
    begin("starting an engine")
    use = EngineUse(updatable=True, adapter=adapter, head_dtype=options.head_dtype)
    engine = await Engine.start(folder, options.engine, use)
    try:
        await checking
        begin("sampling before and after a weight update")
        prompts = make_prompts(learner, dtype)
        if options.lora:
            await engine.update_weights(export / INITIAL_ADAPTER, 0, keep_cache=False)
        initial = await sample_responses(engine, prompts)
        update = export / (ADAPTER if options.lora else "model.safetensors")
        await engine.update_weights(update, 1, keep_cache=False)
        return initial, await sample_responses(engine, prompts)
    finally:
        engine.shutdown()


def _check_learner(learner: LearnerCheck, export: Path) -> None:
    """Run the learner's part in a thread that leaves a core to the engine, which loads meanwhile."""
    torch.set_num_threads(max(torch.get_num_threads() - 1, 1))
    learner.check(export)
