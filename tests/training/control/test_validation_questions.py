"""The questions of benchmarks that validation asks: which are left out, and what makes another run."""

import pyarrow as pa
import pytest

from tasks.failures import MistakeError
from tasks.generation.benchmark_sampling import AskedBenchmark
from tasks.generation.config import SamplingConfig
from tasks.recipe.run import TrainingConfig
from tasks.rollouts.judging import RolloutError
from tasks.tables.parquet import read_table
from tasks.tables.schemas import MIXTURE, PROMPTS
from tasks.training.control.questions import Benchmark, load_questions
from tasks.verifiers import VerifiersConfig
from tests.training.mixtures import mixture

CONFIG = TrainingConfig.model_validate({"sampling": {"max_tokens": 20}, "actors": {"engine": {"max_model_len": 64}}})


def benchmark(folder, *contents, verifier="precise_if", sampling=None, **truth):
    table = read_table(mixture(folder, contents, verifier=verifier, **truth), MIXTURE).select(PROMPTS.names)
    sampling = sampling or SamplingConfig(samples=3, max_tokens=16, seed=5)
    return Benchmark(AskedBenchmark(name="words", sampling=sampling), pa.table(table))


def loaded(model, *benchmarks):
    return load_questions(CONFIG, model, benchmarks, VerifiersConfig())


def test_a_question_has_its_benchmarks_sampling_and_a_seed_of_the_run_where_it_has_none(tiny_model, tmp_path):
    (question,) = loaded(tiny_model, benchmark(tmp_path, "What is the sea?"))
    assert (question.benchmark, question.sampling.samples, question.sampling.seed) == ("words", 3, 5)
    assert question.prompt.ground_truth["instruction_ids"] == ["keywords:letter_frequency"]
    (question,) = loaded(tiny_model, benchmark(tmp_path, "What is the sea?", sampling=SamplingConfig(max_tokens=16)))
    assert question.sampling.seed == CONFIG.seed


def test_a_question_that_does_not_fit_is_left_out_and_counted(tiny_model, tmp_path, caplog):
    (question,) = loaded(tiny_model, benchmark(tmp_path, "Sea?", "#" * 60))
    assert question.prompt.messages[0]["content"] == "Sea?"
    assert "words: 1 questions are left out: they do not fit with its sampling.max_tokens = 16" in caplog.text
    with pytest.raises(MistakeError, match=r"'words' has no question that fits .*max_model_len is 64"):
        loaded(tiny_model, benchmark(tmp_path, "#" * 60))


def test_a_benchmark_that_cannot_be_judged_here_is_an_error_before_anything_starts(tiny_model, tmp_path):
    with pytest.raises(RolloutError, match="none of its 1 prompts can be scored here: a judge"):
        loaded(tiny_model, benchmark(tmp_path, "Tell me a story.", verifier="chat_open", truth=None))


def test_other_questions_answers_or_sampling_have_another_digest(tmp_path):
    first = benchmark(tmp_path, "Sea?")
    assert benchmark(tmp_path, "Sea?").digest == first.digest
    others = (
        benchmark(tmp_path, "River?"),
        benchmark(tmp_path, "Sea?", sampling=SamplingConfig(samples=2, max_tokens=16, seed=5)),
        benchmark(tmp_path, "Sea?", truth={"instruction_ids": [], "kwargs": []}),
    )
    assert len({first.digest, *(other.digest for other in others)}) == 4
