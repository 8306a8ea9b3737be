"""How long a run will take on a machine without a GPU, from its files and half a second of matrix products.

    tokens generated   responses x LENGTH x max_tokens
    each costs         2 operations per parameter (the forward pass), and ENGINE.overhead
    each trained one   6 operations per parameter (and the backward pass), and LEARNER.overhead

Both times BESIDE, after START_SECONDS. A rough figure: prompts and a reference policy are left out, and how long
responses become nobody knows before.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple

from tasks.evaluation.spec import EvaluationSpec
from tasks.generation import parameters
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.inputs.files import DataFile, Recipe
from tasks.machine import precision
from tasks.mixing.spec import DomainShare
from tasks.sourcing import rows
from tasks.training.prompt_options import NoResampling


class Cost(NamedTuple):
    """What a token costs beside the products that it needs.

    Attributes:
        share: of a core's rate in products alone, what those of a model reach.
        overhead: seconds of one core for all else: attention, sampling, the optimizer, waiting for each other.
    """

    share: float
    overhead: float


ENGINE, LEARNER = Cost(0.4, 1.6e-3), Cost(0.67, 1.2e-3)
"""Fitted to a model of 135M parameters on two cores of one processor. In bfloat16, in float32 with AVX-512, and in
float32 with AVX2 alone, an engine made 750, 500 and 240 tokens/s, and a learner trained 520, 160 and 160."""

BESIDE = 1.2
"""Times as long as engines and learner alone, for judges, the controller and all who wait for each other: stages of the
quickstart took 1.0 to 1.3 times, on a processor with bfloat16 and on one with AVX2 alone."""

LENGTH = 0.75
"""Mean length of the quickstart's responses, of `max_tokens`."""

SAMPLED = 1.5
"""Groups sampled for one that is trained on, where those that teach nothing are replaced."""

START_SECONDS = 40.0
"""Until the engine, learner and judges of a stage take work: mostly imports of vLLM, on two cores."""

MEASURED_SECONDS = 0.25

HOURS_FROM = 2 * 3600
"""Seconds from which on hours are said."""

Worker = Literal["engine", "learner"]
Asked = precision.Dtype | precision.Auto
Rates = Mapping[tuple[Worker, Asked], float]
"""Operations per second of one core while all are busy, by who computes and the type that its options ask for."""


@dataclass(frozen=True)
class Size:
    """What a run has to work through: parameters of the model, and prompts of all sources."""

    parameters: int
    prompts: int


def stages(
    data: DataFile, training: Recipe, evaluation: EvaluationSpec, size: Size, cores: int, rates: Rates
) -> dict[str, float]:
    """Seconds of the stages that take long, on `cores` cores with these rates, nothing of them cached."""

    def generating(responses: float, sampling: SamplingConfig, engine: EngineConfig) -> float:
        """Seconds of one core."""
        tokens = responses * LENGTH * sampling.max_tokens
        return tokens * _per_token(2 * size.parameters, rates["engine", engine.dtype], ENGINE)

    def alone(prompts: int, sampling: SamplingConfig, engine: EngineConfig) -> float:
        return generating(prompts * sampling.samples, sampling, engine) / min(cores, engine.cpu_threads or cores)

    actors, learner, sampling = training.actors, training.learner, training.sampling
    batch = training.groups_per_step * sampling.samples
    trained = training.steps * batch
    again = 1 if isinstance(training.resampling, NoResampling) else SAMPLED
    sampled = (training.steps * again + training.async_steps) * batch  # the last ones are ahead of the learner in vain
    tokens = trained * LENGTH * sampling.max_tokens * training.updates.epochs
    per_parameter = 4 if training.lora else 6  # frozen weights need no gradient
    engines = generating(sampled, sampling, actors.engine)
    ranks = tokens * _per_token(per_parameter * size.parameters, rates["learner", learner.dtype], LEARNER)
    each = (
        engines / min(cores, actors.count * (actors.engine.cpu_threads or cores)),
        ranks / min(cores, learner.ranks * (learner.cpu_threads or cores)),
    )
    # Beside each other they share the cores, and the slower one decides where those are enough.
    together = sum(each) if training.is_synchronous else max(*each, (engines + ranks) / cores)
    return {
        "difficulty": START_SECONDS + alone(size.prompts, data.difficulty.sampling, data.difficulty.engine),
        "training": START_SECONDS + together,
        "evaluation": 2 * (START_SECONDS + alone(held_out(data), evaluation.sampling, evaluation.engine)),
    }


