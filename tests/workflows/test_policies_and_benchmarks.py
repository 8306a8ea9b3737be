"""Benchmarks and policies of an evaluation file: what runs for them, what runs again, and what a person then has."""

import json
import re

import pytest
from click.testing import CliRunner
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.commands.group import rlvr as command
from tasks.config.loading import SpecError, load_yaml, parse
from tasks.inputs.evaluations import check_evaluation
from tasks.inputs.experiments import Experiment, ExperimentFile
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.preflight import check_together
from tasks.tables.parquet import read_table
from tasks.tables.schemas import EVALUATION, EVALUATION_ROLLOUTS, PROMPTS
from tests.paths import ROOT
from tests.training.mixtures import mixture
from workflows.evaluation import evaluation
from workflows.rlvr import rlvr

pytestmark = pytest.mark.long

SUMS = """
name: {name}
card: https://example.org/sums
licence: mit
margin: 0.5
source:
  domain: math
  verifier: math
  loader: {{kind: jsonl, path: {name}.jsonl}}
  columns: {{prompt: question, ground_truth: answer}}
sampling: {{samples: 2, max_tokens: 8, seed: 3}}
"""


@pytest.fixture
def written(tmp_path):
    """Writes benchmarks of four sums each, and returns an evaluation file with them and with further options."""

    def evaluation(*names: str, **options) -> EvaluationFile:
        for offset, name in enumerate(names):
            rows = [{"question": f"{offset} + {i} =", "answer": str(offset + i)} for i in range(4)]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
            (tmp_path / f"{name}.yaml").write_text(SUMS.format(name=name))
        files = [str(tmp_path / f"{name}.yaml") for name in names]
        return parse(EvaluationFile, json.dumps({"extends": "quickstart", "benchmarks": files, **options}))

    return evaluation


@pytest.fixture
def run(stand_ins, monkeypatch):
    """Runs the quickstart with an evaluation file; which of the heavy tasks really ran, and what `summary.json` has."""
    monkeypatch.setattr("tasks.charts.drawing._render_svg", lambda *_: "<svg/>")

    def run_with(evaluation: EvaluationFile) -> tuple[dict[str, int], dict]:
        stand_ins.ran.clear()
        made = rlvr(**dict(zip(("data", "training"), load_quickstart()[:2], strict=True)), evaluation=evaluation)
        with open(made.summary) as file:
            return dict(stand_ins.ran), json.load(file)

    return run_with


