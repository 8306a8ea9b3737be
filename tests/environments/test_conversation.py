"""Messages between turns under templates with the branches of published ones: none is lost, and turns end once."""

import asyncio
import threading

import pytest

from tasks.environments.conversation import ChatTemplate
from tasks.generation.chat_template import ChatTemplateError, encode
from tests.environments import templates
from tests.environments.templates import speaking

ASKED = [{"role": "user", "content": "Guess."}]
TURN = {"role": "assistant", "content": "I say 5."}


def message(role, content="Higher."):
    return {"role": role, "content": content}


def continued(tokenizer, messages, end="<|im_end|>", turn=TURN["content"]):
    """The text of a turn, its end and what is inserted after it."""
    last = tokenizer.convert_tokens_to_ids(end)
    ids = ChatTemplate(tokenizer, {}).inserted(messages, last)
    return tokenizer.decode([*tokenizer.encode(turn, add_special_tokens=False), last, *ids], skip_special_tokens=False)


RENDERED = {
    "all roles": (templates.ALL_ROLES, ["user", "tool", "environment", "system"]),
    "no tool": (templates.NO_TOOL, ["user", "environment", "system"]),
    "first system only": (templates.FIRST_SYSTEM_ONLY, ["user", "tool", "environment"]),
    "hoisted system": (templates.HOISTED_SYSTEM, ["user", "tool", "environment"]),
    "strict": (templates.STRICT, ["user"]),
    "results as JSON": (templates.JSON_RESULTS, ["user", "tool", "environment", "system"]),
}


@pytest.mark.parametrize("role", ["user", "tool", "environment", "system"])
@pytest.mark.parametrize("name", RENDERED)
def test_a_message_is_in_the_tokens_or_refused(name, role):
    template, rendered = RENDERED[name]
    tokenizer = speaking(template)
    if role in rendered:
        assert "Higher." in continued(tokenizer, [message(role)])
        return
    with pytest.raises(ChatTemplateError) as refused:
        continued(tokenizer, [message(role)])
    assert f"role {role!r}" in str(refused.value) or "refuses turns of" in str(refused.value)


def test_one_lost_message_among_several_is_refused():
    tokenizer = speaking(templates.LAST_RESULT_ONLY)
    assert "Higher." in continued(tokenizer, [message("tool")])
    for messages in ([message("tool"), message("tool")], [message("tool"), message("user")]):
        with pytest.raises(ChatTemplateError, match="leaves out a message of the role 'tool'"):
            continued(tokenizer, messages)
    # Equal contents do not hide it, as a search for the content would.
    with pytest.raises(ChatTemplateError, match="leaves out"):
        continued(speaking(templates.NO_TOOL), [message("user"), message("tool")])


@pytest.mark.parametrize(
    ("template", "roles", "lost"),
    [
        (templates.NO_TOOL, ["user", "tool"], "tool"),
        (templates.FIRST_SYSTEM_ONLY, ["user", "system"], "system"),
        (templates.FIRST_SYSTEM_ONLY, ["system", "user", "assistant", "user"], None),
        (templates.HOISTED_SYSTEM, ["user", "system", "user"], None),
        (templates.ALL_ROLES, ["system", "user", "tool"], None),
    ],
)
def test_a_conversation_and_a_prompt_lose_nothing(template, roles, lost):
    tokenizer = speaking(template)
    messages = [message(role, f"text {number}") for number, role in enumerate(roles)]
    row = {"prompt_id": "p", "source": "s", "messages": messages, "environment": None}
    if lost is None:
        ids = ChatTemplate(tokenizer, {}).begun(messages, [])
        assert [ids] == encode(tokenizer, [row], {})
        assert all(text["content"] in tokenizer.decode(ids) for text in messages)
        return
    with pytest.raises(ChatTemplateError, match=f"leaves out a message of the role '{lost}'"):
        ChatTemplate(tokenizer, {}).begun(messages, [])
    with pytest.raises(ChatTemplateError, match=f"prompt p of source 's'.* leaves out a message of the role '{lost}'"):
        encode(tokenizer, [row], {})


