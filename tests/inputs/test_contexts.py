"""A context that is too long for a model is refused before anything is sampled or trained."""

import json

import pytest

from tasks.config.loading import SpecError, parse
from tasks.inputs.contexts import check_contexts, find_longest_sequence
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tests.hub.cards import qwen_without_tokenizer_json
from tests.hub.fixture import stand_in_hub  # noqa: F401 - a fixture

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("configuration", "longest"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 4096),
        ({"max_position_embeddings": 65_536, "rope_scaling": YARN}, 524_288),
        ({"max_position_embeddings": 8192, "rope_parameters": {"full_attention": YARN, "sliding": {}}}, 65_536),
        ({"text_config": {"max_position_embeddings": 2048}}, 2048),
        ({"n_positions": 1024}, None),
        ({}, None),
    ],
)
def test_the_longest_sequence_is_the_most_that_any_reading_of_a_configuration_gives(configuration, longest):
    assert find_longest_sequence(configuration) == longest


@pytest.fixture
def files(tmp_path):
    """The three files of a run with a model of 4,096 tokens, and further options of each."""
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    model = {"kind": "folder", "path": str(tmp_path)}

    def made(data=(), training=(), evaluation=()):
        return (
            parse(DataFile, json.dumps({"extends": "quickstart", **dict(data)})),
            parse(Recipe, json.dumps({"extends": "quickstart", "model.source": model, **dict(training)})),
            parse(EvaluationFile, json.dumps({"extends": "quickstart", **dict(evaluation)})),
        )

    return made


def test_a_context_of_the_models_length_is_no_mistake(files):
    check_contexts(*files(evaluation={"engine.max_model_len": 4096}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"evaluation": {"benchmarks": ["ifeval_olmo3"], "engine.max_model_len": 34_816}},
            r"^evaluation: engine\.max_model_len = 34816: .* is limited to 4096 tokens \(its config\.json\)",
        ),
        ({"training": {"actors.engine.max_model_len": 4097}}, r"^training: actors\.engine\.max_model_len = 4097"),
        ({"data": {"difficulty.engine.max_model_len": 9000}}, r"^quickstart: difficulty\.engine\.max_model_len = 9000"),
    ],
)
def test_a_context_beyond_the_models_is_one_message_that_names_the_engine(files, options, message):
    with pytest.raises(SpecError, match=message):
        check_contexts(*files(**options))


def test_another_policy_of_the_evaluation_is_checked_as_well(files, tmp_path):
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}))
    policies = {"short": {"source": {"kind": "folder", "path": str(tmp_path / "short")}}}
    with pytest.raises(SpecError, match=r"evaluation: engine.max_model_len = 2048: .*short is limited to 1024 tokens"):
        check_contexts(*files(evaluation={"policies": policies, "engine.max_model_len": 2048}))


@pytest.mark.usefixtures("stand_in_hub")
def test_the_hub_is_asked_about_a_branch_and_a_commit_needs_no_network(files):
    repository = qwen_without_tokenizer_json()

    def at(revision):
        model = {"kind": "hub", "name": repository.name, "revision": revision}
        return files(training={"model.source": model}, evaluation={"engine.max_model_len": 9000})

    check_contexts(*at(repository.sha))
    with pytest.raises(SpecError, match="9000: someone/qwen2-tiny@main is limited to 4096 tokens"):
        check_contexts(*at("main"))
    with pytest.raises(SpecError, match="is limited to 4096 tokens"):
        check_contexts(*at(repository.sha))


def test_overridden_contexts_and_unknown_models_are_not_refused(files, tmp_path, monkeypatch):
    long = {"engine.max_model_len": 9000}
    overridden = {"engine.vllm": {"hf_overrides": {"max_position_embeddings": 9000}}}
    check_contexts(*files(evaluation=long | overridden))
    with monkeypatch.context() as changed:
        changed.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
        check_contexts(*files(evaluation=long))
    (tmp_path / "config.json").unlink()
    check_contexts(*files(evaluation=long))
