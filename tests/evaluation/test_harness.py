"""lm-evaluation-harness: the real package on task files of ours with local rows, and a tiny random model."""

import json
import logging
from itertools import islice

import pytest

from tasks.config.loading import SpecError, parse
from tasks.evaluation import harness, harness_child, harness_spec
from tasks.evaluation.comparison import compare
from tasks.evaluation.harness_spec import VERSION, HarnessBenchmark
from tasks.failures import MistakeError
from tasks.generation.config import EngineConfig
from tasks.inputs.evaluations import add_digests, check_evaluation
from tasks.inputs.files import DataFile, EvaluationFile, load_quickstart
from tasks.lineage.code_digest import find_distributions, find_reachable_modules
from tasks.reporting.sections import add_policy_names
from tasks.tables.parquet import validate
from tasks.tables.schemas import EVALUATION_ROLLOUTS, PROMPTS
from tests.paths import ROOT
from tests.tiny_model import build

ROWS = [
    {"question": f"What is {a} and {b}?", "choices": [str(a + b), str(a * b), "the sea"], "answer": (a + b) % 3}
    for a in range(1, 4)
    for b in range(2, 6)
]
CHOICE = """
task: our_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
WORDS = """
task: our_words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[2]}}}}"
generation_kwargs: {{until: ["<|im_end|>"], do_sample: false, max_gen_toks: 4}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - {{name: whole, filter: [{{function: take_first}}]}}
  - {{name: word, filter: [{{function: regex, regex_pattern: "(sea)"}}, {{function: take_first}}]}}
"""


@pytest.fixture(scope="module")
def package():
    try:
        harness_spec.check_installed()
    except MistakeError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Task files of ours, with their rows beside them."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "choice.yaml").write_text(CHOICE.format(rows=rows))
    (folder / "words.yaml").write_text(WORDS.format(rows=rows))
    (folder / "shots.yaml").write_text(CHOICE.format(rows=rows).replace("our_choice", "our_shots") + "num_fewshot: 0\n")
    return folder


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def choices(folder, **options):
    given = {"name": "choices", "tasks": ["our_choice"], "include_path": str(folder), "backend": "hf"}
    return HarnessBenchmark.model_validate(given | options)


def asked(benchmark, policy):
    return harness.ask(harness.build_request(benchmark, EngineConfig(dtype="float32"), policy, gpu=False)).documents


def likeliest(policy):
    """The choice of each row with the greatest log-probability after its question, by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)

    def logprob(question, choice):
        context = len(tokenizer.encode(question))
        tokens = torch.tensor([tokenizer.encode(f"{question} {choice}")])
        with torch.no_grad():
            logprobs = model(tokens).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
        return float(chosen[context - 1 :].sum())

    for row in ROWS:
        by_choice = [logprob(f"{row['question']}\nAnswer:", choice) for choice in row["choices"]]
        yield by_choice.index(max(by_choice))


