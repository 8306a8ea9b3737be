"""Where outputs came from, the card of a policy, and the index of runs."""

import json
import re
from datetime import UTC, datetime

import yaml

from tasks.lineage.code_digest import code_digest
from tasks.lineage.differences import find_differences
from tasks.lineage.provenance import made_from
from tasks.machine.image import image
from tasks.reporting.index import write_index
from tasks.reporting.lineage import Output, drop_folders, images, render_model_card, rows
from tasks.tables.schemas import StageSummary

KEPT, MIXTURE = "a" * 64, "b" * 64


def test_an_output_names_what_it_was_made_from_by_digest_and_by_name_where_the_run_made_it():
    footer = made_from("tasks.mixing.task", inputs={"graded": KEPT, "files": ["c" * 64]}, seed=3, mixture={"size": 5})
    elsewhere = Output("policy", "d" * 64, footer | {"image": "registry.example/rlvr-training:v1"})
    foreign, mixture, _ = rows([Output("selected", KEPT, {}), Output("mixture", MIXTURE, footer), elsewhere])
    assert foreign == dict.fromkeys(mixture, "") | {"name": "selected", "digest": "a" * 12}
    assert rows([Output("mixture", MIXTURE, footer)])[0]["image"] == ""  # one for all stands above the table
    assert mixture == {
        "name": "mixture",
        "digest": "b" * 12,
        "made_from": f"files {'c' * 12}, graded {'a' * 12} (selected)",
        "spec": footer["spec_digest"][:12],
        "seed": "3",
        "code": code_digest("tasks.mixing.task")[:12],
        "image": image(),
    }


def test_the_page_names_each_image_with_the_stages_that_ran_in_it():
    def ran(stage, image):
        return StageSummary(stage, datetime.now(UTC), 1.0, "", image=image)

    assert images([ran("mixing", "a:1"), ran("training", "a:1")]) == "a:1"
    assert images([ran("mixing", "a:1"), ran("training", "b:1")]) == "a:1 (mixing)\nb:1 (training)"


FILES = {"data": "name: x\n", "training": "steps: 3\n", "evaluation": "engine: {}\n"}


def test_the_card_has_the_front_matter_that_the_hub_reads():
    card = render_model_card("title", "allenai/Olmo-3-7B@main", "18.2% -> 28.6%", FILES, {"mine.f"})
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == "allenai/Olmo-3-7B"
    assert front["library_name"] == "transformers"
    assert "18.2% -> 28.6%" in card
    assert all(f"`{name}.yaml`:\n\n```yaml\n{text}```" in card for name, text in FILES.items())
    assert "--data data.yaml --training training.yaml --evaluation evaluation.yaml\n" in card
    assert "in a checkout of rlvr-flyte and with the code of `mine.f`:\n" in card
    assert "**Licence.** That of the initial checkpoint" in card
    assert "base_model" not in render_model_card("title", "SmolLM2-135M-Instruct", "", {})


def test_the_card_names_files_without_the_folders_of_this_machine(tmp_path):
    (tmp_path / "rows.jsonl").touch()
    options = {
        "sources": [{"loader": {"path": str(tmp_path / "rows.jsonl")}, "columns": {"template": "/think {prompt}"}}]
    }
    assert drop_folders(options) == {
        "sources": [{"loader": {"path": "rows.jsonl"}, "columns": {"template": "/think {prompt}"}}]
    }


