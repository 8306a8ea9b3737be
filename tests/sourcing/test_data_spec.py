"""A data spec is read whole or not at all, and a mistake in it is one sentence that says where and what instead."""

import pytest
import yaml

from tasks import verifiers
from tasks.config.loading import SpecError, load_yaml
from tasks.inputs.files import DataFile
from tasks.sourcing.columns import MODES_OF, VERIFIERS
from tasks.sourcing.spec import DataSpec
from tasks.verifiers import instructions, mathematics
from tasks.verifiers.chat import prompts
from tests.paths import ROOT

SOURCE = {
    "name": "gsm8k",
    "domain": "math",
    "verifier": "math",
    "loader": {"kind": "jsonl", "path": "a.jsonl"},
    "columns": {"prompt": "question"},
}


def source(**changes):
    return {**SOURCE, **changes}


def load(tmp_path, text):
    path = tmp_path / "spec.yaml"
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    return load_yaml(DataFile, path)


@pytest.mark.parametrize("path", sorted((ROOT / "data_specs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_spec_loads(path):
    assert load_yaml(DataFile, path).sources


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([source(limits=3)], ["sources[0].limits: unknown key (did you mean 'limit'?); accepted: columns, domain"]),
        (
            [source(loader={"kind": "jsonl", "path": "a", "pth": 1})],
            ["sources[0].loader.pth: unknown key", "accepted: kind, path"],
        ),
        ([source(columns={"promt": "q"})], ["sources[0].columns.promt: unknown key (did you mean 'prompt'?)"]),
        ([source(loader={"kind": "xml", "path": "a"})], ["sources[0].loader.kind = 'xml'", "'jsonl'", "'functions'"]),
        (
            [source(loader={"kind": "json", "path": "a"})],
            ["sources[0].loader: kind = 'json'", "{kind: huggingface, files"],
        ),
        ([source(loader={"path": "a"})], ["sources[0].loader.kind: required", "jsonl", "functions"]),
        ([source(loader={"kind": "jsonl"})], ["sources[0].loader.path: required key is missing", "a glob"]),
        ([source(verifier="regex")], ["sources[0].verifier = 'regex'", "precise_if", "such as my_verifiers.chess"]),
        ([source(verifier="mth")], ["sources[0].verifier = 'mth': there is no such verifier (did you mean 'math'?)"]),
        (
            [source(verifier="my-verifiers.chess")],
            ["sources[0].verifier = 'my-verifiers.chess': there is no such verifier"],
        ),
        ([source(rewards=[{"verifier": "cod"}])], ["sources[0].rewards[0].verifier = 'cod'", "mean 'code'?"]),
        ([source(verifier="code")], ["sources[0]: verifier 'code' does not fit domain 'math', which accepts math"]),
        ([source(top_up=2)], ["sources[0]: top_up is a multiple of limit: give limit"]),
        ([source(limit=5, top_up=1)], ["sources[0].top_up = 1: must be a number above 1, or inf"]),
        (
            [source(loader={"kind": "huggingface", "files": "a.jsonl", "config_column": "part"})],
            ["sources[0].loader: config_column contains the names of configurations: give config"],
        ),
        ([source(limit=0)], ["sources[0].limit = 0", "greater than or equal to 1"]),
        ([source(columns={"tests": "t"})], ["['tests'] are not read by the verifier 'math'"]),
        ([source(columns={"template": "Solve!"})], ["sources[0].columns.template = 'Solve!'", "{prompt}"]),
        ([source(columns={"ground_truth_pattern": "("})], ["ground_truth_pattern = '('", "not a regular expression"]),
        ([source(), source()], ["sources", "unique", "gsm8k"]),
        ([], ["sources = []", "at least 1"]),
        ([source(loader={"kind": "instructions", "size": 3})], ["only for the verifier 'precise_if'"]),
        ([source(loader={"kind": "huggingface", "dataset": "openai/gsm8k"})], ["openai/gsm8k", "revision"]),
        ([source(loader={"kind": "huggingface"})], ["either dataset", "or files"]),
        ([source(loader={"kind": "reasoning_gym", "dataset": "x", "size": 1, "config": {"seed": 1}})], ["['seed']"]),
        (
            [
                source(
                    domain="precise_if",
                    verifier="precise_if",
                    columns={},
                    loader={"kind": "instructions", "size": 3, "constraints": ["punctuation:no_coma"]},
                )
            ],
            ["loader.constraints", "did you mean 'punctuation:no_comma'?"],
        ),
    ],
)
def test_a_mistake_is_one_sentence_that_names_file_field_value_and_what_is_accepted(tmp_path, sources, said):
    with pytest.raises(SpecError) as caught:
        load(tmp_path, {"name": "x", "sources": sources})
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "spec.yaml"))
    assert len(message.splitlines()) == 1
    assert all(each in message for each in said), message


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (["gsm8l"], "leave_out: no source is called 'gsm8l' (did you mean 'gsm8k'?)"),
        (["gsm8k", "other"], "leave_out names every source"),
    ],
)
def test_only_some_of_the_sources_can_be_left_out(tmp_path, left_out, said):
    with pytest.raises(SpecError) as caught:
        load(tmp_path, {"name": "x", "sources": [source(), source(name="other")], "leave_out": left_out})
    assert said in str(caught.value)
    spec = load(tmp_path, {"name": "x", "sources": [source(), source(name="other")], "leave_out": ["other"]})
    assert [used.name for used in spec.used_sources] == ["gsm8k"]


@pytest.mark.parametrize(("top_up", "rows"), [(None, 100), (1.505, 151), ("inf", None)])
def test_a_source_reads_as_many_rows_as_its_limit_and_top_up_ask_for(tmp_path, top_up, rows):
    spec = load(tmp_path, {"name": "x", "sources": [source(limit=100, top_up=top_up)]})
    assert spec.sources[0].rows_to_read == rows


def test_several_mistakes_are_listed_together(tmp_path):
    with pytest.raises(SpecError) as caught:
        load(tmp_path, {"name": "x", "sed": 1, "sources": [source(limit=-1), source(name="b", verifier="art")]})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [", "not valid YAML"),
        ("- a\n- b", "must be a mapping with the keys name, seed"),
        ("", "must be a mapping"),
        ("name: a\nname: b", "the key 'name' occurs twice"),
        ("name: a", "sources: required key is missing; List of at least one source"),
    ],
)
def test_a_file_that_is_no_spec_is_one_error(tmp_path, text, said):
    with pytest.raises(SpecError, match=r"spec\.yaml") as caught:
        load(tmp_path, text)
    assert said in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(SpecError, match=r"nowhere\.yaml: no such file"):
        load_yaml(DataFile, "nowhere.yaml")


def test_sources_without_a_seed_take_the_specs_and_keep_it_through_json():
    spec = DataSpec.model_validate({"name": "x", "seed": 7, "sources": [source(), source(name="b", seed=0)]})
    assert [each.seed for each in spec.sources] == [7, 0]
    assert DataSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_names_that_a_spec_may_hold_are_those_that_judge():
    assert set(VERIFIERS) == set(verifiers.VERIFIERS) - {"weighted"}  # a verifier and `rewards` together
    modes = {"math": mathematics.MODES, "precise_if": instructions.MODES, "chat_reference": prompts.MODES}
    assert modes == MODES_OF
