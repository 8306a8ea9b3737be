"""Benchmark files: published questions with the protocol by which policies answer them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from tasks.config import Extendable, file_called, load_yaml
from tasks.config_fields import InFile
from tasks.evaluation.spec import ComparedBenchmark
from tasks.generation.benchmark_sampling import AskedBenchmark
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.vllm_arguments import check_thinking_budget
from tasks.sourcing.spec import EvaluationSet, SourceSpec
from tasks.storage.sent_files import FilePath


class BenchmarkFile(Extendable):
    """A benchmark: questions, their verifier, and the sampling of responses."""

    folder: ClassVar[Path] = Path(__file__).parents[2] / "data_specs" / "benchmarks"

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the benchmark, without spaces. Where a data file names it in `evaluation_sets`, the name of no source."""
    card: str = Field(pattern=r"^https?://\S+$")
    """Address of the public page that describes the questions."""
    licence: str = Field(min_length=1)
    """Licence of the questions, as the card has it; `unknown` where it has none."""
    rows: int | None = Field(default=None, ge=1)
    """Questions that the card counts; what is read without `where` and `limit` is compared with it. None: not known."""
    source: SourceSpec
    """The questions, as a source of a data file (loader, verifier, domain, mode, columns and all else). It has the
    benchmark's `name`, and need not repeat it."""
    max_prompt_chars: int = Field(default=100_000, ge=1)
    """Characters of all messages of a prompt, at most; a longer prompt is set aside."""
    sampling: SamplingConfig
    """Options of the sampling: `samples` responses to each question (n), the same for every policy. All of vLLM's are
    permitted, as in `vllm: {repetition_penalty: 1.1}`. `vllm: {thinking_token_budget: 4096}` ends the thinking of a
    response after so many tokens; it needs `engine.vllm.reasoning_parser` of the evaluation file. No verifier reads
    thinking, whether or not it has a budget."""
    majority: list[Annotated[int, Field(ge=1)]] = []  # noqa: RUF012 (pydantic copies defaults)
    """The k of majority@k: the pass rate of the answer that most of k responses give. Each is at most
    `sampling.samples`; for the verifier math alone, whose answers can be counted."""
    length_control: InFile[FilePath | None] = None
    """For `mode: pairwise`: the file of instructions' difficulties and of the baseline's comparisons with itself, as
    AlpacaEval's authors publish it (`df_gamed.csv`), by which `length_controlled_win_rate` is computed; a path or an
    address as fsspec reads it, such as `hf://datasets/...`. None: there is a `win_rate` alone."""
    fingerprint: str | None = None
    """Digest of that file where it is a local one, which is filled in before a run."""
    margin: float | None = Field(default=None, ge=0, le=1)
    """Points of pass rate, in [0, 1]: a policy has maintained the benchmark where the interval of its difference from
    the baseline lies above -margin. None: this is not tested."""

    @field_validator("source", mode="before")
    @classmethod
    def _named_as_the_benchmark(cls, source: Any, info: ValidationInfo) -> Any:
        name = info.data.get("name", "unnamed")
        if not isinstance(source, dict):
            return source
        if source.get("name", name) != name:
            raise ValueError(f"its name is {source['name']!r}, and the benchmark's is {name!r}; leave the source's out")
        return {**source, "name": name}

    @field_validator("source")
    @classmethod
    def _reads_no_more_than_its_limit(cls, source: SourceSpec) -> SourceSpec:
        if source.top_up is not None:
            raise ValueError("top_up is for prompts that difficulty selects, not for those of a benchmark; give limit")
        return source

    @model_validator(mode="after")
    def _has_majorities(self) -> Self:
        too_large = [k for k in self.majority if k > self.sampling.samples]
        if too_large:
            raise ValueError(f"majority: {too_large[0]} is more than the {self.sampling.samples} of sampling.samples")
        if self.majority and self.source.verifier != "math":
            raise ValueError(f"majority is for the verifier 'math' alone, and this one is {self.source.verifier!r}")
        return self

    @model_validator(mode="after")
    def _controls_length_of_comparisons(self) -> Self:
        if self.length_control is not None and self.source.mode != "pairwise":
            raise ValueError("length_control is for source.mode: pairwise alone, where answers are compared")
        return self

    @property
    def evaluation_set(self) -> EvaluationSet:
        """The questions without answers, all of them, for the decontamination of a data file's prompts."""
        source = self.source
        return EvaluationSet(
            name=source.name,
            loader=source.loader,
            prompt=source.columns.prompt,
            where=source.where,
            transform=source.transform,
        )

    @property
    def asked(self) -> AskedBenchmark:
        """The benchmark as a policy answers it."""
        return AskedBenchmark(name=self.name, sampling=self.sampling, has_majority=bool(self.majority))

    @property
    def compared(self) -> ComparedBenchmark:
        """The benchmark as policies are compared on it."""
        is_whole = not self.source.where and self.source.limit is None
        return ComparedBenchmark(
            name=self.name,
            card=self.card,
            licence=self.licence,
            rows=self.rows if is_whole else None,
            majority=self.majority,
            margin=self.margin,
            length_control=self.length_control,
            fingerprint=self.fingerprint,
        )