def test_the_index_lists_runs_the_newest_first_and_passes_over_what_is_none(tmp_path):
    summary = {"before": 0.2, "after": 0.3, "gain": 0.1, "gain_low": 0.01, "gain_high": 0.2, "seconds": 60.0}
    for name in ("20261101-000000-aaaaaaaa", "20261102-000000-bbbbbbbb"):
        (tmp_path / name).mkdir()
        stages = {"model": {"seconds": 1.0, "cached": True}}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary | {"title": "<mine>", "stages": stages}))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    for name, text in (("half", json.dumps({"gain": 0.1, "seconds": 60.0})), ("list", "[]"), ("empty", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
    (tmp_path / "latest").symlink_to("20261102-000000-bbbbbbbb")
    page = write_index(tmp_path).read_text()
    assert page.index("bbbbbbbb/report.html") < page.index("aaaaaaaa/report.html")
    assert page.count("/report.html") == page.count("<a href") == 2
    assert "&lt;mine&gt;" in page
    assert "+10.0 (+1.0 to +20.0)" in page
    assert "1 of 1</td>" in page


def test_the_index_has_the_options_in_which_runs_differ(tmp_path):
    figures = {"before": 0.2, "after": 0.3, "gain": 0.1, "gain_low": 0.01, "gain_high": 0.2, "seconds": 60.0}
    source = {"name": "sums", "limit": 20}
    runs = {
        "a": {"training": {"steps": 4, "lora": {"rank": 8}}, "data": {"name": "mine", "sources": [source]}},
        "b": {"training": {"steps": 6, "lora": {"rank": 8}}, "data": {"name": "mine", "sources": [source]}},
        "c": {"training": {"lora": {"rank": 8}}, "data": {"name": "mine", "sources": [source | {"limit": 9}]}},
    }
    for name, options in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(figures | {"options": options}))
    (tmp_path / "d").mkdir()
    part = {"title": "mine", "part": "train", "seconds": 3.0, "options": {"training": {"steps": 4}}}
    (tmp_path / "d" / "summary.json").write_text(json.dumps(part))
    assert find_differences([*runs.values(), part["options"]]) == [
        ["training.steps = 4", "training.lora.rank = 8", "data.sources.sums.limit = 20"],
        ["training.steps = 6", "training.lora.rank = 8", "data.sources.sums.limit = 20"],
        ["training.steps = default", "training.lora.rank = 8", "data.sources.sums.limit = 9"],
        ["training.steps = 4", "training.lora.rank = default"],
    ]
    page = write_index(tmp_path).read_text()
    assert "<code>training.steps = 6</code>" in page
    assert "data.name" not in page
    assert "mine: train alone" in page


def test_a_part_that_only_some_runs_have_is_one_line_and_is_compared_between_those_that_have_it():
    mine = {"name": "mine", "card": "https://example.org", "source": {"domain": "math", "loader": {"path": "/a/b"}}}
    runs = [
        {"evaluation": {"benchmarks": [mine, {"name": "other", "margin": 0.1}]}, "training": {"steps": 1}},
        {"evaluation": {"benchmarks": [mine]}, "training": {"steps": 2}},
        {"evaluation": {}, "training": {"steps": 1}},
        {"training": {"steps": 1}},
    ]
    assert find_differences(runs) == [
        [
            "evaluation.benchmarks.mine = given",
            "evaluation.benchmarks.other = given",
            "training.steps = 1",
        ],
        [
            "evaluation.benchmarks.mine = given",
            "evaluation.benchmarks.other = not given",
            "training.steps = 2",
        ],
        ["evaluation.benchmarks.mine = not given", "evaluation.benchmarks.other = not given", "training.steps = 1"],
        ["training.steps = 1"],
    ]


def test_an_option_of_a_part_is_compared_between_the_runs_that_have_the_part():
    with_part = [{"evaluation": {"benchmarks": [{"name": "mine", "margin": margin}]}} for margin in (0.1, 0.2)]
    assert find_differences([*with_part, {"evaluation": {}}]) == [
        ["evaluation.benchmarks.mine = given", "evaluation.benchmarks.mine.margin = 0.1"],
        ["evaluation.benchmarks.mine = given", "evaluation.benchmarks.mine.margin = 0.2"],
        ["evaluation.benchmarks.mine = not given"],
    ]
    assert find_differences(with_part) == [
        ["evaluation.benchmarks.mine.margin = 0.1"],
        ["evaluation.benchmarks.mine.margin = 0.2"],
    ]


def test_two_spellings_of_a_path_are_no_difference():
    paths = ["/home/me/mine/other/../rows.csv", "/home/me/./mine/rows.csv"]
    assert find_differences([{"data": {"path": path, "paths": [path]}} for path in paths]) == [[], []]
    texts = ["a ratio: 1/2", "https://example.org/a/../b"]
    assert find_differences([{"data": {"text": text}} for text in texts]) == [
        ['data.text = "a ratio: 1/2"'],
        ['data.text = "https://example.org/a/../b"'],
    ]


def test_the_index_links_what_a_run_has_and_folds_its_options(tmp_path):
    for name, further in (("a", {}), ("b", {"part": "data"})):
        (tmp_path / name).mkdir()
        options = {"training": {"steps": 1 if name == "a" else 2}}
        summary = {"seconds": 1.0, "title": "mine", "recipe": "grpo", "overridden": [], "options": options, **further}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    experiment = tmp_path / "experiments" / "20261101-000000-cccccccc"
    experiment.mkdir(parents=True)
    (experiment / "experiment.html").touch()
    (experiment.parent / "latest").symlink_to(experiment.name)
    page = write_index(tmp_path).read_text()
    assert re.findall('href="([^"]*)"', page) == ["a/report.html", f"experiments/{experiment.name}/experiment.html"]
    for steps in (1, 2):
        assert f"<code>training.steps = {steps}</code>" in re.sub(
            r".*?(<details>.*?</details>)", r"\1", page, flags=re.S
        )
    assert "<h1>Runs</h1>" in page
    assert "prefers-color-scheme: dark" in page
