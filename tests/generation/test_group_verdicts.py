"""Verdicts of rewards that judge all responses to a prompt together: made once all exist, and cached by the group."""

import pyarrow as pa
import pytest

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.rollouts.judging import Judging, collect_whole_prompts
from tasks.rollouts.rollout_cache import compute_verdict_number, responses
from tasks.rollouts.sampling_loop import Workload, sample
from tasks.tables.parquet import build_table
from tasks.tables.schemas import RESPONSES
from tasks.verifiers import VerifiersConfig, open_pool
from tests.rollouts.test_rollout_cache import CountingEngine
from tests.rollouts.test_sample_and_score import cache_in, table
from tests.verifiers.rewards_of_a_user import ranks

CONFIG = VerifiersConfig(time_limit_seconds=5)
ENGINE = EngineConfig(max_model_len=128, max_num_seqs=4)
SAMPLING = SamplingConfig(samples=3, max_tokens=16, seed=5)
RANKS = {"function": "tests.verifiers.rewards_of_a_user.ranks", "columns": {}, "group": True}
TEXTS = ["a", "ccc", "bb"]


def prompts(count=2, truth=RANKS):
    return table(*(f"Prompt {number}" for number in range(count)), verifier="function", truth=truth)


def answered(prompts, texts):
    rows = [
        {"prompt_id": name, "sample": number, "response": text, "num_tokens": 1, "finish_reason": "stop"}
        for name in prompts["prompt_id"].to_pylist()
        for number, text in enumerate(texts)
    ]
    return build_table(rows, RESPONSES, "responses")


@pytest.fixture(scope="module")
def pool():
    with open_pool(1, CONFIG, ["function"]) as pool:
        yield pool


@pytest.fixture
def judged(tmp_path, pool, monkeypatch):
    """Judge responses to prompts into one cache; return scores, and the number of those that were scored now."""
    monkeypatch.setattr(Judging, "_get_pool", lambda _: pool)

    def judge(prompts, texts):
        with Judging(prompts, cache_in(tmp_path), CONFIG) as judging:
            scores = judging.rollouts(answered(prompts, texts), "initial")["score"].to_pylist()
            judging.check_share(0.0)
        return scores, judging.judged

    return judge


def test_verdicts_of_a_group_are_cached(judged):
    assert judged(prompts(), TEXTS) == ([0.0, 1.0, 0.5] * 2, 6)
    assert judged(prompts(), TEXTS) == ([0.0, 1.0, 0.5] * 2, 0)


def test_another_response_or_number_of_samples_judges_the_whole_group_anew(judged):
    judged(prompts(), TEXTS)
    assert judged(prompts(), ["a", "ccc", "dddd"]) == ([0.0, 0.5, 1.0] * 2, 6)
    assert judged(prompts(), ["a", "ccc"]) == ([0.0, 1.0] * 2, 4)
    assert judged(prompts(), TEXTS) == ([0.0, 1.0, 0.5] * 2, 0)  # the first verdicts are there still


def test_prompts_of_both_kinds_are_judged_in_one_table(judged):
    alone = {"function": "tests.verifiers.rewards_of_a_user.length_penalty", "columns": {}}
    both = pa.concat_tables([prompts(1), prompts(1, truth=alone)])
    assert judged(both, ["a", "bbbbb"]) == ([0.0, 1.0, 0.0, 1.0], 4)


def test_the_key_of_a_verdict_holds_all_responses_in_their_order(tmp_path):
    cache, [row] = cache_in(tmp_path), prompts(1).to_pylist()
    groups = (None, ["a", "b"], ["b", "a"], ["a"], ["a", "b", "b"], ["ab"])
    assert len({cache.compute_verdict_key(row, group) for group in groups}) == 6
    assert [compute_verdict_number("a", sample, ["a", "a"]) for sample in (0, 1)] == [0, 1]
    assert compute_verdict_number("a", 0) == compute_verdict_number("a", 1) != compute_verdict_number("b", 0)


def test_tables_are_divided_between_prompts():
    whole = answered(prompts(3), TEXTS)
    parts = list(collect_whole_prompts(whole.slice(start, 2) for start in range(0, whole.num_rows, 2)))
    assert pa.concat_tables(parts) == whole
    assert [part.num_rows for part in parts] == [3, 3, 3]
    assert list(collect_whole_prompts([whole.slice(0, 0)])) == []


@pytest.mark.long
@pytest.mark.parametrize("stops_early", [False, True])
def test_sampling_judges_a_group_once_it_is_whole_and_never_stops_early(
    tiny_model, tmp_path, pool, monkeypatch, stops_early
):
    engine, rows = CountingEngine(), []
    monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", engine)
    remaining = (lambda scores: 0 if scores else 1) if stops_early else None
    cache = cache_in(tmp_path)
    made = sample(
        [Workload(prompts(), SAMPLING, cache)],
        tiny_model,
        ENGINE,
        verifiers=CONFIG,
        remaining=remaining,
        on_judged=rows.append,
    )
    assert (made.counts, len(engine.requests), len(rows)) == ([[3, 3]], 6, 6)
    monkeypatch.setattr(Judging, "_get_pool", lambda _: pytest.fail("verdicts are cached"))
    with Judging(prompts(), cache_in(tmp_path), CONFIG) as judging:
        cache.responses.find([])
        parts = [judging.rollouts(part, "initial") for part in responses(prompts(), [3, 3], cache)]
    for rollouts in (part for whole in parts for part in (whole.slice(0, 3), whole.slice(3, 3))):
        completions = [[{"content": text}] for text in rollouts["response"].to_pylist()]
        assert rollouts["score"].to_pylist() == ranks(completions, completions)


@pytest.mark.long
def test_a_group_of_which_some_responses_are_cached_is_judged_with_them(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", CountingEngine())
    fewer = SAMPLING.model_copy(update={"samples": 2})
    for sampling, judged in ((fewer, 4), (SAMPLING, 6)):
        rows = []
        sample([Workload(prompts(), sampling, cache_in(tmp_path))], tiny_model, ENGINE, on_judged=rows.append)
        assert len(rows) == judged
        assert all(row["score"] is not None for row in rows)
