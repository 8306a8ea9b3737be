"""Episodes with real processes of environments, a real chat template, and a policy of the test."""

import asyncio

import numpy as np
import pytest

from tasks.environments.conversation import ChatTemplate
from tasks.environments.episode import EpisodePlayer, EpisodeRequest
from tasks.environments.sessions import EnvironmentPool
from tasks.generation.config import SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.generation.episode_turns import make_turn_rows
from tasks.generation.interface import Completion, VersionSpan
from tasks.verifiers import Score
from tasks.verifiers.code.running import Execution
from tasks.verifiers.config import EnvironmentsConfig
from tasks.verifiers.scores import CannotJudge, FunctionFailure
from tests.environments.test_tools import tool, written
from tests.tiny_model import tokenizer_of

PROMPT = [{"role": "user", "content": "count"}]


class Policy:
    """A policy that says one text after another, under one version of its weights after another."""

    def __init__(self, tokenizer, texts=("a", "b", "c", "d"), truncated=()):
        self.tokenizer, self.texts, self.truncated = tokenizer, texts, truncated
        self.asked = []

    async def generate(self, token_ids, sampling, seed):
        number = len(self.asked)
        self.asked.append((list(token_ids), sampling.max_tokens, seed))
        text = self.texts[number % len(self.texts)]
        cut = number in self.truncated
        ids = self.tokenizer.encode(text, add_special_tokens=False) + ([] if cut else [self.tokenizer.eos_token_id])
        logprobs = np.full(len(ids), -float(number + 1), np.float32)
        return Completion(
            text, np.array(ids, np.int32), logprobs, "length" if cut else "stop", [VersionSpan(number, 0, len(ids))]
        )


class Services:
    """A verifier that wants the text `a`, and a sandbox that repeats a program."""

    def __init__(self, unjudged=None, unrun=None):
        self.unjudged, self.unrun = unjudged, unrun

    async def judge(self, text, earlier):
        return self.unjudged or Score.binary(text == "a", f"{text} after {len(earlier)}")

    async def run_program(self, program, output_chars):
        if self.unrun:
            raise CannotJudge(self.unrun)
        return Execution(program[-output_chars:])


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of(ends=True)


@pytest.fixture(scope="module")
def shared():
    """A loop with a pool for all episodes under the usual limits. A pool starts its first process in a second."""
    with asyncio.Runner() as runner:
        pool = runner.run(_opened())
        yield runner, pool
        runner.run(pool.close())


async def _opened():
    return EnvironmentPool(LIMITS, None)


LIMITS = EnvironmentsConfig(memory_mib=4096, cpu_seconds=1.0)


@pytest.fixture
def play(tokenizer, shared):
    def playing(
        room,
        policy=None,
        recorded=None,
        *,
        services=None,
        max_tokens=200,
        folder=None,
        closes=False,
        module="tests.environments.rooms",
        **options,
    ):
        async def run():
            policy_ = policy or Policy(tokenizer)
            is_own = closes or folder is not None
            pool = EnvironmentPool(LIMITS, folder) if is_own else shared[1]
            player = EpisodePlayer(pool, ChatTemplate(tokenizer, {}))
            ids = tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True, return_dict=False)
            spec = EnvironmentSpec(f"{module}.{room}", **options)
            sampling = SamplingConfig(max_tokens=max_tokens)
            request = EpisodeRequest(spec, "p", PROMPT, ids, 0, sampling, seed=5)
            try:
                return await player.play(request, policy_.generate, services or Services(), recorded=recorded)
            finally:
                if is_own:
                    await player.aclose()

        return shared[0].run(run())

    return playing


def test_three_turns_are_the_tokens_of_the_whole_conversation(play, tokenizer):
    policy = Policy(tokenizer)
    completion = play("count", policy)
    whole = tokenizer.apply_chat_template(
        [
            *PROMPT,
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "turn 2"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "turn 3"},
            {"role": "assistant", "content": "c"},
        ],
        return_dict=False,
    )
    prompt = policy.asked[0][0]
    assert [*prompt, *completion.token_ids] == whole[: len(prompt) + len(completion.token_ids)]
    assert completion.end.reward == 3.0
    assert completion.end.passed
    assert completion.finish_reason == "stop"
    assert [turn.text for turn in completion.turns] == ["a", "b", "c"]
    assert completion.earlier[1] == {"role": "user", "content": "turn 2"}
    sampled = np.zeros(len(completion.token_ids), bool)
    for number, (turn, span) in enumerate(zip(completion.turns, completion.versions, strict=True)):
        sampled[turn.start : turn.end] = True
        assert (span.version, span.start, span.end) == (number, turn.start, turn.end)
        assert set(completion.logprobs[turn.start : turn.end]) == {-(number + 1.0)}
    assert not completion.logprobs[~sampled].any()
    assert completion.num_tokens == sampled.sum() < len(completion.token_ids)
    # Every turn is asked for behind all tokens before it, and has a seed of its own.
    for (asked, _, _), turn in zip(policy.asked, completion.turns, strict=True):
        assert asked == [*prompt, *completion.token_ids[: turn.start]]
    assert len({seed for _, _, seed in policy.asked}) == 3


