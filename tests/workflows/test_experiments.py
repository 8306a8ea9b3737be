"""Experiments: variants of a recipe, each the whole pipeline, and the page that compares them."""

import json

import pytest
import yaml

from tasks.config.loading import SpecError, parse
from tasks.flyte.local_run import LocalRun
from tasks.inputs.experiments import Experiment, ExperimentFile
from tasks.inputs.preflight import apply_training_sampling, check_together, check_variants
from tasks.tables.parquet import read_table
from tasks.tables.schemas import EVALUATION
from workflows.experiments import experiment

pytestmark = pytest.mark.long

SUMS = {
    "name": "sums",
    "card": "https://example.org/sums",
    "licence": "mit",
    "source": {
        "domain": "math",
        "verifier": "math",
        "loader": {"kind": "jsonl", "path": "sums.jsonl"},
        "columns": {"prompt": "question", "ground_truth": "answer"},
    },
    "sampling": {"samples": 2, "max_tokens": 8, "seed": 3},
}


@pytest.fixture
def written(tmp_path):
    """Writes an experiment of the quickstart beside a benchmark of four sums; returns its path."""

    def write(**content):
        rows = [{"question": f"1 + {i} =", "answer": str(1 + i)} for i in range(4)]
        (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / "sums.yaml").write_text(yaml.safe_dump(SUMS))
        defaults = {"name": "rates", "recipe": "quickstart", "variants": {"one": {}, "two": {}}}
        (tmp_path / "experiment.yaml").write_text(yaml.safe_dump({**defaults, **content}))
        return str(tmp_path / "experiment.yaml")

    return write


def test_each_variant_runs_the_pipeline_and_what_they_share_runs_once(
    stand_ins, written, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tasks.charts.drawing._render_svg", lambda *_: "<svg/>")
    variants = {"as-it-is": {}, "faster": {"training": {"optimizer.learning_rate": 0.25}}}
    file = parse(Experiment, written(variants=variants, evaluation={"benchmarks": ["sums.yaml"]}))
    made = experiment(experiment=file)
    assert stand_ins.ran["train_policy"] == 2
    assert stand_ins.ran["roll_out"] == stand_ins.ran["prepare_model"] == 1, "both have the same data and model"
    table = read_table(made.evaluation.path, EVALUATION).to_pandas()
    rates = table[table.metric == "pass_rate"]
    assert set(rates.policy) == {"initial", "as-it-is", "faster"}
    assert {"all", "sums"} <= set(rates.benchmark)
    assert set(rates[rates.baseline.notna()].policy) == {"initial", "faster"}
    latest = tmp_path / "outputs" / "experiments" / "latest"
    assert {path.name for path in latest.iterdir()} == {"experiment.html", "experiment.parquet", "variants.yaml"}
    page = (latest / "experiment.html").read_text()
    assert "training.optimizer.learning_rate = 0.25" in page
    printed = capsys.readouterr().out
    assert "sums: faster " in printed
    assert str(latest.resolve() / "experiment.html") in printed

    stand_ins.ran.clear()
    [size] = LocalRun(experiment)(experiment=file).splitlines()
    assert "prune shows" in size, "it is published once, and the stage printed where"
    assert not stand_ins.ran


def test_a_variant_whose_responses_are_truncated_is_a_warning_on_the_page_and_in_the_last_lines(
    stand_ins, written, tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.setattr("tasks.charts.drawing._render_svg", lambda *_: "<svg/>")
    stand_ins.ends = "length"
    variants = {"one": {}, "two": {"training": {"optimizer.learning_rate": 0.25}}}
    experiment(experiment=parse(Experiment, written(variants=variants, evaluation={"benchmarks": ["sums.yaml"]})))
    page = (tmp_path / "outputs" / "experiments" / "latest" / "experiment.html").read_text()
    *_, last = capsys.readouterr().out.rpartition("\nsums: two ")
    for variant in ("one", "two"):
        assert f"policy &#39;{variant}&#39;: responses are cut off at max_tokens (held out 100.0%" in page
        assert f"\nwarning     policy '{variant}': responses are cut off at max_tokens (held out 100.0%" in last
        assert any(record.getMessage().startswith(f"policy '{variant}': ") for record in caplog.records)


def test_each_variant_is_trained_once_with_each_seed_and_its_runs_are_averaged(
    stand_ins, written, monkeypatch, tmp_path
):
    monkeypatch.setattr("tasks.charts.drawing._render_svg", lambda *_: "<svg/>")
    variants = {"one": {}, "two": {"training": {"optimizer.learning_rate": 0.25}}}
    file = parse(Experiment, written(variants=variants, seeds=[3, 4]))
    seeds = [(name, files.training.seed) for name, files in file.runs]
    assert seeds == [
        ("one", 3),
        ("one", 4),
        ("two", 3),
        ("two", 4),
    ]
    made = experiment(experiment=file)
    assert stand_ins.ran["train_policy"] == 4
    assert stand_ins.ran["roll_out"] == stand_ins.ran["prepare_model"] == 1
    table = read_table(made.evaluation.path, EVALUATION).to_pandas()
    assert set(table.policy) == {"initial", "one", "two"}
    page = (tmp_path / "outputs" / "experiments" / "latest" / "experiment.html").read_text()
    assert "2 variants with 2 seeds each" in page


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"seeds": [1, 1]}, "seeds: a seed occurs twice"),
        ({"variants": {"initial": {}, "two": {}}}, "variants: 'initial' is the initial checkpoint"),
        (
            {"seeds": [1, 2], "variants": {"one": {}, "two": {"training": {"seed": 7}}}},
            "variants.two: training.seed: the experiment gives seeds; leave it out",
        ),
        (
            {"variants": {"one": {}, "two": {"evaluation": {"sampling.temperature": 0.5}}}},
            r"variants.two: evaluation: sampling differs from the baseline's \(one\)",
        ),
        (
            {"variants": {"one": {}, "two": {"training": {"validation": {"every": 1, "prompts": 3}}}}},
            r"variants.two: training.validation differs from the baseline's \(one\)",
        ),
        (
            {
                "training": {"validation": {"every": 1, "prompts": 2}},
                "variants": {"one": {}, "two": {"data": {"mixture.heldout": 3}}},
            },
            r"variants.two: its mixture is not the baseline's .* give training.validation.prompts: 0",
        ),
    ],
)
def test_runs_that_could_not_be_compared_are_refused(written, content, sentence):
    with pytest.raises(SpecError, match=sentence):
        parse(Experiment, written(**content))


