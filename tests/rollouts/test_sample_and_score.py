"""k scored responses to each prompt of a table, and what is refused before an engine is started."""

import fsspec
import psutil
import pyarrow as pa
import pytest

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import EngineError
from tasks.rollouts.jobs import interleave
from tasks.rollouts.judged_by import JudgedBy
from tasks.rollouts.judging import RolloutError, check_prompts, split_judgeable
from tasks.rollouts.rollout_cache import RolloutCache
from tasks.rollouts.sample_and_score import Rollouts, sample_and_score
from tasks.rollouts.sampling_loop import Generated, Sampled, Workload
from tasks.tables.parquet import build_table
from tasks.tables.schemas import PROMPTS, ROLLOUTS, SET_ASIDE, canonical_json, prompt_id
from tasks.verifiers import VerifiersConfig

NO_COMMA = {"instruction_ids": ["punctuation:no_comma"], "kwargs": [{}]}
ENGINE = EngineConfig(max_model_len=128, cpu_threads=1)
SAMPLING = SamplingConfig(samples=4, max_tokens=16, seed=5)


JUDGED_BY = JudgedBy(VerifiersConfig(), "")


def cache_in(folder, judged_by=JUDGED_BY, sampling=SAMPLING, engine=ENGINE):
    return RolloutCache.open(fsspec.filesystem("file"), str(folder / "cache"), "policy", engine, sampling, judged_by)


def scored(prompts, model, folder, stage="difficulty", **options):
    workloads = [Workload(prompts, SAMPLING, cache_in(folder))]
    return sample_and_score(workloads, model, ENGINE, policy="initial", stage=stage, **options)


def table(*contents, verifier="precise_if", truth=NO_COMMA):
    rows = []
    for i, content in enumerate(contents):
        messages = [{"role": "user", "content": content}]
        rows.append(
            {
                "prompt_id": prompt_id(messages, verifier, truth),
                "domain": "precise_if",
                "source": "test",
                "messages": messages,
                "verifier": verifier,
                "ground_truth": canonical_json(truth),
                "metadata": "{}",
                "cluster": None,
                "row": i,
            }
        )
    return build_table(rows, PROMPTS, "prompts")


@pytest.fixture
def no_engine(monkeypatch):
    """Fail the test if an engine is started."""

    def started(*_args, **_options):
        pytest.fail("an engine was started")

    monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", started)


def test_prompts_that_need_what_this_machine_lacks_are_set_aside_with_the_reason(monkeypatch):
    monkeypatch.setattr("nltk.data.path", [])
    arguments = [{"num_sentences": 2, "relation": "at least"}]
    sentences = {"instruction_ids": ["length_constraints:number_sentences"], "kwargs": arguments}
    prompts = pa.concat_tables([table("one", "two"), table("three", truth=sentences)])
    fit, set_aside = split_judgeable(prompts, VerifiersConfig(), "difficulty")
    assert fit.num_rows == 2
    [row] = set_aside.to_pylist()
    assert (row["kind"], row["value"]) == ("environment", "three")
    assert "needs the NLTK resource tokenizers/punkt_tab" in row["reason"]
    with pytest.raises(RolloutError, match="source 'test': none of its 1 prompts can be scored here: length_constr"):
        split_judgeable(table("three", truth=sentences), VerifiersConfig(), "difficulty")


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (table("Answer", verifier="telepathy"), "prompt .* of source 'test': .*telepathy"),
        (
            table("Answer", truth={"instruction_ids": ["punctuation:no_such"], "kwargs": [{}]}),
            "prompt .* of source 'test': ground truth .*no_such",
        ),
        (table("Answer", truth="no commas"), "prompt .* of source 'test': ground truth \"no commas\""),
    ],
)
def test_a_prompt_that_cannot_be_judged_is_an_error_before_any_engine_starts(
    tiny_model, no_engine, tmp_path, prompts, message
):
    with pytest.raises(RolloutError, match=message):
        check_prompts(prompts)
    with pytest.raises(RolloutError, match=message):
        scored(prompts, tiny_model, tmp_path)


