"""The page of tokens: what was kept, with colours and values; hostile text is text; the size is bounded."""

import html
import re

import numpy as np
import pytest
from click.testing import CliRunner

from tasks.commands.tokens import tokens
from tasks.failures import MistakeError
from tasks.token_page.decoding import TokenTexts, visible
from tasks.token_page.page import LEVELS, MOST_RESPONSES, MOST_TOKENS, choose, render
from tasks.token_page.responses import StepRead, TokenRow, find_tokenizer_folder, read_step
from tests.reporting.test_page import Page
from tests.tiny_model import tokenizer_of
from tests.training.stand_ins import Run, always, config, prompts

HOSTILE = "<script>alert(1)</script></pre></b>'\"& {{ 7 * 7 }} \x1b[2J\0\u202e 数 😀"


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of(ends=True)


@pytest.fixture(scope="module")
def texts(tokenizer):
    return TokenTexts(tokenizer)


def row(text, tokenizer, group=0, sample=0, differences=(0.0,), advantage=0.5, masked=()):
    ids = np.array(tokenizer(text)["input_ids"], np.int32)
    mask = np.ones(len(ids), np.bool_)
    mask[list(masked)] = False
    engine = np.full(len(ids), -1.0, np.float32)
    learner = np.where(mask, engine + np.resize(np.float32(differences), len(ids)), np.float32(0))
    about = {
        "group": group,
        "sample": sample,
        "prompt_id": f"p{group}",
        "finish_reason": "stop",
        "score": 1.0,
        "passed": True,
        "detail": None,
        "advantage": None if np.ndim(advantage) else advantage,
    }
    return TokenRow(about, ids, engine, learner, mask, np.resize(np.float32(advantage), len(ids)))


def page_of(tmp_path, texts, *rows, **options):
    groups = len({row.about["group"] for row in rows})
    return render(StepRead(tmp_path / "rollouts", 3, "", groups, list(rows)), texts, **options)


def shown(page):
    """Class, values and text of each token."""
    found = re.findall(r'<b tabindex="0"(?: class="(\w+)")? role="note" aria-label="([^"]*)">([^<]*)</b>', page)
    return [(style, html.unescape(values), html.unescape(text)) for style, values, text in found]


def test_tokens_have_their_difference_as_colour_and_in_words(tmp_path, texts, tokenizer):
    page = page_of(tmp_path, texts, row("the dog", tokenizer, differences=(0.2, -0.1, 0.0), masked=(1,)))
    first, second, *_ = shown(page)
    assert first[0] == f"p{LEVELS}"
    assert "learner -0.8000, engine -1.0000, difference +0.2000 nats, advantage +0.5" in first[1]
    assert second[0] == "m"
    assert "not in the loss" in second[1]
    assert "".join(text for *_, text in shown(page)) == "the dog"
    by_advantage = page_of(
        tmp_path, texts, row("the", tokenizer), row("dog", tokenizer, sample=1, advantage=-0.5), by_advantage=True
    )
    assert {style for style, *_ in shown(by_advantage)} == {f"p{LEVELS}", f"n{LEVELS}"}


def test_each_token_has_its_own_advantage(tmp_path, texts, tokenizer):
    page = page_of(tmp_path, texts, row("the dog", tokenizer, advantage=(0.5, -0.25)), by_advantage=True)
    first, second, *_ = shown(page)
    assert (first[0], second[0]) == (f"p{LEVELS}", f"n{LEVELS // 2}")
    assert first[1].endswith("advantage +0.5")
    assert second[1].endswith("advantage -0.25")


def test_hostile_text_stays_text_and_the_page_asks_for_nothing(tmp_path, texts, tokenizer):
    page = page_of(tmp_path, texts, row(HOSTILE, tokenizer))
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert len(parsed.ids) == len(set(parsed.ids))
    assert not re.search(r"https?:|src=|url\(|@import", page)
    assert "\x1b" not in page
    text = "".join(text for *_, text in shown(page))
    assert text.startswith("<script>alert(1)</script></pre></b>'\"& {{ 7 * 7 }} \\x1b[2J\\x00")


def test_bytes_that_are_no_characters_are_escapes(texts, tokenizer):
    ids = tokenizer("é😀 sea\nend")["input_ids"]
    pieces = texts(ids)
    assert "".join(pieces).endswith(" sea↵\nend")
    assert pieces[0] == "\\xc3"
    assert set(texts([0, 1, 2])) == {"<|im_start|>", "<|im_end|>", "<|pad|>"}
    assert texts([10_000_000]) == ["<token 10000000>"]
    assert visible("a\u202eb\tc".encode()) == "a\\u202eb\tc"


