"""Checks the benchmarks of an evaluation file and a recipe against the data file, and adds digests to the former."""

from __future__ import annotations

from pathlib import Path

from tasks.config.loading import SpecError
from tasks.evaluation.spec import check_server
from tasks.generation.config import SamplingConfig
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.judges import check_has_judge
from tasks.storage.sent_files import SentFile
from tasks.tables.content_digest import file_digest


def check_evaluation(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Check that benchmarks can be scored with the data file's verifiers, and that their names are unique.

    This covers the benchmarks of the evaluation and of the recipe's validation.

    Raises:
        SpecError: a chat benchmark has no judge, a benchmark has the name of a domain, or one server is given for
            several policies, or greedy responses are sampled several times, or with the seed of the difficulty filter.
    """
    check_server(evaluation)
    check_seed(data, evaluation)
    plays = any(source.environment is not None for source in data.used_sources)
    check_greedy("evaluation: sampling", evaluation.sampling, plays=plays)
    domains = {domain for source in data.used_sources for domain in source.domains}
    for benchmark in (*evaluation.benchmarks, *training.benchmarks):
        check_has_judge(benchmark.source, data)
        plays = benchmark.source.environment is not None
        check_greedy(f"benchmark {benchmark.name!r}: sampling", benchmark.sampling, plays=plays)
    for name in evaluation.names_of_benchmarks:
        if name in domains:
            raise SpecError(
                f"evaluation: benchmarks: {name!r} is a domain of {data.name}, which has its own metrics: give the "
                "benchmark another name"
            )


def check_seed(data: DataFile, evaluation: EvaluationFile) -> None:
    """Check that held-out prompts are evaluated with new samples, and not with the samples that selected them.

    Prompts with few right answers among the samples of the difficulty filter were kept. Another look at the same
    samples would show a lower pass rate of the initial checkpoint than it has, and therefore a gain without training.

    Raises:
        SpecError: both have the same seed.
    """
    seed = evaluation.sampling.seed
    if data.difficulty is not None and seed is not None and seed == data.difficulty.sampling.seed:
        raise SpecError(
            f"evaluation: sampling.seed = {seed} is also difficulty.sampling.seed of {data.name}: the held-out prompts "
            "were selected by these samples, so that the initial checkpoint would look worse than it is; give another"
        )


def check_greedy(where: str, sampling: SamplingConfig, *, plays: bool) -> None:
    """Check that several responses to a prompt can differ, at least by the environment that the policy `plays` with.

    Raises:
        SpecError: they are the same.
    """
    if sampling.temperature == 0 and sampling.samples > 1 and not plays:
        raise SpecError(
            f"{where}: samples = {sampling.samples} with temperature = 0, which gives the same response each time: set "
            "samples to 1, or the temperature above 0"
        )


def add_digests(evaluation: EvaluationFile) -> EvaluationFile:
    """Add digests of the harness's task files and the data of win rates to the evaluation file.

    Raises:
        SpecError: a folder or file does not exist.
    """
    benchmarks = []
    for known in evaluation.benchmarks:
        file = known.length_control
        if isinstance(file, SentFile):
            benchmarks.append(known.model_copy(update={"fingerprint": file.sha256}))
            continue
        if file is None or "://" in file:
            benchmarks.append(known)
            continue
        if not Path(file).expanduser().is_file():
            raise SpecError(f"evaluation: benchmark {known.name!r}: length_control = {file!r}: no such file")
        benchmarks.append(known.model_copy(update={"fingerprint": file_digest(str(Path(file).expanduser()))}))
    harness = []
    for benchmark in evaluation.harness:
        path = benchmark.include_path
        if path is not None and not Path(path).expanduser().is_dir():
            raise SpecError(f"evaluation: harness: {benchmark.name!r}: include_path = {path!r}: no such folder")
        digest = None if path is None else file_digest(str(Path(path).expanduser()))
        harness.append(benchmark.model_copy(update={"fingerprint": digest or benchmark.fingerprint}))
    return evaluation.model_copy(update={"benchmarks": benchmarks, "harness": harness})
