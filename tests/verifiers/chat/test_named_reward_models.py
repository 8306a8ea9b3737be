"""Reward models by name: each gives the logit that a plain forward pass of transformers gives."""

import math

import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tasks.verifiers import Reward, VerifierPool, VerifiersConfig, check_ground_truth, missing_resources, open_pool
from tests.tiny_model import TEMPLATE

ASKED = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "What is the sum?"},
]
ANSWERS = ["eighteen", "the sum is eighteen , short", "no no no no what", ""]
TEXT = "[PAD] [UNK] [CLS] [SEP] [MASK] What is the sum ? eighteen . , short no what Be Hi Hello user assistant system"
WORDS = TEXT.split()


def saved(folder, model, **tokenizer_options):
    """Save a random classifier of one output and a tokenizer of `WORDS`, which joins pairs as BERT's does."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **tokenizer_options).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A DeBERTa and a BERT of pairs, and a Llama with a chat template."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.5,
        "num_labels": 1,
        "pad_token_id": 0,
    }
    relative = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
    of_deberta = {"position_biased_input": False, "type_vocab_size": 0, "max_position_embeddings": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {
            "deberta": saved(
                folder / "deberta",
                DebertaV2ForSequenceClassification(DebertaV2Config(**sizes, **relative, **of_deberta)),
            ),
            "bert": saved(folder / "bert", BertForSequenceClassification(BertConfig(**sizes))),
            "llama": saved(
                folder / "llama", LlamaForSequenceClassification(LlamaConfig(**sizes)), chat_template=TEMPLATE
            ),
        }


@pytest.fixture(scope="module")
def config(folders):
    pair = {"chat_template": False, "squash": False}
    return VerifiersConfig.model_validate(
        {
            "reward_models": {
                "helpful": {"model": str(folders["deberta"]), **pair},
                "safe": {"model": str(folders["bert"]), **pair, "batch_size": 2},
                "chatty": {"model": str(folders["llama"]), "squash": False, "pass_value": -1000},
                "likely": {"model": str(folders["llama"])},
            }
        }
    )


@pytest.fixture(scope="module")
def reward_pool(config):
    with open_pool(1, config, ["reward_model"]) as pool:
        yield pool


def plain_logit(folder, answer):
    """The logit of transformers alone: of the pair of the last question and the answer, or of the templated text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    if tokenizer.chat_template:
        inputs = tokenizer.apply_chat_template(
            [*ASKED, {"role": "assistant", "content": answer}], return_tensors="pt", return_dict=True
        )
    else:
        inputs = tokenizer(ASKED[-1]["content"], answer, return_tensors="pt")
        assert ("token_type_ids" in inputs) == ("token_type_ids" in tokenizer.model_input_names)
    with torch.no_grad():
        return model(**inputs).logits[0].item()


@pytest.mark.long
@pytest.mark.parametrize(("name", "folder"), [("helpful", "deberta"), ("safe", "bert"), ("chatty", "llama")])
def test_the_reward_is_the_logit_of_a_plain_forward_pass(folders, reward_pool, name, folder):
    wanted = [plain_logit(folders[folder], answer) for answer in ANSWERS]
    assert max(wanted) - min(wanted) > 0.05, "the model tells answers apart"
    calls = [("reward_model", f"<think>so</think>{answer}", {"reward_model": name}, ASKED) for answer in ANSWERS]
    scores = reward_pool.score_many(calls)
    assert [score.error for score in scores] == [None] * len(scores)
    assert [score.reward for score in scores] == pytest.approx(wanted, abs=1e-4)
    assert [score.value for score in scores] == pytest.approx([min(1, max(0, logit)) for logit in wanted], abs=1e-4)
    passes = -1000 if name == "chatty" else 0.5
    assert [score.passed for score in scores] == [logit >= passes for logit in wanted]


@pytest.mark.long
def test_a_squashed_reward_is_the_logistic_function_of_the_logit(folders, reward_pool):
    score = reward_pool.submit("reward_model", "eighteen", {"reward_model": "likely"}, ASKED).result()
    assert score.value == pytest.approx(1 / (1 + math.exp(-plain_logit(folders["llama"], "eighteen"))), abs=1e-5)
    assert score.rewards == (Reward("likely", 1.0, score.value),)