def test_prompts_of_which_none_fits_are_an_error_before_any_engine_starts(tiny_model, no_engine, tmp_path):
    with pytest.raises(RolloutError, match="none of 2 prompts fits the context of 128 tokens"):
        scored(table("#" * 200, "#" * 300), tiny_model, tmp_path)


def test_prompts_of_each_verifier_come_at_an_even_pace_and_in_their_own_order():
    verifiers = ["math"] * 6 + ["chat_open"] * 2 + ["code"]
    assert interleave(verifiers) == [0, 1, 6, 2, 8, 3, 4, 7, 5]
    assert interleave(["math"] * 4) == [0, 1, 2, 3]
    assert interleave([]) == []


def test_cached_responses_count_as_responses_and_not_as_generated():
    columns = {name: pa.nulls(3, ROLLOUTS.field(name).type) for name in ROLLOUTS.names}
    three = pa.table(columns | {"num_tokens": pa.array([5, 7, 9], pa.int32())})
    sampled = Sampled([[3], []], [Generated(2, 1, 9, 0.5), Generated(0, 0, 0, 0.0)], 1.0, 0.5, {})
    made = Rollouts([three, ROLLOUTS.empty_table()], SET_ASIDE.empty_table(), sampled)
    names = ("name", "responses", "tokens", "generated_responses", "generated_tokens", "engine_seconds")
    assert [tuple(row[name] for name in names) for row in made.describe_workloads(["quiz", "none"])] == [
        ("quiz", 3, 21, 1, 9, 0.5),
        ("none", 0, 0, 0, 0, 0.0),
    ]


class BrokenEngine:
    """An engine that dies under its first request."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def generate(self, *_args, **_options):
        raise EngineError("the engine died")


def test_an_engine_that_dies_is_an_engine_error(tiny_model, monkeypatch, tmp_path):
    monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", lambda *_: BrokenEngine())
    with pytest.raises(EngineError, match="the engine died"):
        scored(table("Answer"), tiny_model, tmp_path)


@pytest.mark.complete
@pytest.mark.engine
def test_every_fitting_prompt_gets_its_scored_samples_and_the_others_a_reason(tiny_model, tmp_path):
    prompts = table("What is the sea?", "#" * 120, "Answer in one word", "Write a sentence")
    finished = []
    result = scored(prompts, tiny_model, tmp_path, stage="evaluation", on_judged=finished.append)
    rows = result.table.to_pylist()
    fitting = [name for i, name in enumerate(prompts["prompt_id"].to_pylist()) if i != 1]
    assert [(row["prompt_id"], row["sample"]) for row in rows] == [(name, i) for name in fitting for i in range(4)]
    assert result.table.schema.equals(ROLLOUTS)
    assert {row["policy"] for row in rows} == {"initial"}
    assert all(row["error"] is None for row in rows)
    # judged by the rule that the ground truth states, on the text that the table holds
    assert [row["score"] for row in rows] == [float("," not in row["response"]) for row in rows]
    assert len({row["response"] for row in rows[:4]}) > 1
    assert all(0 < row["num_tokens"] <= 16 for row in rows)
    assert all(row["num_tokens"] == 16 for row in rows if row["finish_reason"] == "length")
    assert result.sampled.output_tokens == sum(row["num_tokens"] for row in rows)
    assert sorted((row["prompt_id"], row["score"]) for row in finished) == sorted(
        (row["prompt_id"], row["score"]) for row in rows
    )
    [set_aside] = result.set_aside.to_pylist()
    assert (set_aside["source"], set_aside["row"], set_aside["value"]) == ("test", 1, "#" * 120)
    assert set_aside["reason"].endswith("112 fit with a response of 16")
    running = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in running if "VLLM" in " ".join(p.cmdline())]