def test_sentencepiece_tokens_are_decoded_from_their_pieces():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE({"\u2581sea": 0, "<0xF0>": 1, "Ġ": 2}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    decode = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert decode([0, 1, 2]) == [" sea", "\\xf0", "Ġ"]


def test_a_page_is_bounded_and_says_what_it_leaves_out(tmp_path, texts, tokenizer):
    long = "the dog and the sea " * 400
    rows = [row(long, tokenizer, group, sample, (0.01 * group,)) for group in range(20) for sample in range(5)]
    page = page_of(tmp_path, texts, *rows)
    assert len(shown(page)) <= MOST_TOKENS
    assert len(page.encode()) < 6_000_000
    [note] = re.findall(r'<p class="note">(.*?)</p>', page, re.DOTALL)
    assert f"{100 - MOST_RESPONSES} of 100 responses" in note
    assert f"tokens from the middle of {MOST_RESPONSES} responses" in note
    assert [row.about["group"] for row in choose(rows)[::5]][:3] == [19, 18, 17]
    assert 'class="note"' not in page_of(tmp_path, texts, rows[0])


@pytest.fixture
def run_folder(tmp_path, tokenizer):
    """A run whose policy was exported."""

    def make(**options):
        run = Run(tmp_path, config(**options), prompts(50), always("right", "wrong")).play()
        tokenizer.save_pretrained(tmp_path / "policy")
        return run

    return make


def test_the_command_writes_a_page_of_a_run(run_folder, tmp_path):
    run = run_folder(keep_tokens=1)
    read = read_step(tmp_path, 1)
    expected = [row for row in run.rollouts() if row["step"] == 1]
    assert [row.about["group"] for row in read.rows] == sorted(row["group"] for row in expected)
    assert read.groups == 2
    assert {round(float(row.differences[0]), 3) for row in read.rows} == {-0.25}
    output = tmp_path / "new" / "page.html"
    done = CliRunner().invoke(tokens, [str(tmp_path), "--step", "1", "--output", str(output)])
    assert done.exit_code == 0, done.output
    assert len(shown(output.read_text())) == sum(len(row["token_ids"]) for row in expected)


def test_a_prompt_chooses_its_responses(run_folder, tmp_path):
    run = run_folder(keep_tokens=1)
    [first, *_] = [row["prompt_id"] for row in run.rollouts() if row["step"] == 0]
    assert {row.about["prompt_id"] for row in read_step(tmp_path, 0, first).rows} == {first}
    with pytest.raises(MistakeError, match="begins with 'no prompt'"):
        read_step(tmp_path, 0, "no prompt")


@pytest.mark.parametrize(
    ("options", "step", "message"),
    [
        ({}, 1, "kept no tokens: set keep_tokens"),
        ({"keep_tokens": 1}, 7, "has no step 7.*steps 0 to 2"),
        ({"keep_tokens": 0.1, "steps": 8}, 0, "no group of step 0.*larger keep_tokens"),
    ],
)
def test_a_step_without_tokens_is_a_sentence(run_folder, tmp_path, options, step, message):
    run_folder(**options)
    with pytest.raises(MistakeError, match=message):
        read_step(tmp_path, step)


def test_responses_and_tokenizers_that_are_elsewhere_are_a_sentence(tmp_path, run_folder):
    with pytest.raises(MistakeError, match="no such folder"):
        read_step(tmp_path / "nothing", 0)
    results = tmp_path / "results"
    results.mkdir()
    with pytest.raises(MistakeError, match="contains no responses"):
        read_step(results, 0)
    (results / "summary.json").write_text('{"responses": "s3://bucket/rlvr-runs/x/rollouts"}')
    with pytest.raises(MistakeError, match="s3://bucket/rlvr-runs/x/rollouts, which is not on this machine"):
        read_step(results, 0)
    with pytest.raises(MistakeError, match="--model"):
        find_tokenizer_folder(results, tmp_path / "rollouts")
    run_folder(keep_tokens=1)
    (results / "summary.json").write_text(f'{{"responses": "{tmp_path / "rollouts"}"}}')
    assert read_step(results, 0).rows
    assert find_tokenizer_folder(results, tmp_path / "rollouts") == tmp_path / "policy"
