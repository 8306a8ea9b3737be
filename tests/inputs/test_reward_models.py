"""Reward models and the sources that name them are compared before anything is paid for."""

import json
import re

import pytest
import yaml

from tasks.config.cache_keys import result_options
from tasks.config.loading import SpecError
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DataFile
from tasks.inputs.fingerprints import fingerprint_verifiers
from tasks.inputs.judges import check_reward_models
from tasks.inputs.memory_needs import judge_gpus
from tasks.sourcing.prompts import build_prompts
from tasks.verifiers import collect_verifiers
from tests.paths import ROOT

SOURCE = {"name": "sums", "domain": "math", "verifier": "math", "loader": {"kind": "jsonl", "path": "rows.jsonl"}}
HUB = {"model": "some/model", "revision": "main"}


def data(models, *rewards, **source):
    rewards = [{"reward_model": name, "weight": 0.5} for name in rewards]
    verifiers = {"reward_models": models}
    sources = [SOURCE | {"rewards": rewards} | source]
    return DataFile.model_validate({"name": "mine", "verifiers": verifiers, "sources": sources})


def benchmark(*rewards):
    source = {key: value for key, value in SOURCE.items() if key != "name"}
    source["rewards"] = [{"reward_model": name} for name in rewards]
    about = {"name": "exam", "card": "https://example.org", "licence": "mit", "sampling": {"max_tokens": 8}}
    return BenchmarkFile.model_validate(about | {"source": source})


def test_models_that_sources_or_benchmarks_name_are_taken():
    check_reward_models(data({"helpful": HUB, "safe": HUB}, "helpful"), [benchmark("safe")])
    check_reward_models(data({}), [])


@pytest.mark.parametrize(
    ("given", "asked", "said"),
    [
        (data({"helpful": HUB}, "helpfull"), [], "source sums: rewards (the models are in verifiers.reward"),
        (data({"helpful": HUB}, "helpfull"), [], "no reward model is called 'helpfull' (did you mean 'helpful'?)"),
        (data({}, "helpful"), [], "no reward model is called 'helpful'; there are: none"),
        (data({"helpful": HUB}, "helpful"), [benchmark("safe")], "source exam (a benchmark): rewards"),
        (data({"helpful": HUB, "safe": HUB}, "helpful"), [], "mine: verifiers.reward_models.safe: no source uses it"),
        (
            data({"safe": {"model": "some/model"}}, "safe"),
            [],
            "verifiers.reward_models.safe.model = 'some/model': neither a folder nor a hub id with a revision",
        ),
    ],
)
def test_others_are_one_sentence(given, asked, said):
    with pytest.raises(SpecError) as error:
        check_reward_models(given, asked)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rewards_list_has_them_beside_or_in_place_of_a_verifier(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "1 + 1?", "ground_truth": "2"}) + "\n")
    loader = {"kind": "jsonl", "path": str(path)}
    beside = data({"safe": HUB}, "safe", loader=loader).sources[0]
    [row] = build_prompts(beside, 100).prompts.to_pylist()
    truth = json.loads(row["ground_truth"])
    assert truth["rewards"][1] == {"verifier": "reward_model", "weight": 0.5, "ground_truth": {"reward_model": "safe"}}
    assert collect_verifiers(row["verifier"], truth) == {"math", "reward_model"} == beside.verifiers
    path.write_text(json.dumps({"prompt": "Hello?"}) + "\n")
    alone = data({}, verifier="reward_model", domain="talk", loader=loader, rewards=[{"reward_model": "safe"}])
    [row] = build_prompts(alone.sources[0], 100).prompts.to_pylist()
    assert (row["verifier"], json.loads(row["ground_truth"])) == ("reward_model", {"reward_model": "safe"})
    function = {"function": "tests.verifiers.rewards_of_a_user.later"}
    both = data({}, verifier="reward_model", domain="talk", loader=loader, rewards=[{"reward_model": "a"}, function])
    [row] = build_prompts(both.sources[0], 100).prompts.to_pylist()
    assert json.loads(row["ground_truth"])["rewards"][1]["ground_truth"]["columns"] == {"ground_truth": None}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"verifier": "reward_model", "rewards": []}, "needs rewards: a list that begins with a reward model"),
        ({"rewards": [{"reward_model": "a", "verifier": "math"}]}, "give one of function"),
        ({"rewards": [{"reward_model": "a", "columns": ["x"]}]}, "only a function has columns"),
    ],
)
def test_what_does_not_fit_a_source_is_said(source, said):
    with pytest.raises(ValueError, match=said):
        data({}, **source)


def test_gpus_and_folders_are_of_the_models_that_are_asked(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    models = {"here": {"model": str(tmp_path)}, "there": HUB, "slow": HUB | {"device": "cpu"}}
    assert judge_gpus(data(models, "here")) == 2
    assert judge_gpus(data(models)) == 0
    before = fingerprint_verifiers(data(models).verifiers)
    assert before.reward_models["here"].fingerprint
    assert before.reward_models["there"].fingerprint is None
    (tmp_path / "config.json").write_text("[]")
    assert result_options(fingerprint_verifiers(data(models).verifiers)) != result_options(before)


def test_a_folder_is_relative_to_the_data_file(tmp_path):
    from tasks.config.loading import load_yaml

    (tmp_path / "models" / "safe").mkdir(parents=True)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nverifiers: {reward_models: {safe: {model: models/safe}}}\nsources:\n"
        "  - {name: sums, domain: math, verifier: math, rewards: [{reward_model: safe}], "
        "loader: {kind: jsonl, path: rows.jsonl}}\n"
    )
    loaded = load_yaml(DataFile, file)
    assert loaded.verifiers.reward_models["safe"].model == str(tmp_path / "models" / "safe")
    check_reward_models(loaded, [])


def test_the_example_of_the_page_is_read():
    page = (ROOT / "docs" / "verifiers.md").read_text()
    [example] = re.findall(r"^```yaml\n(name: my-talks\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    read = DataFile.model_validate(yaml.safe_load(example))
    check_reward_models(read, [])
    assert judge_gpus(read) == 1