def generated(policy, tokens=4):
    """The first `tokens` tokens after each question, the likeliest ones, by transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype="float32")
    for row in ROWS:
        given = tokenizer(row["question"], return_tensors="pt")
        sequence = model.generate(given["input_ids"], max_new_tokens=tokens, do_sample=False)[0]
        yield tokenizer.decode(sequence[given["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.complete
@pytest.mark.long
def test_results_of_the_package_are_compared_as_those_of_any_benchmark(package, folder, tiny_model, tmp_path):
    benchmark = choices(folder, margin=1.0)
    policies = {"before": tiny_model, "after": build(tmp_path / "other", seed=1)}
    documents = {name: asked(benchmark, policy) for name, policy in policies.items()}
    chosen = {name: list(likeliest(policy)) for name, policy in policies.items()}
    for name, listed in documents.items():
        assert [document["response"] for document in listed] == [
            f" {row['choices'][best]}" for row, best in zip(ROWS, chosen[name], strict=True)
        ]
        assert [document["value"] for document in listed] == [
            best == row["answer"] for row, best in zip(ROWS, chosen[name], strict=True)
        ]
    prompts = validate(harness.questions(documents["before"], benchmark), PROMPTS, "questions")
    assert prompts["prompt_id"] == harness.questions(documents["after"], benchmark)["prompt_id"]
    assert prompts["messages"][0].as_py()[0]["content"] == "What is 1 and 2?\nAnswer:"
    answered = {
        name: validate(harness.rollouts(listed, benchmark, name), EVALUATION_ROLLOUTS, "rollouts")
        for name, listed in documents.items()
    }
    found = compare(answered, {"choices": prompts}, "before", [benchmark.compared])
    rates = {name: sum(document["value"] for document in listed) / len(ROWS) for name, listed in documents.items()}
    comparison = found.comparisons["after", "before"]["choices"]
    assert (comparison.baseline_rate, comparison.rate, comparison.n) == (rates["before"], rates["after"], len(ROWS))
    assert comparison.gain == pytest.approx(rates["after"] - rates["before"])
    assert comparison.maintained is True
    metrics = set(found.table["metric"].to_pylist())
    assert metrics == {"pass_rate", "mean_score", "mean_tokens"}, "how responses ended is not known"


@pytest.mark.complete
@pytest.mark.long
def test_responses_are_read_by_the_filter_that_is_named(package, folder, tiny_model):
    words = choices(folder, tasks=["our_words"], metric="exact_match", filter="word", limit=3)
    documents = asked(words, tiny_model)
    assert [document["response"] for document in documents] == list(islice(generated(tiny_model), 3))
    assert {document["target"] for document in documents} == {"the sea"}
    assert [document["value"] for document in documents] == [0, 0, 0], "the filter reads no more than one word"


@pytest.mark.complete
@pytest.mark.long
def test_a_length_of_the_benchmark_overrides_that_of_the_task_and_warnings_are_logged(
    package, folder, tiny_model, caplog
):
    options = {"tasks": ["our_words"], "metric": "exact_match", "filter": "word", "limit": 3}
    words = choices(folder, **options, gen_kwargs={"max_gen_toks": 9})
    answered = harness.ask(harness.build_request(words, EngineConfig(dtype="float32"), tiny_model, gpu=False))
    assert [document["response"] for document in answered.documents] == list(islice(generated(tiny_model, 9), 3))
    assert any("'max_gen_toks': 9" in warning for warning in answered.warnings)
    assert "harness benchmark 'choices': lm-eval: generation_kwargs" in caplog.text


@pytest.mark.parametrize(
    ("response", "thinks", "value"),
    [
        ("<think> 7", True, 0.0),
        (" \n<think>", True, 0.0),
        ("7", True, 1.0),
        ("7 <think>", True, 1.0),
        ("<think> 7", False, 1.0),
    ],
)
def test_thinking_that_is_not_closed_is_no_answer(response, thinks, value):
    sample = {
        "doc_id": 0,
        "doc_hash": "a",
        "arguments": [["Q"]],
        "target": "7",
        "resps": [[response]],
        "exact_match": 1,
    }
    document = harness_child._make_document("here", "task", sample, "exact_match", thinks=thinks)
    assert (document["value"], document["response"]) == (value, response)


def test_each_warning_of_the_package_is_recorded_once():
    package = logging.getLogger("lm_eval")
    with harness_child.record_warnings() as warnings:
        for _ in range(2):
            package.getChild("evaluator").warning("one\nof two")
        package.info("nothing")
        package.error("another")
    package.warning("later")
    assert warnings == ["one of two", "another"]


def test_a_length_has_room_in_the_engine_and_one_name():
    mmlu = {"name": "mmlu", "tasks": ["mmlu"], "gen_kwargs": {"max_gen_toks": 512}}
    with pytest.raises(SpecError, match=r"max_gen_toks \(512\) leaves no room for a prompt in engine.max_model_len"):
        evaluation(harness=[mmlu])
    assert evaluation(harness=[mmlu], engine={"max_model_len": 1024}).harness[0].gen_kwargs == {"max_gen_toks": 512}
    with pytest.raises(SpecError, match="max_tokens: the length of a response is max_gen_toks"):
        evaluation(harness=[mmlu | {"gen_kwargs": {"max_tokens": 9}}])


def test_an_edit_of_a_verifier_does_not_run_the_package_again():
    reached = find_reachable_modules("tasks.evaluation.harness_task")
    assert "tasks.evaluation.harness_child" in reached
    assert not [name for name in reached if name.startswith("tasks.verifiers")]
    assert "vllm" in find_distributions("tasks.evaluation.harness_task")


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tasks": ["our_choise"]}, r"'choices': lm-eval has no task 'our_choise' \(did you mean 'our_choice'\?\)"),
        ({"metric": "f1"}, "task 'our_choice' has no metric 'f1'; it has: acc"),
        (
            {"tasks": ["our_words"], "metric": "exact_match"},
            "task 'our_words' has several filters; give filter, one of: whole, word",
        ),
        ({"filter": "word"}, "task 'our_choice' has no filter 'word'; give filter, one of: none"),
        ({"gen_kwargs": {"max_gen_toks": 9}}, "gen_kwargs: its tasks compare given answers and generate none"),
        (
            {"tasks": ["our_shots"], "num_fewshot": 5},
            "num_fewshot = 5: task 'our_shots' is fixed at 0 examples; leave it out",
        ),
    ],
)
def test_what_the_package_does_not_have_is_one_sentence_before_a_model_is_loaded(package, folder, options, sentence):
    with pytest.raises(MistakeError, match=sentence):
        asked(choices(folder, **options), "no model")


@pytest.mark.complete
@pytest.mark.long
def test_a_package_that_fails_is_an_error_with_its_last_line(package, folder):
    with pytest.raises(harness.HarnessError, match=r"'choices': lm-eval failed: .*no_model"):
        asked(choices(folder), folder / "no_model")


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        ({}, r"lm-eval is not installed: pip install 'rlvr-flyte\[harness\]'"),
        ({"lm-eval": "0.4.2"}, f"lm-eval 0.4.2 is installed, and must be {VERSION}"),
        ({"lm-eval": VERSION, "numpy": "2.0"}, "lm-eval is installed without sacrebleu, which it requires"),
    ],
)
def test_without_the_package_or_what_it_requires_there_is_one_sentence(monkeypatch, versions, sentence):
    from importlib import metadata

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    required = ["numpy", "jinja2; extra == 'api'", "sacrebleu>=1.5.0"]
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda _: required)
    with pytest.raises(MistakeError, match=sentence):
        harness_spec.check_installed()


def test_the_version_is_that_of_the_extra():
    assert f'harness = ["lm-eval=={VERSION}"]' in (ROOT / "pyproject.toml").read_text()


def test_a_policy_is_run_with_the_options_of_the_evaluations_engine():
    benchmark = HarnessBenchmark(name="mmlu", tasks=["mmlu"], chat_template=True)
    engine = EngineConfig(dtype="bfloat16", max_model_len=2048, tensor_parallel_size=2, vllm={"block_size": 32})
    request = harness.build_request(benchmark, engine, "folder", gpu=True)
    assert (request["backend"], request["batch_size"], request["device"]) == ("vllm", "auto", "cuda")
    expected = {"pretrained": "folder", "dtype": "bfloat16", "max_model_len": 2048, "tensor_parallel_size": 2}
    assert expected.items() <= request["arguments"].items()
    assert request["arguments"]["block_size"] == 32
    assert request["arguments"]["think_end_token"] == "</think>"  # noqa: S105 a token of text
    assert request["variables"] == {}
    first = engine.model_copy(update={"model_runner": "v1"})
    assert harness.build_request(benchmark, first, "folder", gpu=True)["variables"] == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    with_transformers = benchmark.model_copy(update={"backend": "hf", "chat_template": False})
    arguments = harness.build_request(with_transformers, engine, "folder", gpu=False)["arguments"]
    assert arguments == {"pretrained": "folder", "dtype": "bfloat16", "max_length": 2048}


def evaluation(**options):
    return parse(EvaluationFile, json.dumps({"extends": "quickstart", **options}))


def test_a_folder_of_task_files_is_part_of_the_benchmark_by_its_content(folder, tmp_path):
    one = {"name": "ours", "tasks": ["our_choice"], "include_path": str(folder)}
    [first] = add_digests(evaluation(harness=[one])).harness
    (folder / "words.yaml").write_text((folder / "words.yaml").read_text() + "# another\n")
    [second] = add_digests(evaluation(harness=[one])).harness
    assert first.fingerprint != second.fingerprint
    with pytest.raises(SpecError, match=r"harness: 'ours': include_path = .*nowhere'?: no such folder"):
        add_digests(evaluation(harness=[one | {"include_path": str(tmp_path / "nowhere")}]))


def test_a_name_that_is_taken_is_one_sentence():
    mmlu = {"name": "mmlu", "tasks": ["mmlu"]}
    with pytest.raises(SpecError, match="the name 'mmlu' occurs twice"):
        evaluation(harness=[mmlu, mmlu])
    with pytest.raises(SpecError, match=r"'math' is a domain of .*: give the benchmark another name"):
        check_evaluation(parse(DataFile, "gsm8k"), load_quickstart()[1], evaluation(harness=[mmlu | {"name": "math"}]))
    assert [one.name for one in evaluation(harness=[mmlu]).compared.benchmarks] == ["mmlu"]


def test_stages_of_the_harness_are_named_by_policy(summary_of):
    stages = [
        "evaluation",
        "evaluation",
        "harness: mmlu",
        "harness: bbh",
        "harness: mmlu",
        "harness: bbh",
        "comparison",
    ]
    named = [one.stage for one in add_policy_names([summary_of(stage) for stage in stages], ["before", "after"])]
    assert named == [
        "evaluation: before",
        "evaluation: after",
        "harness: mmlu of before",
        "harness: bbh of before",
        "harness: mmlu of after",
        "harness: bbh of after",
        "comparison",
    ]


@pytest.fixture
def summary_of():
    from tasks.flyte.stages import Stopwatch

    return lambda stage: Stopwatch(stage).summary("done")
