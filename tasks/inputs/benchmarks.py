"""Defines benchmark files, which contain published questions and the protocol for answering them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from tasks.config.fields import InFile, NameOrFile, OnlyGiven
from tasks.config.loading import Config, Extendable, explain, find_file, load_yaml, merge
from tasks.evaluation.spec import ComparedBenchmark
from tasks.generation.benchmark_sampling import AskedBenchmark
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.vllm_arguments import check_thinking_budget
from tasks.sourcing.spec import EvaluationSet, SourceSpec
from tasks.storage.sent_files import FilePath


class BenchmarkFile(Extendable):
    """A benchmark: its questions, their verifier, and the sampling options."""

    folder: ClassVar[Path] = Path(__file__).parents[2] / "data_specs" / "benchmarks"
    reference: ClassVar[str] = "docs/options/benchmark.md"

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the benchmark, without spaces. It must differ from the sources of a data file with it in
    `evaluation_sets`.
    """
    card: str = Field(pattern=r"^https?://\S+$")
    """Address of the public page that describes the questions."""
    licence: str = Field(min_length=1)
    """Licence of the questions, as stated on the card; `unknown` if the card does not state one."""
    rows: int | None = Field(default=None, ge=1)
    """Optional. Number of questions according to the card, which is compared with the number of rows that are read
    without `where` and `limit`. If null, the number is not known."""
    source: SourceSpec
    """The questions, with the same options as a source of a data file (loader, verifier, domain, mode, columns etc.).
    `name` is optional, and defaults to the benchmark's name."""
    max_prompt_chars: int = Field(default=100_000, ge=1)
    """Maximum number of characters in all messages of a prompt. Longer prompts are dropped."""
    sampling: SamplingConfig
    """Sampling options, the same for every policy, with `samples` responses to each question (n). All of vLLM's options
    are supported, as in `vllm: {repetition_penalty: 1.1}`. `vllm: {thinking_token_budget: 4096}` ends the thinking of a
    response after 4,096 tokens, and requires `engine.vllm.reasoning_parser` in the evaluation file. Verifiers never see
    the thinking, with or without a budget."""
    majority: list[Annotated[int, Field(ge=1)]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Values of k for majority@k, the pass rate of the most common answer among k responses. Each is at most
    `sampling.samples`. Only the verifier `math` supports it, because its answers can be counted."""
    by: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns in `source.columns.keep`, such as a subject or a level. The pass rate and the mean score are also
    computed for each of their values."""
    length_control: InFile[FilePath | None] = None
    """Optional, for `mode: pairwise`. The file published by the authors of AlpacaEval (`df_gamed.csv`) with the
    difficulties of the instructions and the baseline's comparisons with itself, which is used to compute
    `length_controlled_win_rate`. It is a path or an fsspec URL, such as `hf://datasets/...`. If null, only `win_rate`
    is computed."""
    fingerprint: str | None = None
    """Digest of that file if it is local. It is filled in before a run."""
    margin: float | None = Field(default=None, ge=0, le=1)
    """Optional. Non-inferiority margin of the pass rate, in [0, 1]. A policy has maintained the benchmark if the
    confidence interval of its difference from the baseline lies above -margin. If null, this is not tested."""

    @field_validator("source", mode="before")
    @classmethod
    def _set_source_name(cls, source: Any, info: ValidationInfo) -> Any:
        name = info.data.get("name", "unnamed")
        if not isinstance(source, dict):
            return source
        if source.get("name", name) != name:
            raise ValueError(f"its name is {source['name']!r}, and the benchmark's is {name!r}; leave the source's out")
        return {**source, "name": name}

    @field_validator("source")
    @classmethod
    def _refuse_top_up(cls, source: SourceSpec) -> SourceSpec:
        if source.top_up is not None:
            raise ValueError("top_up is only for prompts that difficulty selects, and this is a benchmark; give limit")
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
    def _check_kept_columns(self) -> Self:
        if missing := [name for name in self.by if name not in self.source.columns.keep]:
            raise ValueError(f"by: {missing[0]!r} is not in source.columns.keep, which keeps columns of the rows")
        return self

    @model_validator(mode="after")
    def _check_length_control(self) -> Self:
        if self.length_control is not None and self.source.mode != "pairwise":
            raise ValueError("length_control is only for source.mode: pairwise, which compares answers")
        return self

    @property
    def evaluation_set(self) -> EvaluationSet:
        """Return all questions without answers, for the decontamination of a data file's prompts."""
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
        """Return the part of the benchmark that is needed to sample from a policy."""
        return AskedBenchmark(name=self.name, sampling=self.sampling, has_majority=bool(self.majority))

    @property
    def compared(self) -> ComparedBenchmark:
        """Return the part of the benchmark that is needed to compare policies."""
        is_whole = not self.source.where and self.source.limit is None
        return ComparedBenchmark(
            name=self.name,
            card=self.card,
            licence=self.licence,
            rows=self.rows if is_whole else None,
            majority=self.majority,
            by=self.by,
            margin=self.margin,
            length_control=self.length_control,
            fingerprint=self.fingerprint,
        )


def read_questions(benchmark: BenchmarkFile) -> pa.Table:
    """Read the questions of a benchmark into a table of `schemas.PROMPTS`, outside of any pipeline stage.

    Raises:
        SpecError: they cannot be read.
    """
    from tasks.sourcing.prompts import build_prompts

    return build_prompts(benchmark.source, benchmark.max_prompt_chars).prompts


def check_names(names: Sequence[str], reserved: Collection[str]) -> None:
    """Check that the benchmarks of a file have distinct names, none of which is reserved.

    Raises:
        ValueError: a name is reserved or occurs twice.
    """
    for name in names:
        if names.count(name) > 1 or name in reserved:
            taken = "occurs twice" if names.count(name) > 1 else "is that of the held-out prompts"
            raise ValueError(f"benchmarks: the name {name!r} {taken}; give one another name")


def check_engine(benchmarks: Sequence[BenchmarkFile], engine: EngineConfig, option: str) -> None:
    """Check that the engine's context has room for each benchmark, and that the engine supports thinking budgets.

    `option` is the name of the engine's `max_model_len`, for messages.

    Raises:
        ValueError: the context has no room for a prompt next to a benchmark's longest response, or the engine cannot
            end thinking at a budget.
    """
    for benchmark in benchmarks:
        if benchmark.sampling.max_tokens >= engine.max_model_len:
            raise ValueError(
                f"benchmark {benchmark.name!r}: its sampling.max_tokens ({benchmark.sampling.max_tokens}) leaves "
                f"no room for a prompt in {option} ({engine.max_model_len})"
            )
        check_thinking_budget(benchmark.sampling.vllm, engine.vllm, f"benchmark {benchmark.name!r}: its sampling")


def find_benchmark(name: str, beside: Path = Path(), where: str = "") -> BenchmarkFile:
    """Return the benchmark that a user names, by the name of a built-in benchmark or by a path that ends in .yaml.

    Args:
        name: the name or the path.
        beside: the folder that a path is relative to.
        where: beginning of the error message if there is no built-in benchmark of that name. Defaults to the name.

    Raises:
        SpecError: there is no such built-in benchmark, or the file cannot be read or is not a benchmark.
    """
    return load_yaml(BenchmarkFile, find_file(name, BenchmarkFile, beside, where))


def _resolve_questions(known: Any) -> Any:
    """Return the evaluation set of a benchmark given by name, and any other value unchanged."""
    if not isinstance(known, str):
        return known
    return find_benchmark(known, where=f"evaluation_sets = {known!r}").evaluation_set


NamedQuestions = Annotated[
    EvaluationSet, BeforeValidator(_resolve_questions, json_schema_input_type=EvaluationSet | str)
]
"""The type of an evaluation set that may also be given as the name or path of a benchmark file."""


def _resolve_benchmark(known: Any) -> Any:
    """Return the benchmark given by name, and any other value unchanged."""
    return find_benchmark(known, where=f"benchmarks = {known!r}") if isinstance(known, str) else known


NamedBenchmark = Annotated[
    BenchmarkFile, BeforeValidator(_resolve_benchmark, json_schema_input_type=BenchmarkFile | str)
]
"""The type of a benchmark that may also be given as the name or path of its file."""


class BenchmarksInFile(Config):
    """The benchmarks of an evaluation file, or of the validation of a recipe."""

    benchmark_sampling: OnlyGiven[SamplingConfig] | None = None
    """Optional. Sampling options for all `benchmarks` of this file, as in `{temperature: 0.6, top_p: 0.95, max_tokens:
    32768}`, which replace the benchmarks' own. Options that are not given stay as each benchmark has them, and so do
    its prompts. Benchmarks of `harness` have their own options. If null, benchmarks are sampled as their files say."""
    benchmarks: NameOrFile[list[NamedBenchmark]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Benchmarks to answer in addition to held-out prompts, each with its own sampling options. Each item is the name
    of a built-in benchmark, or the path of a benchmark file, which ends in .yaml, is relative to this file, and may
    extend a built-in benchmark. Names that end in `_olmo3` are protocols for policies that think."""

    @field_validator("benchmarks")
    @classmethod
    def _apply_sampling(cls, benchmarks: list[BenchmarkFile], info: ValidationInfo) -> list[BenchmarkFile]:
        changes = info.data.get("benchmark_sampling")
        return benchmarks if changes is None else [_replace_sampling(benchmark, changes) for benchmark in benchmarks]

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        if self.benchmark_sampling is not None and not self.benchmarks:
            raise ValueError("benchmark_sampling: there are no benchmarks that it would change; leave it out")
        return self


def _replace_sampling(benchmark: BenchmarkFile, changes: SamplingConfig) -> BenchmarkFile:
    """Return a benchmark with changed sampling options. Raises `ValueError` if the benchmark does not allow them."""
    sampling = merge(benchmark.sampling.model_dump(), changes.model_dump(exclude_unset=True))
    try:
        return BenchmarkFile.model_validate({**dict(benchmark), "sampling": sampling})
    except ValidationError as error:
        where = f"benchmark {benchmark.name!r} with benchmark_sampling"
        raise ValueError(explain(error, where, BenchmarkFile)) from None