COHERE = ("<|END_TEXT|>", "<|END|>", "<|START|>", "<|USER|>", "<|BOT|>", "<|TEXT|>")
GLM = ("<|user|>", "<|observation|>", "<|assistant|>")
HARMONY = ("<|start|>", "<|message|>", "<|end|>", "<|return|>")
ENDS = {
    # name: (template, control tokens, role, token that ended the turn, text from there to the content)
    "ChatML": (templates.ALL_ROLES, (), "user", "<|im_end|>", "<|im_end|>\n<|im_start|>user\n"),
    "ChatML, another end": (templates.ALL_ROLES, (), "user", "<|pad|>", "<|pad|>\n<|im_start|>user\n"),
    "two ends": (templates.TWO_ENDS, COHERE, "user", "<|END|>", "<|END|><|START|><|USER|>"),
    "two ends, another": (templates.TWO_ENDS, COHERE, "user", "<|pad|>", "<|pad|><|START|><|USER|>"),
    "no end, right header": (templates.NO_ENDS, GLM, "user", "<|user|>", "<|user|>\n"),
    "no end, right result": (templates.NO_ENDS, GLM, "tool", "<|observation|>", "<|observation|>\n"),
    "no end, another header": (templates.NO_ENDS, GLM, "user", "<|observation|>", "<|observation|><|user|>\n"),
    "no end, another for a result": (templates.NO_ENDS, GLM, "tool", "<|user|>", "<|user|><|observation|>\n"),
    "no end, end of text": (templates.NO_ENDS, GLM, "user", "<|pad|>", "<|pad|><|user|>\n"),
    "space before": (templates.SPACED_END, ("<|end|>", "<|begin|>"), "user", "<|end|>", "<|end|><|begin|>[INST] "),
    "line before": (templates.BROKEN_LINE_END, ("<|EOT|>",), "user", "<|EOT|>", "<|EOT|>\n### Instruction:\n"),
    "line before, another": (templates.BROKEN_LINE_END, ("<|EOT|>",), "user", "<|pad|>", "<|pad|>\n### Instruction:\n"),
    "other last": (templates.OTHER_LAST_END, HARMONY, "user", "<|return|>", "<|return|><|start|>user<|message|>"),
    "other last, usual end": (templates.OTHER_LAST_END, HARMONY, "user", "<|end|>", "<|end|><|start|>user<|message|>"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_a_turn_ends_once_and_the_next_header_is_whole(name):
    template, control, role, end, between = ENDS[name]
    text = continued(speaking(template, *control), [message(role)], end)
    assert text.split("Higher.")[0] == "I say 5." + between


def test_a_turn_without_an_end_gets_the_whole_end():
    tokenizer = speaking(templates.ALL_ROLES)
    last = tokenizer.encode("5", add_special_tokens=False)[-1]
    text = tokenizer.decode(ChatTemplate(tokenizer, {}).inserted([message("user")], last))
    assert text.startswith("<|im_end|>\n<|im_start|>user\nHigher.<|im_end|>")


@pytest.mark.parametrize("options", [{}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
def test_inserted_tokens_are_the_ones_of_the_whole_conversation(options):
    tokenizer = speaking(templates.BROKEN_LINE_END, "<|EOT|>", **options)
    whole = tokenizer.apply_chat_template([*ASKED, TURN, message("user")], tokenize=False, add_generation_prompt=True)
    turn = tokenizer.convert_tokens_to_ids("<|EOT|>")
    ids = tokenizer.encode(whole, add_special_tokens=False)
    after = ids[ids.index(turn) + 1 :]
    assert ChatTemplate(tokenizer, {}).inserted([message("user")], turn) == after


def test_a_space_that_a_tokenizer_puts_before_a_text_is_not_inserted():
    tokenizer = speaking(templates.ALL_ROLES)
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    end = tokenizer.eos_token_id
    ids = ChatTemplate(tokenizer, {}).inserted([message("user")], end)
    whole = tokenizer.apply_chat_template(
        [*ASKED, TURN, message("user")], return_dict=False, add_generation_prompt=True
    )
    ends = [place for place, number in enumerate(whole) if number == end]
    assert ids == whole[ends[1] + 1 :]


def test_an_error_of_a_template_or_a_tokenizer_is_one_sentence_with_a_name():
    broken = speaking(templates.BROKEN)
    row = {"prompt_id": "p", "source": "s", "messages": ASKED, "environment": None}
    for refused in (
        lambda: ChatTemplate(broken, {}).begun(ASKED, []),
        lambda: encode(broken, [row], {}),
        lambda: ChatTemplate(speaking(templates.ALL_ROLES), {}).inserted([message("user", "\ud800")], 1),
    ):
        with pytest.raises(ChatTemplateError) as error:
            refused()
        assert "of  refuses" not in str(error.value)
        assert "\n" not in str(error.value)


def test_a_text_with_more_characters_than_tokens_could_have_is_known_to_be_too_long():
    template = ChatTemplate(speaking(templates.ALL_ROLES), {})
    assert template.may_fit([message("user", "x" * 100)], 100)
    assert not template.may_fit([message("user", "x" * 10_000_000)], 256)
    assert not template.may_fit([message("user", "x" * 5_000_000)] * 2, 256)


def test_a_template_is_used_in_several_threads_at_one_time():
    template = ChatTemplate(speaking(templates.ALL_ROLES), {})
    expected = template.inserted([message("user", "a b " * 2000)], 1)
    began = threading.Barrier(4)

    def insert():
        began.wait()
        return template.inserted([message("user", "a b " * 2000)], 1)

    async def together():
        return await asyncio.gather(*(asyncio.to_thread(insert) for _ in range(4)))

    assert asyncio.run(together()) == [expected] * 4