def test_a_mistake_in_the_last_variant_is_a_sentence_before_the_first_runs(stand_ins, written):
    unknown = written(variants={"one": {}, "two": {"training": {"optimizer.learning_rat": 1}}})
    with pytest.raises(SpecError, match=r"rates: variants.two.training: optimizer.learning_rat: unknown key \(did you"):
        parse(Experiment, unknown)
    contradicting = written(variants={"one": {}, "two": {"data": {"mixture.sources": {"nothing": {"weight": 1}}}}})
    with pytest.raises(SpecError, match=r"rates: variants.two: .*mixture.sources: no source is called 'nothing'"):
        check_variants(experiment=parse(Experiment, contradicting))
    assert not stand_ins.ran


def test_changes_are_merged_over_those_of_all_variants_and_over_the_recipes_files(written, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.yaml").write_text("extends: quickstart\nmixture.heldout: 3\n")
    path = written(
        training={"steps": 7, "optimizer.learning_rate": 0.5},
        evaluation={"benchmarks": ["sums.yaml"]},
        variants={
            "one": {},
            "two": {"training": {"optimizer.learning_rate": 0.25}, "data": {"extends": "mine/data.yaml"}},
        },
    )
    made = parse(Experiment, path)
    one, two = made.variants.values()
    assert (made.baseline, one.training.steps, two.training.steps) == ("one", 7, 7)
    assert (one.training.optimizer.learning_rate, two.training.optimizer.learning_rate) == (0.5, 0.25)
    assert one.training.sampling == two.training.sampling
    assert two.data.mixture.heldout == 3 != one.data.mixture.heldout
    assert [benchmark.name for benchmark in one.evaluation.benchmarks] == ["sums"]
    assert parse(Experiment, made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"variants": {"one": {}}}, "variants .*at least 2"),
        ({"baseline": "three"}, "baseline: no variant is called 'three'; there are: one, two"),
        ({"recipe": "quickstrat"}, r"recipe = 'quickstrat': no such file \(did you mean 'quickstart'\?\)"),
        ({"variants": {"one": {}, "a/b": {}}}, "a/b"),
        (
            {"variants": {"one": {}, "two": {"steps": 3}}},
            r"variants.two.steps: unknown key; accepted: data, evaluation",
        ),
    ],
)
def test_a_mistake_of_the_file_is_one_sentence(written, content, sentence):
    with pytest.raises(SpecError, match=sentence):
        parse(Experiment, written(**content))


SHIPPED = sorted(path.stem for path in ExperimentFile.folder.glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_experiment_changes_what_it_says_and_nothing_else(name):
    made = parse(Experiment, name)
    base = made.variants[made.baseline]
    for variant, files in made.variants.items():
        changed = [part for part in ("data", "training", "evaluation") if getattr(files, part) != getattr(base, part)]
        check_together(apply_training_sampling(files.data, files.training), files.training, files.evaluation)
        assert changed == ([] if variant == made.baseline else [CHANGED[name]]), variant


CHANGED = {
    "dapo_ablation": "training",
    "domains": "data",
    "quickstart": "training",
    "start": "training",
    "updates": "training",
}


def test_the_rows_of_dapos_ablation_differ_by_one_technique_each():
    rows = [files.training for files in parse(Experiment, "dapo_ablation").variants.values()]
    techniques = [
        (
            row.objective.shaping.filter_truncated,
            row.objective.clip_high,
            row.objective.shaping.overlong is not None,
            row.objective.aggregation,
            row.resampling.kind,
        )
        for row in rows
    ]
    assert techniques == [
        (False, 0.2, False, "sequence", "none"),
        (True, 0.2, False, "sequence", "none"),
        (True, 0.28, False, "sequence", "none"),
        (False, 0.28, True, "sequence", "none"),
        (False, 0.28, True, "token", "none"),
        (False, 0.28, True, "token", "dynamic"),
    ]
