"""What was paid for is not paid for twice: an engine that counts its requests, and real verifiers and storage."""

import asyncio
from contextlib import nullcontext
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from tasks.difficulty.stopping import Bounds, count_remaining
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import Completion, EngineError
from tasks.rollouts.judged_by import JudgedBy
from tasks.rollouts.judging import Judging
from tasks.rollouts.rollout_cache import responses
from tasks.rollouts.sampling_loop import BACKLOG, Workload, sample
from tasks.tables.schemas import ROLLOUTS
from tasks.verifiers import VerifiersConfig, open_pool
from tasks.verifiers.config import DEFAULTS
from tests.rollouts.test_sample_and_score import JUDGED_BY, cache_in, table

ENGINE = EngineConfig(max_model_len=128, max_num_seqs=4, cpu_threads=1)
SAMPLING = SamplingConfig(samples=4, max_tokens=16, seed=5)
MENDED = JudgedBy(VerifiersConfig(time_limit_seconds=9), "")
PROMPTS = table(*(f"Write sentence number {number}" for number in range(6)))


class CountingEngine:
    """Answers with text that its seed decides, half of it with a comma; dies after `dies_after` requests."""

    def __init__(self):
        self.starts = 0
        self.requests = []
        self.dies_after = None
        self.at_once = self.most_at_once = 0

    def __call__(self, *_):
        self.starts += 1
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def generate(self, ids, sampling, *, seed, with_logprobs):
        if self.dies_after is not None and len(self.requests) >= self.dies_after:
            raise EngineError("the engine died")
        self.requests.append(seed)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        text = f"text {seed}" + (", and more" if seed % 2 else "")
        return Completion(text, np.arange(3), np.array([]), "stop", [])


@pytest.fixture
def engine(monkeypatch):
    made = CountingEngine()
    monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", made)
    return made


@pytest.fixture(scope="module")
def pool():
    """Verifiers for all draws: starting them takes longer than judging."""
    with open_pool(1, DEFAULTS, ["precise_if"]) as pool:
        yield pool


@pytest.fixture
def draw(tiny_model, tmp_path, pool, monkeypatch):
    """Samples and judges into one place, and returns all rollouts."""
    for module in ("sampling_loop", "judging"):
        monkeypatch.setattr(f"tasks.rollouts.{module}.open_pool", lambda *_: nullcontext(pool))

    def drawn(prompts=PROMPTS, sampling=SAMPLING, judged_by=JUDGED_BY, engine=ENGINE, **options):
        cache = cache_in(tmp_path, judged_by, sampling, engine)
        drawn.made = sample([Workload(prompts, sampling, cache)], tiny_model, engine, **options)
        with Judging(prompts, cache, on_judged=judged.append) as judges:
            parts = [judges.rollouts(part, "initial") for part in responses(prompts, drawn.made.counts[0], cache)]
        return pa.concat_tables([ROLLOUTS.empty_table(), *parts])

    judged = drawn.judged = []
    return drawn


@pytest.mark.long
def test_a_second_run_starts_no_engine_and_judges_nothing(engine, draw):
    first = draw()
    assert (engine.starts, len(engine.requests)) == (1, 24)
    assert draw() == first
    assert (engine.starts, draw.made.reused, draw.judged) == (1, 24, [])


@pytest.mark.usefixtures("draw")
def test_one_engine_serves_workloads_that_are_sampled_differently(engine, tiny_model, tmp_path):
    greedy = SamplingConfig(samples=1, max_tokens=8, temperature=0.0, seed=9)

    def workload(prompts, sampling):
        return Workload(prompts, sampling, cache_in(tmp_path, sampling=sampling))

    made = sample([workload(PROMPTS, SAMPLING), workload(table("Another"), greedy)], tiny_model, ENGINE)
    assert (engine.starts, made.counts, len(engine.requests)) == (1, [[4] * 6, [1]], 25)
    again = sample([workload(PROMPTS, SAMPLING), workload(table("Another", "A third"), greedy)], tiny_model, ENGINE)
    assert (again.reused, again.responses) == (25, 1)
    assert [(part.responses, part.output_tokens) for part in made.workloads] == [(24, 72), (1, 3)]
    assert [(part.reused, part.responses, part.output_tokens) for part in again.workloads] == [(24, 0, 0), (1, 1, 3)]
    assert 0 < sum(part.seconds for part in made.workloads) <= made.seconds
    assert [part.seconds > 0 for part in again.workloads] == [False, True]


