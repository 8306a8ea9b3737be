"""One option changes the sampling of all benchmarks of a file: what it changes, what it keeps, and what it refuses."""

import json

import pytest

from tasks.config.cache_keys import result_options
from tasks.config.loading import SpecError, load_yaml, parse
from tasks.inputs.experiments import ExperimentFile
from tasks.inputs.files import EvaluationFile, Recipe
from tasks.inputs.minimal_options import written_options

THINKS = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 32_768}


def evaluation(*benchmarks, context=40_000, **options):
    """An evaluation file with these benchmarks, whose engine has a context of this length."""
    content = {"extends": "quickstart", "engine.max_model_len": context, "benchmarks": benchmarks, **options}
    return parse(EvaluationFile, json.dumps(content))


def test_all_benchmarks_have_the_options_that_are_given_and_keep_the_others_and_their_prompts():
    names = ("aime_2024", "gsm8k", "livecodebench_v6")
    plain, changed = evaluation(*names), evaluation(*names, benchmark_sampling=THINKS)
    for before, after in zip(plain.benchmarks, changed.benchmarks, strict=True):
        assert after.sampling == before.sampling.model_copy(update=THINKS)
        assert after.sampling.samples == before.sampling.samples
        assert (after.source, after.compared, after.asked.name) == (before.source, before.compared, before.asked.name)
    assert changed.sampling == plain.sampling, "the held-out prompts have options of their own"


def test_another_sampling_is_another_key_of_the_stage_and_the_questions_keep_theirs():
    plain, changed = evaluation("gsm8k"), evaluation("gsm8k", benchmark_sampling=THINKS)
    assert result_options(plain.asked) != result_options(changed.asked)
    assert result_options(plain.of_a_policy) == result_options(changed.of_a_policy)
    before, after = (result_options(file.benchmarks[0].source) for file in (plain, changed))
    assert before == after


def test_mappings_are_merged_and_a_file_that_extends_another_changes_single_options(tmp_path):
    benchmark = {"extends": "gsm8k", "sampling.vllm": {"repetition_penalty": 1.1}}
    (tmp_path / "mine.yaml").write_text(json.dumps(benchmark))
    base = {"extends": "quickstart", "engine.max_model_len": 40_000, "benchmarks": ["mine.yaml"]}
    (tmp_path / "base.yaml").write_text(
        json.dumps(base | {"benchmark_sampling": {**THINKS, "vllm": {"min_tokens": 2}}})
    )
    (tmp_path / "file.yaml").write_text(json.dumps({"extends": "base.yaml", "benchmark_sampling.top_p": 1.0}))
    [mine] = load_yaml(EvaluationFile, tmp_path / "file.yaml").benchmarks
    assert mine.sampling.vllm == {"min_tokens": 2, "repetition_penalty": 1.1}
    assert (mine.sampling.temperature, mine.sampling.top_p, mine.sampling.max_tokens) == (1.0, 1.0, 32_768)


def test_what_is_not_given_stays_so_in_json_and_in_the_files_that_a_run_keeps():
    file = evaluation("gsm8k", benchmark_sampling={"temperature": 1.0})
    assert json.loads(file.model_dump_json())["benchmark_sampling"] == {"temperature": 1.0}, "1.0 is the default"
    for again in (parse(EvaluationFile, file.model_dump_json()), EvaluationFile.model_validate(written_options(file))):
        assert again.benchmarks == file.benchmarks
        assert again.model_dump() == file.model_dump()
    assert file.benchmarks[0].sampling.max_tokens == 1024


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"benchmark_sampling": {"temprature": 1}}, "unknown key (did you mean 'temperature'?); accepted: chat_temp"),
        ({"benchmark_sampling": {"temperature": -1}}, "benchmark_sampling.temperature = -1: must be greater than or"),
        ({"benchmark_sampling": {"samples": 8}}, "benchmark 'aime-2024' with benchmark_sampling: the whole file: majo"),
        ({"benchmark_sampling": {"max_tokens": 40_000}}, "its sampling.max_tokens (40000) leaves no room for a prompt"),
        (
            {"benchmark_sampling": {"vllm": {"thinking_token_budget": 8}}},
            "thinking_token_budget is 8, and the engine d",
        ),
        ({"benchmark_sampling": {"top_k": 1}, "benchmarks": []}, "there are no benchmarks that it would change"),
    ],
)
def test_options_that_no_benchmark_can_have_are_refused_in_one_message(options, message):
    with pytest.raises(SpecError) as error:
        evaluation("aime_2024", **options) if "benchmarks" not in options else evaluation(**options)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_validation_while_training_has_the_same_option():
    recipe = parse(Recipe, "olmo3_instruct_7b")
    [ifeval] = recipe.benchmarks
    assert (ifeval.name, ifeval.sampling.temperature, ifeval.sampling.max_tokens) == ("ifeval-olmo3", 0.6, 8192)
    with pytest.raises(
        SpecError, match=r"'ifeval-olmo3': its sampling.max_tokens \(32768\) leaves no room .* \(10240\)"
    ):
        parse(Recipe, json.dumps({"extends": "olmo3_instruct_7b", "validation.benchmark_sampling": None}))


@pytest.mark.parametrize("name", ["domains", "start", "updates"])
def test_experiments_with_a_policy_that_thinks_evaluate_it_as_olmo_3_is_evaluated(name):
    experiment = parse(ExperimentFile, name)
    files = experiment.build_variant(next(iter(experiment.variants)))
    assert files.training.data == "dolci_think_rl_7b"
    for benchmark in (*files.evaluation.benchmarks, *files.training.benchmarks):
        assert benchmark.name.endswith("-olmo3")
        assert benchmark.sampling.max_tokens == 32_768 < files.evaluation.engine.max_model_len
