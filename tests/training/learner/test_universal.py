"""What one number of learner ranks saved, another number goes on from: parameters, moments, step and learning rate."""

import asyncio

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.training.learner.universal import ConversionError, convert, make_universal_path
from tests.training.learner.test_learner import LORA, SEQUENCES

pytestmark = pytest.mark.engine


@pytest.fixture
def learner(processes, tiny_model):
    """A function that starts a learner with the given options, in float32; `fresh` in new processes."""
    from tasks.training.learner.client import RayLearner

    def start(lora=None, fresh=False, **options):
        learner = {"cpu_threads": 1, "cpus": 0, "dtype": "float32", **options}
        config = TrainingConfig.model_validate({"learner": learner, "lora": lora})
        trainer = RayLearner(
            lambda rank: processes.take(config.learner.ranks, rank, config, str(tiny_model), fresh=fresh), config
        )
        asyncio.run(trainer.start())
        return trainer

    yield start
    processes.give_back()


def step(trainer, rate):
    denominator = TrainingConfig().objective.denominator(sequence.num_trained for sequence in SEQUENCES)
    return asyncio.run(trainer.step(SEQUENCES, denominator, rate)).metrics


def save(trainer, folder):
    asyncio.run(trainer.save(folder))
    asyncio.run(trainer.wait_until_written())


def state(trainer):
    """Everything that the ranks hold together, by name."""
    [first, *_] = asyncio.run(trainer._all([rank.whole_state.remote() for rank in trainer._ranks]))
    return first


@pytest.mark.complete
@pytest.mark.parametrize(
    ("before", "after", "lora"),
    [
        pytest.param({"ranks": 2}, {"ranks": 1}, None, id="2 ranks to 1"),
        pytest.param({"ranks": 1}, {"ranks": 2}, None, id="1 rank to 2", marks=pytest.mark.complete),
        pytest.param({"ranks": 2}, {"ranks": 1, "zero_stage": 1}, None, id="ZeRO 2 to 1", marks=pytest.mark.complete),
        pytest.param(
            {"ranks": 1, "zero_stage": 1, "dtype": "bfloat16"},
            {"ranks": 2, "dtype": "bfloat16"},
            None,
            id="ZeRO 1 to 2 in bfloat16",
            marks=pytest.mark.complete,
        ),
        pytest.param(
            {"ranks": 2, "zero_stage": 3}, {"ranks": 1, "zero_stage": 3}, None, id="ZeRO 3", marks=pytest.mark.complete
        ),
        pytest.param({"ranks": 2}, {"ranks": 1}, LORA, id="LoRA", marks=pytest.mark.complete),
        pytest.param(
            {"ranks": 1, "zero_stage": 3},
            {"ranks": 2, "zero_stage": 3},
            LORA,
            id="LoRA under ZeRO 3",
            marks=pytest.mark.complete,
        ),
    ],
)
def test_other_ranks_go_on_from_what_these_saved(learner, tmp_path, before, after, lora):
    first = learner(lora=lora, **before)
    for rate in (1e-3, 5e-4):
        step(first, rate)
    save(first, tmp_path / "saved")
    expected = state(first)
    convert(tmp_path / "saved")

    second = learner(lora=lora, fresh=True, **after)
    asyncio.run(second.load(tmp_path / "saved"))
    loaded = state(second)
    assert loaded.keys() == expected.keys()
    assert [name for name, value in expected.items() if (loaded[name] != value).any()] == []
    assert (loaded["learning_rate"], loaded["step"]) == (5e-4, 2)

    for rate in (2e-4, 1e-4):
        uninterrupted, resumed = step(first, rate), step(second, rate)
        for name in ("loss", "entropy", "mismatch"):
            assert resumed[name] == pytest.approx(uninterrupted[name], rel=1e-2), name
        assert resumed["grad_norm"] == pytest.approx(uninterrupted["grad_norm"], rel=2e-2)


@pytest.mark.complete
def test_a_conversion_that_was_cut_short_is_made_anew_and_a_whole_one_stays(learner, tmp_path):
    trainer = learner()
    save(trainer, tmp_path)
    partial = make_universal_path(tmp_path).with_suffix(".partial")
    partial.mkdir()
    (partial / "half").touch()
    convert(tmp_path)
    assert not partial.exists()
    made = make_universal_path(tmp_path).stat().st_mtime_ns
    convert(tmp_path)
    assert make_universal_path(tmp_path).stat().st_mtime_ns == made


def test_what_cannot_be_converted_is_an_error_in_deepspeeds_words(tmp_path):
    (tmp_path / "rlvr").mkdir()
    with pytest.raises(ConversionError, match=r"could not be converted for other learner ranks: .*can't find"):
        convert(tmp_path)
    assert not make_universal_path(tmp_path).exists()