def questions(benchmark: BenchmarkFile) -> pa.Table:
    """Return the questions of a benchmark, a table of `schemas.PROMPTS`, read here and not by a stage of a pipeline.

    Raises:
        SpecError: they cannot be read.
    """
    from tasks.sourcing.prompts import build_prompts

    return build_prompts(benchmark.source, benchmark.max_prompt_chars).prompts


def check_names(names: Sequence[str], reserved: Collection[str]) -> None:
    """Check that no two benchmarks of a file have one name, and none has one of the reserved names.

    Raises:
        ValueError: one has.
    """
    for name in names:
        if names.count(name) > 1 or name in reserved:
            taken = "stands twice" if names.count(name) > 1 else "is that of the held-out prompts"
            raise ValueError(f"benchmarks: the name {name!r} {taken}; give one another name")


def check_engine(benchmarks: Sequence[BenchmarkFile], engine: EngineConfig, option: str) -> None:
    """Check that an engine can answer benchmarks: with a response and a prompt in its context, and within budgets.

    `option` is the name of the engine's `max_model_len`, for messages.

    Raises:
        ValueError: it holds no prompt beside a benchmark's longest response, or cannot end thinking at a budget.
    """
    for benchmark in benchmarks:
        if benchmark.sampling.max_tokens >= engine.max_model_len:
            raise ValueError(
                f"benchmark {benchmark.name!r}: its sampling.max_tokens ({benchmark.sampling.max_tokens}) leaves "
                f"no room for a prompt in {option} ({engine.max_model_len})"
            )
        check_thinking_budget(benchmark.sampling.vllm, engine.vllm, f"benchmark {benchmark.name!r}: its sampling")


def benchmark_called(name: str, beside: Path = Path(), where: str = "") -> BenchmarkFile:
    """Return the benchmark that a user names: one that ships, by its file's name, or a path that ends in .yaml.

    Args:
        name: the name or the path.
        beside: the folder that a path is relative to.
        where: what begins the message where no benchmark of that name ships; by default the name.

    Raises:
        SpecError: no such benchmark ships, or the file cannot be read or is no benchmark.
    """
    return load_yaml(BenchmarkFile, file_called(name, BenchmarkFile, beside, where))


def _questions(known: Any) -> Any:
    """Return the evaluation set of the benchmark that a text names; anything else as it is."""
    if not isinstance(known, str):
        return known
    return benchmark_called(known, where=f"evaluation_sets = {known!r}").evaluation_set


NamedQuestions = Annotated[EvaluationSet, BeforeValidator(_questions, json_schema_input_type=EvaluationSet | str)]
"""The type of an evaluation set that may be given by the name, or the path, of a benchmark file."""


def _benchmark(known: Any) -> Any:
    """Return the benchmark that a text names; anything else as it is."""
    return benchmark_called(known, where=f"benchmarks = {known!r}") if isinstance(known, str) else known


NamedBenchmark = Annotated[BenchmarkFile, BeforeValidator(_benchmark, json_schema_input_type=BenchmarkFile | str)]
"""The type of a benchmark that may be given by the name, or the path, of its file."""
