"""One response, one score: in difficulty, in training and in evaluation, whoever asks and in whatever order."""

import asyncio
import contextlib
import hashlib
import random

import fsspec
import pytest

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import Completion
from tasks.recipe.run import RewardsConfig
from tasks.rollouts.judged_by import JudgedBy
from tasks.rollouts.rollout_cache import RolloutCache
from tasks.rollouts.sample_and_score import sample_and_score
from tasks.rollouts.sampling_loop import Workload, tokenize_prompts
from tasks.tables.parquet import build_table
from tasks.tables.schemas import PROMPTS, canonical_json, prompt_id
from tasks.training.actors.rewards import RayJudge, RewardProcess
from tasks.verifiers import VerifiersConfig, collect_verifiers, verify
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, graded

PROMPTS_OF_EACH, SAMPLES = 25, 4
ENGINE = EngineConfig(max_model_len=256, cpu_threads=1)
FUNCTION = {"function": "tests.verifiers.rewards_of_a_user.length_penalty", "columns": {}}

MATHEMATICS = ["the answer is {n}", r"\boxed{{{n}.0}}", r"so \boxed{{{n}+1}}", "<think>{n}</think> I do not know"]
PROGRAMS = ["return x + {n}", "return x - {n}", "return {n}", "return 1 / 0 if {n} else f(x)"]
SENTENCES = ["No mark at all {n}", "Well, {n}", "", "one\n* {n}, two"]
WORDS = ["{n}", "It is {n}, as one sees", "please", "{n}?"]


def prompts_and_responses():
    """500 responses to 125 prompts for all kinds of verifiers: `{content: (verifier, ground truth, responses)}`."""
    made = {}
    for n in range(PROMPTS_OF_EACH):
        programs = [f"```python\ndef f(x):\n    {line.format(n=n)}\n```" for line in PROGRAMS]
        tests = {"tests": [f"assert f(1) == {1 + n}", f"assert f(0) == {n}"]}
        both = [
            {"verifier": "math", "weight": 1.0, "ground_truth": str(n)},
            {"verifier": "function", "weight": 0.5, "ground_truth": FUNCTION},
        ]
        no_comma = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
        for content, verifier, truth, responses in (
            (f"Compute {n}.", "math", str(n), [text.format(n=n) for text in MATHEMATICS]),
            (f"Write f, {n}.", "code", tests, programs),
            (f"Without commas, {n}.", "precise_if", no_comma, [text.format(n=n) for text in SENTENCES]),
            (f"Compute at length {n}.", "weighted", {"rewards": both}, [text.format(n=n) for text in WORDS]),
            (f"Talk of {n}.", "chat_open", None, [f"{n}: {text.format(n=n)}" for text in WORDS]),
        ):
            made[content] = (verifier, truth, responses)
    return made


MADE = prompts_and_responses()


class ReplayingEngine:
    """In the place of an engine, which would say something else each time: the responses, by prompt and in turn."""

    def __init__(self, contents):
        self._left = {tuple(ids): list(MADE[content][2]) for ids, content in contents.items()}

    async def generate(self, prompt_ids, sampling, *, seed=None, with_logprobs=True):
        await asyncio.sleep(0)
        return Completion(self._left[tuple(prompt_ids)].pop(0), [1], [], "stop", [])


@pytest.fixture(scope="module")
def table():
    rows = []
    for content, (verifier, truth, _) in MADE.items():
        messages = [{"role": "user", "content": content}]
        rows.append(
            {
                "prompt_id": prompt_id(messages, verifier, truth),
                "domain": "math",
                "source": "test",
                "messages": messages,
                "verifier": verifier,
                "ground_truth": canonical_json(truth),
                "metadata": "{}",
                "cluster": None,
                "row": 0,
            }
        )
    return build_table(rows, PROMPTS, "prompts")


@pytest.fixture(scope="module")
def config():
    """A judge that grades by what it is shown, so that a different prompt would show."""

    def reply(request):
        digest = hashlib.sha256(canonical_json(request["messages"]).encode()).digest()
        return graded(1 + digest[0] % 10)

    with FakeEndpoint(reply) as endpoint:
        yield VerifiersConfig(
            time_limit_seconds=6,
            code={"test_seconds": 0.5, "total_seconds": 2},
            judge={"url": endpoint.url, "model": "judge"},
        )


def offline(table, model, config, monkeypatch, folder, **sampling):
    """Scores as difficulty and evaluation take them, by prompt and sample."""

    @contextlib.asynccontextmanager
    async def replaying(_model, _config):
        ids = tokenize_prompts(table.to_pylist(), model, SamplingConfig())
        yield ReplayingEngine(dict(zip(map(tuple, ids), MADE, strict=True)))

    monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", replaying)
    options = SamplingConfig(samples=SAMPLES, max_tokens=16, **sampling)
    cache = RolloutCache.open(fsspec.filesystem("file"), str(folder), "p", ENGINE, options, JudgedBy(config, ""))
    sampled = sample_and_score(
        [Workload(table, options, cache)], model, ENGINE, policy="p", stage="difficulty", verifiers=config
    )
    assert sampled.table.column("error").null_count == sampled.table.num_rows == 500
    return {(row["prompt_id"], row["response"]): row["score"] for row in sampled.table.to_pylist()}


@pytest.fixture(scope="module")
def online(table, config):
    """Scores as training takes them, shuffled, through the reward process in Ray; `{(prompt, response): score}`."""
    import ray

    calls = [(row, text) for row, (*_, texts) in zip(table.to_pylist(), MADE.values(), strict=True) for text in texts]
    random.Random(0).shuffle(calls)
    names = sorted({name for verifier, truth, _ in MADE.values() for name in collect_verifiers(verifier, truth)})
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(RewardProcess).options(num_cpus=0, max_concurrency=1000)
        process = remote.remote(RewardsConfig(), config, names)
        judge = RayJudge(process, RewardsConfig())

        async def score_all():
            truths = {content: truth for content, (_, truth, _) in MADE.items()}
            return await asyncio.gather(
                *(
                    judge.score(row["verifier"], text, truths[row["messages"][0]["content"]], row["messages"])
                    for row, text in calls
                )
            )

        scores = asyncio.run(score_all())
        ray.get(process.stop.remote())
    finally:
        ray.shutdown()
    return {(row["prompt_id"], text): score for (row, text), score in zip(calls, scores, strict=True)}


@pytest.mark.engine
@pytest.mark.complete
def test_500_responses_get_the_same_score_in_difficulty_training_and_evaluation(
    table, tiny_model, config, online, monkeypatch, tmp_path
):
    difficulty = offline(table, tiny_model, config, monkeypatch, tmp_path)
    evaluation = offline(table, tiny_model, config, monkeypatch, tmp_path, seed=11)
    assert difficulty == evaluation == {key: score.value for key, score in online.items()}
    assert 0.2 < sum(difficulty.values()) / len(difficulty) < 0.8
    for content, (verifier, truth, responses) in list(MADE.items())[::10]:
        if verifier != "chat_open":
            row = next(row for row in table.to_pylist() if row["messages"][0]["content"] == content)
            single = verify(verifier, responses[0], truth, messages=row["messages"])
            assert single == online[row["prompt_id"], responses[0]]