def _per_token(operations: float, rate: float, cost: Cost) -> float:
    return BESIDE * (operations / (cost.share * rate) + cost.overhead)


def held_out(data: DataFile) -> int:
    """Prompts that the mixture keeps for evaluation."""
    domains = {domain for source in data.sources for domain in source.domains}
    found = 0
    for domain in domains:
        own = data.mixture.domains.get(domain, DomainShare()).heldout
        asked = data.mixture.heldout if own is None else own
        if isinstance(asked, float):
            read = (rows.count(source) or 0 for source in data.sources if domain in source.domains)
            asked = round(asked * sum(read))
        found += asked
    return found


def size_of(data: DataFile, training: Recipe) -> Size | None:
    """None where the model's size or a source's number of rows is not known on this machine."""
    counted = parameters.count(training.model), *(rows.count(source) for source in data.sources)
    known = [each for each in counted if each is not None]
    return Size(known[0], sum(known[1:])) if len(known) == len(counted) else None


def measured(data: DataFile, training: Recipe, evaluation: EvaluationSpec) -> tuple[int, Rates]:
    """This machine's cores without hyper-threads, and their rates in the types that these files ask for."""
    import torch

    cores = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    engines = {each.engine.dtype for each in (data.difficulty, training.actors, evaluation)}
    found: dict[tuple[Worker, Asked], float] = {
        ("engine", asked): _rate_of_a_core("engine", precision.resolve(asked, gpu=False), cores) for asked in engines
    }
    asked = training.learner.dtype
    return cores, found | {("learner", asked): _rate_of_a_core("learner", precision.resolve(asked, gpu=False), cores)}


@cache
def _rate_of_a_core(worker: Worker, dtype: precision.Dtype, cores: int) -> float:
    import torch

    # In float32 a learner's products are torch's own, and an engine's are oneDNN's.
    onednn = worker == "engine" and dtype == "float32" and torch.backends.mkldnn.is_available()
    before = torch.get_num_threads()
    # A thread for each core on its own: those that share a product wait for whichever has lost its core.
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores) as threads:
            rate = partial(precision.product_rate, dtype, MEASURED_SECONDS, onednn=onednn)
            return sum(threads.map(lambda _: rate(), range(cores))) / cores
    finally:
        torch.set_num_threads(before)


def said(seconds: Mapping[str, float], cores: int, types: Iterable[str], options: Mapping[str, str]) -> str:
    """Two lines: the time in all and of each stage, and what makes the longest of them shorter."""
    total = sum(seconds.values())
    unit, of_unit = ("minutes", 60) if total < HOURS_FROM else ("hours", 3600)
    parts = ", ".join(f"{stage} {max(1, round(each / of_unit)):,}" for stage, each in seconds.items())
    longest = max(seconds, key=lambda stage: seconds[stage])
    machine = f"{cores} core{'s' * (cores > 1)}, {' and '.join(sorted(types))}"
    return (
        f"about {round(total / of_unit):,} {unit} on this machine ({machine}), if nothing is cached: {parts}\n"
        f"to make it shorter: lower {options[longest]}"
    )


def options_of(data: DataFile, training: Recipe, evaluation: EvaluationSpec) -> dict[str, str]:
    """By stage, an option that its time grows with, as it stands in the user's files."""
    return {
        "difficulty": f"difficulty.sampling.samples (--data, {data.difficulty.sampling.samples})",
        "training": f"steps (--training, {training.steps})",
        "evaluation": f"sampling.samples (--evaluation, {evaluation.sampling.samples})",
    }


def estimate(data: DataFile, training: Recipe, evaluation: EvaluationSpec) -> str | None:
    """What `plan` says on a terminal; None where nothing is known.

    That is on a machine with a GPU or without torch, and for a model or a source whose size is not known here.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if torch.accelerator.is_available() or (size := size_of(data, training)) is None:
        return None
    cores, rates = measured(data, training, evaluation)
    types = {precision.resolve(asked, gpu=False) for _, asked in rates}
    seconds = stages(data, training, evaluation, size, cores, rates)
    return said(seconds, cores, types, options_of(data, training, evaluation))