def other_model(folder):
    """A folder that counts as a model: what stands for `prepare_model` reads nothing of it."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return {"source": {"kind": "hub", "name": "nobody/another", "revision": "a" * 40}}


def test_policies_answer_benchmarks_and_what_ran_once_does_not_run_again(run, written, tmp_path):
    evaluation = written("sums", "more", policies={"other": other_model(tmp_path / "other")})
    ran, summary = run(evaluation)
    assert ran["evaluate_policy"] == 3
    assert {f"evaluation: {name}" for name in ("before", "after", "other")} <= set(summary["stages"])
    assert run(evaluation)[0] == {}

    latest = tmp_path / "outputs" / "latest"
    rollouts = read_table(latest / "evaluation_rollouts.parquet", EVALUATION_ROLLOUTS).to_pandas()
    assert set(rollouts["policy"]) == {"before", "after", "other"}
    assert (rollouts[rollouts.benchmark == "sums"].groupby("policy").size() == 8).all()
    figures = read_table(latest / "evaluation.parquet", EVALUATION).to_pandas()
    assert {"all", "sums", "more"} <= set(figures["benchmark"])
    pairs = figures[figures.baseline.notna()].groupby(["policy", "baseline"]).size()
    assert set(pairs.index) == {("after", "before"), ("other", "before")}
    page = (latest / "report.html").read_text()
    assert "All policies" in page
    assert re.search(r'<th scope="row">sums</th>', page)
    assert '<th scope="row">more</th><td>mit</td><td class="n">4</td>' in page

    assert [path.name for path in (latest / "view").iterdir()] == ["README.txt"]
    assert "view/index.html" not in page

    done = CliRunner().invoke(command, ["show", str(latest), "--benchmark", "sums", "--flipped", "better"])
    assert done.exit_code == 0, done.output
    better = int(re.search(r"after against before (\d+) better and 0 worse", done.output)[1])
    assert len(re.findall(r"^\w{8}  sums row \d  0 \+ \d =$", done.output, re.MULTILINE)) == better > 0
    assert f"{better} of {better} shown" in done.output


@pytest.mark.parametrize(("ends", "warned"), [("length", True), ("stop", False)])
def test_truncated_responses_are_a_warning_in_log_report_and_last_lines(
    run, written, stand_ins, tmp_path, capsys, caplog, ends, warned
):
    stand_ins.ends = ends
    _, summary = run(written("sums"))
    page, printed = (tmp_path / "outputs" / "latest" / "report.html").read_text(), capsys.readouterr().out
    for policy in ("before", "after"):
        [message] = [one for one in summary["warnings"] if one.startswith(f"policy '{policy}'")] or [""]
        assert ("held out 100.0%" in message and "sums 100.0%" in message) == warned
        assert any(message == record.getMessage() for record in caplog.records) == warned
        assert (f"\nwarning     policy '{policy}': responses are cut off at max_tokens (" in printed) == warned
        assert (f"policy &#39;{policy}&#39;: responses are cut off at max_tokens (" in page) == warned


MMLU = {"name": "mmlu", "tasks": ["mmlu"], "margin": 0.1}


def test_what_the_harness_asks_stands_beside_the_other_benchmarks(run, written, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.inputs.preflight.check_installed", lambda: None)
    policies = {"other": other_model(tmp_path / "other")}
    ran, summary = run(written("sums", harness=[MMLU], policies=policies))
    assert (ran["evaluate_policy"], ran["evaluate_by_harness"]) == (3, 3)
    assert {f"harness: mmlu of {name}" for name in ("before", "after", "other")} <= set(summary["stages"])
    assert run(written("sums", harness=[MMLU], policies=policies))[0] == {}
    more = [MMLU, {"name": "bbh", "tasks": ["bbh"], "metric": "exact_match"}]
    assert run(written("sums", harness=more, policies=policies))[0] == {"evaluate_by_harness": 3}

    latest = tmp_path / "outputs" / "latest"
    figures = read_table(latest / "evaluation.parquet", EVALUATION).to_pylist()
    rates = {
        (row["policy"], row["baseline"]): (row["value"], row["n"])
        for row in figures
        if (row["benchmark"], row["metric"]) == ("mmlu", "pass_rate")
    }
    assert rates["before", None] == rates["other", None] == (1 / 2, 20)
    assert rates["after", None] == (1, 20)
    assert rates["after", "before"] == (1 / 2, 20)
    assert "truncated" not in {row["metric"] for row in figures if row["benchmark"] == "mmlu"}
    assert re.search(r'<th scope="row">mmlu</th>.*>yes<', (latest / "report.html").read_text())
    done = CliRunner().invoke(command, ["show", str(latest), "--benchmark", "mmlu", "--flipped"])
    assert "20 questions, of after against before 10 better and 0 worse; 10 of 10 shown" in done.output


def test_a_harness_that_is_not_installed_is_one_sentence_before_anything_runs(run, written, stand_ins, monkeypatch):
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["no-such-package"])
    with pytest.raises(Exception, match=r"harness: lm-eval .*: pip install 'rlvr-flyte\[harness\]'"):
        run(written(harness=[MMLU]))
    assert not stand_ins.ran


def test_prompts_that_hold_a_benchmarks_question_are_counted_before_the_first_rollout(run, written, tmp_path, caplog):
    run(written())
    prompt = read_table(tmp_path / "outputs" / "latest" / "prompts.parquet", PROMPTS).to_pylist()[0]
    evaluation = written("sums")
    row = {"question": prompt["messages"][-1]["content"], "answer": "1"}
    (tmp_path / "sums.jsonl").write_text(json.dumps(row))
    ran, _ = run(evaluation)
    assert "split_prompts" not in ran, "the mixture is as it was"
    assert f"source {prompt['source']!r}: 1 prompts contain a question of benchmark 'sums'" in caplog.text


def test_the_gain_of_the_summary_is_that_of_the_held_out_prompts_whatever_the_baseline(run, written, tmp_path):
    plain = run(written())[1]
    other = {"other": other_model(tmp_path / "other")}
    compared = run(written("sums", policies=other, baseline="other"))[1]
    assert {name: plain[name] for name in ("before", "after", "gain", "n")} == {
        name: compared[name] for name in ("before", "after", "gain", "n")
    }


def test_a_policy_that_is_the_initial_checkpoint_is_evaluated_once(run, written):
    model = json.loads(load_quickstart()[1].model.model_dump_json(exclude_none=True))
    ran, summary = run(written("sums", policies={"again": model}))
    assert ran["evaluate_policy"] == 2
    assert "evaluation: again" not in summary["stages"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policies": {"before": {}}}, "'before' is a policy of every run"),
        (
            {"baseline": "afterwards"},
            r"no policy is called 'afterwards' \(did you mean 'after'\?\); there are: after, b",
        ),
        ({"benchmarks": ["gsm9k"]}, r"benchmarks = 'gsm9k': no such file \(did you mean 'gsm8k'\?\)"),
        ({"benchmarks": ["gsm8k", "gsm8k"], "engine.max_model_len": 4096}, "'gsm8k-test' occurs twice"),
        ({"benchmarks": ["gsm8k"]}, r"'gsm8k-test': its sampling.max_tokens \(1024\) leaves no room .* \(512\)"),
        (
            {"sampling.vllm": {"thinking_token_budget": 8}},
            r"sampling.vllm.thinking_token_budget is 8, and the engine does not know .* engine.vllm.reasoning_parser",
        ),
    ],
)
def test_a_mistake_in_policies_or_benchmarks_is_one_sentence(options, sentence):
    with pytest.raises(SpecError, match=sentence):
        parse(EvaluationFile, json.dumps({"extends": "quickstart", **options}))


@pytest.mark.complete
@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("own_cache")
def test_a_further_benchmark_costs_its_own_responses_alone(written, tiny_model, tmp_path):
    heldout = mixture(tmp_path, [f"Write a sentence about the {word}" for word in ("sea", "rain")])
    model = FlyteDirectory(str(tiny_model))
    asked = {"engine": {"max_model_len": 128, "cpu_threads": 1}, "sampling": {"samples": 2, "max_tokens": 8, "seed": 1}}

    def evaluated(*names):
        done = evaluation(
            model=model, policy=model, heldout=FlyteFile(str(heldout)), evaluation=written(*names, **asked)
        )
        return done, [one.facts["output_tokens"] for one in done.summaries if one.stage == "evaluation"]

    _, first = evaluated("sums")
    done, second = evaluated("sums", "more")
    assert first[0] > 0
    rollouts = read_table(done.evaluation_rollouts.path, EVALUATION_ROLLOUTS).to_pandas()
    new = rollouts[(rollouts.benchmark == "more") & (rollouts.policy == "before")]
    assert second[0] == new.num_tokens.sum(), "the other responses came from the cache"
    assert rollouts.groupby("benchmark").policy.nunique().to_dict() == {"heldout": 2, "sums": 2, "more": 2}


def test_a_benchmark_has_a_name_of_its_own(written):
    with pytest.raises(SpecError, match="benchmarks: 'math' is a domain of quickstart"):
        check_evaluation(*load_quickstart()[:2], written("math"))


def test_a_benchmark_of_chat_needs_a_judge():
    chat = "{extends: quickstart, benchmarks: [rlvr_multi_subject], engine.max_model_len: 8192}"
    with pytest.raises(SpecError, match="'multi-subject-test': chat needs a judge"):
        check_evaluation(parse(DataFile, "gsm8k"), load_quickstart()[1], parse(EvaluationFile, chat))


def test_heldout_prompts_are_not_evaluated_with_the_samples_that_selected_them():
    data, recipe, evaluation = load_quickstart()
    check_evaluation(data, recipe, evaluation)
    same = evaluation.sampling.model_copy(update={"seed": data.difficulty.sampling.seed})
    with pytest.raises(SpecError, match=r"sampling.seed = 11 is also difficulty.sampling.seed of quickstart"):
        check_evaluation(data, recipe, evaluation.model_copy(update={"sampling": same}))
    check_evaluation(data.model_copy(update={"difficulty": None}), recipe, evaluation)


def test_the_documents_files_are_what_they_say(tmp_path):
    page = (ROOT / "docs" / "evaluation.md").read_text()
    for name, text in re.findall(r"```yaml\n# (my_\w+\.yaml)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    (tmp_path / "sums.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}')
    evaluation = load_yaml(EvaluationFile, tmp_path / "my_evaluation.yaml")
    assert evaluation.names_of_policies == ["before", "after", "released", "earlier", "elsewhere"]
    assert [benchmark.name for benchmark in evaluation.benchmarks] == ["gsm8k-test", "sums"]
    assert evaluation.benchmarks[1].source.loader.path == str(tmp_path / "sums.jsonl")
    thinking = load_yaml(EvaluationFile, tmp_path / "my_thinking_evaluation.yaml").benchmarks
    assert {(one.sampling.temperature, one.sampling.max_tokens) for one in thinking} == {(0.6, 16_384)}
    recipe = load_yaml(Recipe, tmp_path / "my_validated_recipe.yaml")
    assert [benchmark.name for benchmark in recipe.benchmarks] == ["sums"]
    experiment = Experiment.of(load_yaml(ExperimentFile, tmp_path / "my_experiment.yaml"))
    assert [(name, files.training.seed) for name, files in experiment.runs] == [
        (name, seed) for name in ("as-it-is", "faster") for seed in (0, 1)
    ]
    for files in experiment.variants.values():
        check_together(files.data, files.training, files.evaluation)