def test_a_conversation_that_is_begun_anew_is_another_sequence(play, tokenizer):
    policy = Policy(tokenizer)
    completion = play("forgetful", policy)
    [first, second] = completion.pieces
    assert first.context is None
    assert (first.start, first.end, second.end) == (0, completion.turns[0].end, len(completion.token_ids))
    conversation = [
        ("user", "count on"),
        ("assistant", "aa"),
        ("user", "next"),
        ("assistant", "b"),
        ("user", "and next"),
    ]
    messages = [{"role": role, "content": content} for role, content in conversation]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    last = completion.turns[2]
    seen = [*second.context, *completion.token_ids[second.start : last.start]]
    assert seen == whole == policy.asked[2][0]
    assert policy.asked[1][0] == second.context.tolist()
    assert completion.num_tokens == sum(turn.end - turn.start for turn in completion.turns)
    rows = make_turn_rows(completion)
    assert [row["anew"] for row in rows] == [False, True, True, True, False, False, False]
    assert rows[3]["token_ids"] == second.context.tolist()


def test_what_the_policy_sees_is_never_more_than_prompt_and_tokens_together(play, tokenizer):
    policy = Policy(tokenizer)
    play("forgetful", policy, max_tokens=40)
    prompt = len(policy.asked[0][0])
    assert all(len(asked) + tokens <= prompt + 40 for asked, tokens, _ in policy.asked)


def test_what_is_observed_before_the_first_turn_is_added_to_the_prompt(play, tokenizer):
    policy = Policy(tokenizer)
    completion = play("observing", policy)
    messages = [*PROMPT, {"role": "user", "content": "It rains."}]
    assert policy.asked[0][0] == tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert completion.pieces == [(completion.turns[0].context, 0, len(completion.token_ids))]


def test_an_interrupted_episode_that_was_begun_anew_goes_on_there(play, tokenizer):
    whole = play("forgetful")
    cut = whole.turns[1].end
    recorded = Completion("b", whole.token_ids[:cut], whole.logprobs[:cut], "stop", whole.versions[:2], whole.turns[:2])
    policy = Policy(tokenizer, texts=("c",))
    resumed = play("forgetful", policy, recorded)
    assert len(policy.asked) == 1
    assert resumed.token_ids.tolist() == whole.token_ids.tolist()
    assert resumed.pieces[1].context.tolist() == whole.pieces[1].context.tolist()


def test_a_single_turn_is_left_to_the_verifier(play):
    completion = play("silent")
    assert completion.end is None
    assert completion.text == "a"
    assert completion.earlier == []


def test_a_class_and_tool_turns(play):
    completion = play("Countdown")
    assert completion.end == (0.25, True, None, None)
    assert completion.turns[1].inserted == ({"role": "tool", "content": "1 left"},)
    assert completion.end.score.reward == 0.25
    assert completion.end.score.passed


def test_an_environment_may_ask_the_verifier(play):
    assert play("judged").end[:2] == (0.5, True)


def test_an_environment_may_run_programs(play, tokenizer):
    policy = Policy(tokenizer, texts=("```python\n1 + 1\n```", "a"))
    completion = play("tool", policy, columns={"max_output_chars": 20})
    assert completion.end is None
    assert completion.turns[1].inserted[0]["role"] == "tool"
    assert "1 + 1" in completion.turns[1].inserted[0]["content"]


@pytest.mark.parametrize(
    ("room", "services", "may_pass"),
    [
        ("judged", Services(unjudged=Score.from_error("the judge is away")), True),
        ("judged", Services(unjudged=Score.from_error("it raised", FunctionFailure("f", "it raised"))), False),
        ("tool", Services(unrun="the sandbox is away"), True),
    ],
)
def test_a_service_that_is_away_is_a_failure_that_may_pass(play, tokenizer, room, services, may_pass):
    end = play(room, Policy(tokenizer, texts=("```python\n1\n```",)), services=services).end
    assert end.reward is None
    assert end.failure.may_pass is end.may_pass is may_pass
    assert end.failure.reason.startswith("raised ServiceError")


TOOLS = {"module": "tasks.environments.call_tools", "tools": [tool("add"), tool("broken")]}


def test_tools_run_in_the_process_of_the_environment(play, tokenizer):
    completion = play("call_tools", Policy(tokenizer, (written("add", a=1, b=2), "3")), **TOOLS)
    assert completion.end is None
    assert completion.turns[1].inserted == ({"role": "tool", "content": "3"},)
    broken = play("call_tools", Policy(tokenizer, (written("broken", word="a"), "3")), **TOOLS)
    assert "broken raise NameError (tests/environments/tools_of_tests.py, line" in broken.end.failure.reason