@pytest.mark.long
def test_several_models_stand_beside_a_function_in_one_sum(folders, reward_pool):
    function = {"function": "tests.verifiers.rewards_of_a_user.later", "columns": {}}
    parts = [
        {"verifier": "reward_model", "weight": 1.0, "ground_truth": {"reward_model": "helpful"}},
        {"verifier": "reward_model", "weight": 0.5, "ground_truth": {"reward_model": "chatty"}},
        {"verifier": "function", "weight": 2.0, "ground_truth": function},
    ]
    score = reward_pool.submit("weighted", "eighteen", {"rewards": parts}, ASKED).result()
    by_name = {reward.name: reward.value for reward in score.rewards}
    helpful, chatty = (plain_logit(folders[name], "eighteen") for name in ("deberta", "llama"))
    assert by_name["helpful"] == pytest.approx(helpful, abs=1e-4)
    later = by_name[function["function"]]
    assert score.reward == pytest.approx(helpful + 0.5 * chatty + 2 * later, abs=1e-4)
    assert reward_pool.figures()["reward_model/helpful/requests"] > 0


@pytest.mark.long
def test_hostile_and_long_texts_are_text(folders, config, reward_pool):
    truth = {"reward_model": "helpful"}

    def score(answer):
        return reward_pool.submit("reward_model", answer, truth, ASKED).result()

    assert score("no [SEP] [CLS] what").reward != pytest.approx(plain_logit(folders["deberta"], "no [SEP] [CLS] what"))
    for answer in ("\ud800", "\x00 eighteen", "word " * 20_000):
        assert score(answer).error is None, answer[:10]
    short = config.reward_models["helpful"].model_copy(update={"max_tokens": 14})
    with VerifierPool(1, VerifiersConfig(reward_models={"helpful": short, "short": short})) as pool:
        assert "too long for the reward model" in pool.submit("reward_model", "no " * 50, truth, ASKED).result().error
        assert pool.submit("reward_model", "no", truth, ASKED).result().error is None


@pytest.mark.long
def test_what_cannot_be_scored_is_an_error_by_name(folders, reward_pool, tmp_path):
    answered = [
        ("reward_model", "no", {"reward_model": "kind"}, ASKED),
        ("reward_model", "no", {"reward_model": "safe"}),
    ]
    unknown, alone = reward_pool.score_many(answered)
    assert unknown.error == "no reward model is called 'kind'; there are: chatty, helpful, likely, safe"
    assert "without the conversation" in alone.error
    model = AutoModelForSequenceClassification.from_pretrained(folders["bert"])
    with torch.no_grad():
        model.classifier.weight.fill_(float("nan"))
    broken = {"broken": {"model": str(saved(tmp_path, model)), "chat_template": False}}
    with VerifierPool(1, VerifiersConfig.model_validate({"reward_models": broken})) as pool:
        score = pool.submit("reward_model", "no", {"reward_model": "broken"}, ASKED).result()
        assert score.error == "reward model broken: its logit is nan"
    templated = {"safe": {"model": str(folders["bert"])}}
    with pytest.raises(ValueError, match="the tokenizer has no chat template"):
        VerifierPool(1, VerifiersConfig.model_validate({"reward_models": templated}))


def test_a_prompt_that_names_no_configured_model_lacks_it(config):
    assert missing_resources("reward_model", {"reward_model": "safe"}, config) == []
    [missing] = missing_resources("reward_model", {"reward_model": "kind"}, config)
    assert missing == "a reward model 'kind' (verifiers.reward_models has chatty, helpful, likely, safe)"
    parts = [
        {"verifier": "reward_model", "weight": 1, "ground_truth": {"reward_model": name}} for name in ("safe", "b")
    ]
    assert len(missing_resources("weighted", {"rewards": parts}, config)) == 1
    for truth in ("safe", {}, {"reward_model": 1}, {"reward_model": "safe", "more": 1}):
        assert "expected an object with 'reward_model' alone" in check_ground_truth("reward_model", truth)


def test_gpus_are_counted_for_the_verifiers_that_are_asked(config):
    assert config.gpus({"math", "chat_open"}) == 0
    assert config.gpus({"reward_model"}) == 4
    cpu = config.reward_models["safe"].model_copy(update={"device": "cpu"})
    mixed = config.model_copy(update={"reward_models": config.reward_models | {"safe": cpu}})
    assert mixed.gpus({"reward_model", "function"}) == 3
    judged = VerifiersConfig.model_validate({"judge": {"model": "some/judge", "server": {"tensor_parallel_size": 2}}})
    both = judged.model_copy(update={"reward_models": config.reward_models})
    assert both.gpus({"reward_model", "chat_open"}) == 6
    assert both.gpus({"chat_open"}) == 2
    assert both.serves
    assert config.serves


@pytest.mark.parametrize("name", ["a.b", "math", "reward_model", "a b", ""])
def test_names_are_apart_from_those_of_verifiers_and_functions(name):
    with pytest.raises(ValidationError):
        VerifiersConfig.model_validate({"reward_models": {name: {"model": "some/model", "revision": "main"}}})
