"""A recipe's chat template and special tokens: what they may be, and that every stage has them."""

import hashlib
import json
import shutil

import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer

from tasks.config.loading import SpecError, load_yaml
from tasks.generation.models import ModelSpec, prepare_model
from tasks.generation.tokenizer_options import CHAT_TEMPLATES, change_loaded, find_template_name
from tasks.inputs.environments import load_template
from tasks.inputs.files import EvaluationFile, Recipe
from tasks.storage.model_folder import ModelError
from tasks.training.learner.weight_files import copy_all_but_weights

QUESTION = "What is 1+1?"
ONE_QUESTION = [{"role": "user", "content": QUESTION}]
SOURCES = {
    # apply_r1_template and apply_qwen_math_template of sail-sg/understand-r1-zero at 14046dc
    "r1": (
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
        "Assistant first thinks about the reasoning process in the mind and then provides the User with the answer. "
        "The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> "
        "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
        f"User: {QUESTION}\nAssistant: <think>"
    ),
    "qwen_math": (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    ),
    # by hand, from the text of open-instruct's template
    "olmo_thinker": (
        "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>"
    ),
}
"""What each built-in template renders for one question."""


def spec(folder, **options):
    return ModelSpec.model_validate({"source": {"kind": "folder", "path": str(folder)}, **options})


def rendered(folder, messages=ONE_QUESTION):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.fixture
def model(tiny_model, tmp_path):
    """A copy of the tiny model."""
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.mark.parametrize("name", SOURCES)
def test_a_built_in_template_renders_what_its_source_does(model, tmp_path, name):
    prepared = prepare_model(spec(model, chat_template=name), tmp_path / "prepared")
    assert rendered(prepared) == SOURCES[name]


def test_an_exported_policy_contains_the_recipes_template(model, tmp_path):
    prepared = prepare_model(spec(model, chat_template="r1"), tmp_path / "prepared")
    (tmp_path / "policy").mkdir()
    copy_all_but_weights(prepared, tmp_path / "policy", "float32")
    assert rendered(tmp_path / "policy") == SOURCES["r1"]


def test_the_tests_know_every_built_in_template_and_each_has_its_source_and_licence():
    names = {path.stem for path in CHAT_TEMPLATES.glob("*.jinja")}
    assert names == SOURCES.keys()
    rows = (CHAT_TEMPLATES / "README.md").read_text().splitlines()
    for name in names:
        [row] = [row for row in rows if row.startswith(f"| `{name}` |")]
        assert "https://github.com/" in row
        assert row.endswith("| Apache-2.0 |")


def test_open_instructs_template_is_its_text_byte_by_byte():
    digest = hashlib.sha256((CHAT_TEMPLATES / "olmo_thinker.jinja").read_bytes()).hexdigest()
    assert digest == "eba6e269f669706e5c788e370160dad953137f3fa7014fa69d03c7b3ad9f0e72"


def test_the_recipes_template_is_the_only_one_of_the_folder(model, tmp_path):
    config = json.loads((model / "tokenizer_config.json").read_text())
    several = [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "{{ messages }}"}]
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": several}))
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    prepared = prepare_model(spec(model, chat_template="r1"), tmp_path / "prepared")
    tokenizer = AutoTokenizer.from_pretrained(prepared)
    assert rendered(prepared) == SOURCES["r1"]
    assert tokenizer.get_chat_template(tools=[{}]) == tokenizer.chat_template


def test_a_base_model_without_a_template_needs_one(model, tmp_path):
    (model / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"add chat_template\.jinja to the folder, or give model\.chat_template"):
        spec(model).add_fingerprint()
    assert rendered(prepare_model(spec(model, chat_template="r1").add_fingerprint(), tmp_path / "prepared"))


def test_a_file_beside_the_recipe_is_read_with_it(tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages[0]['content'] }} ->")
    (tmp_path / "mine.yaml").write_text("extends: quickstart\nmodel: {chat_template: mine.jinja}\n")
    text = load_yaml(Recipe, tmp_path / "mine.yaml").model.chat_template
    assert text == "{{ messages[0]['content'] }} ->"
    assert find_template_name(text) == "the recipe's own"
    assert ModelSpec(chat_template=text).chat_template == text, "a spec that is read again keeps its text"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("olmo_thinking", r"no built-in chat template 'olmo_thinking' \(did you mean 'olmo_thinker'\?\)"),
        ("nowhere.jinja", r"nowhere.jinja': cannot be read: No such file"),
        ("{% for message in messages %}", "not a chat template: line 1: "),
        ("{{ prompt }}", "not a chat template: it does not use `messages`"),
    ],
)
def test_what_is_no_template_is_refused_when_the_file_is_read(tmp_path, value, sentence):
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({"extends": "quickstart", "model": {"chat_template": value}}))
    with pytest.raises(SpecError, match=sentence):
        load_yaml(Recipe, path)


def test_a_marked_block_of_transformers_is_no_error():
    text = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}"
    assert ModelSpec(chat_template=text).chat_template == text


def test_a_template_that_fails_on_a_message_is_refused_before_the_first_rollout(model, tmp_path):
    broken = spec(model, chat_template="{{ messages[0]['content'] + 1 }}")
    with pytest.raises(ModelError, match="chat_template: it fails on a message of a user: "):
        prepare_model(broken, tmp_path / "prepared")
    with pytest.raises(ModelError, match="chat_template: it fails on a message of a user: "):
        load_template(broken, {})


def test_episodes_are_checked_with_the_recipes_template_before_a_run(model):
    template = load_template(spec(model, chat_template="r1"), {})
    assert template.begun(ONE_QUESTION, []) == AutoTokenizer.from_pretrained(model).encode(SOURCES["r1"])


def test_special_tokens_reach_the_tokenizer_and_the_model(model, tmp_path):
    vocabulary = AutoTokenizer.from_pretrained(model).get_vocab()
    end, fill = (token for token, number in sorted(vocabulary.items(), key=lambda item: item[1]) if number in (5, 6))
    prepared = prepare_model(spec(model, special_tokens={"eos_token": end, "pad_token": fill}), tmp_path / "prepared")
    tokenizer = AutoTokenizer.from_pretrained(prepared)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (5, 6)
    assert len(tokenizer) == len(vocabulary)
    for name in ("config.json", "generation_config.json"):
        if (prepared / name).is_file():
            config = json.loads((prepared / name).read_text())
            assert (config["eos_token_id"], config["pad_token_id"]) == (5, 6)
    changed = change_loaded(
        AutoTokenizer.from_pretrained(model),
        None,
        spec(model, special_tokens={"eos_token": end, "pad_token": fill}).special_tokens,
    )
    assert (changed.eos_token_id, changed.pad_token_id) == (5, 6)


def test_a_token_outside_of_the_vocabulary_is_refused(model, tmp_path):
    with pytest.raises(ModelError, match=r"special_tokens: eos_token = '<\|new\|>': the vocabulary has no such token"):
        prepare_model(spec(model, special_tokens={"eos_token": "<|new|>"}), tmp_path / "prepared")


def test_special_tokens_without_a_token_are_refused():
    with pytest.raises(ValidationError, match="give at least one of the special tokens"):
        ModelSpec.model_validate({"special_tokens": {}})


def test_a_policy_with_another_template_is_evaluated_on_its_own():
    policies = {"same": ModelSpec(fingerprint="a digest"), "other": ModelSpec(chat_template="r1")}
    assert EvaluationFile(policies=policies).evaluated(ModelSpec()) == ["before", "after", "other"]