@pytest.mark.complete
@pytest.mark.long
def test_a_parser_of_vllm_runs_there_too(play, tokenizer, tiny_model):
    policy = Policy(tokenizer, ("[add(a=1, b=2)]", "3"))
    completion = play("call_tools", policy, folder=tiny_model, tool_parser="pythonic", **TOOLS)
    assert completion.turns[1].inserted == ({"role": "tool", "content": "3"},)
    unknown = play("call_tools", policy, folder=tiny_model, tool_parser="llama3_json", **TOOLS)
    assert "tool_parser: llama3_json" in unknown.end.error


@pytest.mark.parametrize(
    ("options", "turns"),
    [
        pytest.param({"turns": 2}, 2, id="turns"),
        pytest.param({"max_tokens": 40}, 2, id="tokens"),
    ],
)
def test_what_overruns_a_limit_is_truncated(play, options, turns):
    completion = play("greedy", **options)
    assert (len(completion.turns), completion.truncated, completion.end) == (turns, True, None)
    assert len(completion.token_ids) <= options.get("max_tokens", 200)


def test_an_environment_that_notices_the_limit_gives_its_reward(play):
    completion = play("modest", turns=3)
    assert completion.end.reward == pytest.approx(0.3)
    assert completion.truncated


def test_a_turn_that_is_cut_off_ends_the_episode(play, tokenizer):
    completion = play("greedy", Policy(tokenizer, truncated={1}), turn_tokens=4)
    assert (len(completion.turns), completion.truncated) == (2, True)


def test_an_episode_that_is_lost_with_all_processes_is_no_failure_of_its_environment(play):
    completion = play("orphaned")
    assert completion.end.reward is None
    assert completion.end.failure is None
    assert "was lost with the process that its processes are forked from" in completion.end.error


@pytest.mark.parametrize(
    ("room", "reason"),
    [
        ("hasty", "ended before a turn"),
        ("raising", "raised KeyError (tests/environments/rooms.py, line"),
        ("nothing_finite", "must return a finite number"),
        ("dying", "ended its process (status -9)"),
        ("hungry", "memory"),
        ("controlling", "raised ValueError"),
        ("unanswerable", "raised ValueError"),
        ("crowded", "raised RuntimeError"),
        ("blocking", "raised TypeError"),
        ("NO_FUNCTION", "is of type int"),
        ("missing", "cannot be imported"),
    ],
)
def test_a_fault_of_the_environment_is_never_a_score(play, room, reason):
    completion = play(room)
    assert completion.end.reward is None
    assert reason in completion.end.failure.reason
    score = completion.end.score
    assert score.error.startswith(f"environment tests.environments.rooms.{room} ")
    assert score.failure.function == f"tests.environments.rooms.{room}"


@pytest.mark.parametrize("room", ["hanging", "busy"])
def test_an_environment_that_takes_too_long_is_cut_and_costs_no_engine_anything(play, room):
    completion = play(room, seconds=2.0)
    assert (completion.text, completion.truncated, completion.end) == ("a", True, None)


def test_a_control_token_that_is_made_plain_is_text(play, tokenizer):
    completion = play("plain")
    assert completion.turns[1].inserted == ({"role": "user", "content": "< |im_end|>"},)
    between = completion.token_ids[completion.turns[0].end : completion.turns[1].start].tolist()
    assert between.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1


def test_an_interrupted_episode_goes_on_behind_its_last_turn(play, tokenizer):
    whole = play("count")
    cut = whole.turns[1].end
    recorded = Completion("b", whole.token_ids[:cut], whole.logprobs[:cut], "stop", whole.versions[:2], whole.turns[:2])
    policy = Policy(tokenizer, texts=("c",))
    resumed = play("count", policy, recorded)
    assert len(policy.asked) == 1
    assert resumed.token_ids.tolist() == whole.token_ids.tolist()
    assert [span.version for span in resumed.versions] == [0, 1, 0]
    assert resumed.end == whole.end


def test_an_environment_that_inserts_others_has_its_turns_sampled_anew_from_there(play, tokenizer):
    recorded = play("random_words")
    policy = Policy(tokenizer, texts=("z",))
    played = play("random_words", policy, recorded)
    assert [turn.text for turn in played.turns] == ["a", "z"]


def test_a_process_plays_many_episodes(tokenizer):
    async def run():
        pool = EnvironmentPool(EnvironmentsConfig(processes=2))
        player = EpisodePlayer(pool, ChatTemplate(tokenizer, {}))
        spec = EnvironmentSpec("tests.environments.rooms.count")
        sampling = SamplingConfig(max_tokens=200)

        async def one(sample):
            request = EpisodeRequest(spec, "p", PROMPT, [1, 2], sample, sampling, seed=None)
            return await player.play(request, Policy(tokenizer).generate, Services())

        try:
            return await asyncio.gather(*map(one, range(20)))
        finally:
            await player.aclose()

    assert [completion.end.reward for completion in asyncio.run(run())] == [3.0] * 20
