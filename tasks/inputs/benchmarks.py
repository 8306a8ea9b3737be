"""Benchmark files: published questions with the protocol by which policies answer them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from tasks.config import Extendable, file_called, load_yaml
from tasks.config_fields import InFile
from tasks.evaluation.spec import AskedBenchmark, ComparedBenchmark
from tasks.generation.config import SamplingConfig
from tasks.sourcing.spec import EvaluationSet, SourceSpec


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
    length_control: InFile[str | None] = None
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