def test_further_samples_and_prompts_cost_themselves_alone(engine, draw):
    first = draw()
    more = draw(sampling=SAMPLING.model_copy(update={"samples": 6}))
    assert len(engine.requests) == 24 + 12
    assert more.filter(pa.compute.less(more["sample"], 4)) == first
    draw(pa.concat_tables([table("An earlier one"), PROMPTS]))
    assert len(engine.requests) == 24 + 12 + 4


def test_a_mended_verifier_and_another_ground_truth_judge_anew_and_generate_nothing(engine, draw):
    draw()
    draw(judged_by=MENDED)
    assert len(draw.judged) == 24
    other = table(
        *(f"Write sentence number {number}" for number in range(6)),
        truth={"instruction_ids": ["keywords:existence"], "kwargs": [{"keywords": ["more"]}]},
    )
    scores = dict(zip(PROMPTS["prompt_id"].to_pylist(), other["prompt_id"].to_pylist(), strict=True))
    before, after = draw(), draw(other)
    assert len(engine.requests) == 24
    assert not set(scores) & set(after["prompt_id"].to_pylist())
    # the one asks for no comma, the other for a word that stands behind a comma
    assert [1 - score for score in before["score"].to_pylist()] == after["score"].to_pylist()


@pytest.mark.long
@pytest.mark.parametrize("early", [False, True])
def test_another_engine_generates_again_and_a_text_that_has_a_verdict_is_not_judged_again(engine, draw, pool, early):
    stop = {"remaining": partial(count_remaining, samples=4, bounds=Bounds())} if early else {}
    float32, bfloat16 = (ENGINE.model_copy(update={"dtype": dtype}) for dtype in ("float32", "bfloat16"))
    sandbox = JudgedBy(VerifiersConfig(code={"test_seconds": 3}), "")

    def calls():
        return sum(pool.figures()[f"precise_if/{name}"] for name in ("calls", "repeated"))

    first = draw(engine=float32, **stop)
    generated, judged = len(engine.requests), calls()
    assert draw(engine=bfloat16, judged_by=sandbox, **stop) == first
    assert (len(engine.requests), draw.made.reused) == (2 * generated, 0)
    assert (calls(), draw.judged) == (judged, [])
    draw(engine=float32, judged_by=MENDED, **stop)
    assert (len(engine.requests), calls()) == (2 * generated, judged + generated)


def test_of_many_prompts_a_few_times_what_the_engine_runs_are_on_their_way(engine, draw):
    draw(table(*(f"Write sentence number {number}" for number in range(100))))
    assert len(engine.requests) == 400
    assert ENGINE.max_num_seqs < engine.most_at_once <= BACKLOG * ENGINE.max_num_seqs


def test_another_way_to_sample_finds_nothing(engine, draw):
    draw()
    draw(sampling=SAMPLING.model_copy(update={"temperature": 0.5}))
    assert len(engine.requests) == 48


def test_what_an_engine_gave_before_it_died_is_not_generated_again(engine, draw):
    engine.dies_after = 10
    with pytest.raises(EngineError, match="the engine died"):
        draw()
    engine.dies_after = None
    table = draw()
    assert len(engine.requests) == len(set(engine.requests)) == 24
    assert draw.made.reused == 10
    engine.requests.clear()
    assert draw(judged_by=MENDED) == table
    assert engine.requests == []


@pytest.mark.parametrize("cached", [False, True])
def test_early_stopping_draws_less_and_the_same_whatever_is_cached_already(engine, draw, cached):
    if cached:
        full = draw(sampling=SAMPLING.model_copy(update={"samples": 8}))
    engine.requests.clear()
    stop = partial(count_remaining, samples=8, bounds=Bounds())
    stopped = draw(sampling=SAMPLING.model_copy(update={"samples": 8}), remaining=stop)
    assert sum(draw.made.counts[0]) == stopped.num_rows < 48
    assert len(engine.requests) == (0 if cached else stopped.num_rows)
    full = full if cached else draw(sampling=SAMPLING.model_copy(update={"samples": 8}))
    for name in PROMPTS["prompt_id"].to_pylist():
        few, all_of_it = (part.filter(pa.compute.equal(part["prompt_id"], name)) for part in (stopped, full))
        assert few == all_of_it.slice(0, few.num_rows)
        assert Bounds().keep(pa.compute.mean(few["score"]).as_py()) == Bounds().keep(
            pa.compute.mean(all_of_it["score"]).as_py()
        )
