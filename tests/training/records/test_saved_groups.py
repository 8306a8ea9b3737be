"""Groups in a checkpoint: everything that is there of them comes back, and only that."""

from dataclasses import replace

import numpy as np
import pytest

from tasks.generation.interface import Completion, EpisodeTurn, VersionSpan
from tasks.recipe.objective import ShapingConfig
from tasks.tables.parquet import TableError, write_table
from tasks.training.groups.group import Group, JudgedGroup, Stage
from tasks.training.records.saved_groups import SAVED_GROUPS, load_groups, make_groups_table
from tasks.verifiers import Reward, Score
from tests.training.stand_ins import prompts

BY_ID = {prompt.prompt_id: prompt for prompt in prompts(3)}
COMPLETION = Completion(
    "wörd", np.array([5, 6]), np.array([-0.5, -0.25]), "length", [VersionSpan(1, 0, 1), VersionSpan(2, 1, 2)]
)
REWARDS = (Reward("math", 1.0, 1.0), Reward("f", 0.5, None), Reward("recorded", 0.0, 0.25))
SCORE = Score(1.0, True, "as asked", rewards=REWARDS)


def group(number, *samples):
    """A group of samples given as (completion, score)."""
    group = Group.create(number, BY_ID["p2"], len(samples), sampled_at=1.5, policy_version=1)
    for sample, (completion, score) in zip(group.samples, samples, strict=True):
        sample.completion, sample.score, sample.actor = completion, score, 3
        sample.stage = Stage.JUDGED if score else Stage.JUDGING if completion else Stage.GENERATING
    return group


def saved(folder, *groups):
    write_table(folder / "groups.parquet", make_groups_table(groups), SAVED_GROUPS)
    return folder / "groups.parquet"


def test_a_ready_group_comes_back_as_it_was(tmp_path):
    samples = [(COMPLETION, SCORE), (COMPLETION, Score.from_error("no verdict")), (COMPLETION, Score.binary(False, ""))]
    before = JudgedGroup.from_group(group(7, *samples), ShapingConfig(), finished_at=2.5)
    [after], in_flight = load_groups(saved(tmp_path, before), BY_ID, ShapingConfig())
    assert not in_flight
    assert make_groups_table([after]).equals(make_groups_table([before]))
    assert [contents(each) for each in after.completions] == [contents(COMPLETION)] * 2
    for name in ("scores", "passed", "unjudged", "finished_at"):
        assert getattr(after, name) == getattr(before, name), name
    assert [sample.rewards for sample in after.samples] == [sample.rewards for sample in before.samples]
    assert after.sampled.actors == before.sampled.actors
    assert (after.first_version, after.last_version, len(after.unjudged)) == (1, 2, 1)


def test_of_a_group_in_flight_what_was_being_generated_waits_again(tmp_path):
    before = group(7, (COMPLETION, SCORE), (COMPLETION, None), (None, None))
    ready, [after] = load_groups(saved(tmp_path, before), BY_ID, ShapingConfig())
    assert not ready
    assert [sample.stage for sample in after.samples] == [Stage.JUDGED, Stage.JUDGING, Stage.WAITING]
    assert [contents(sample.completion) for sample in after.samples] == [contents(COMPLETION)] * 2 + [None]
    assert after.samples[0].score == SCORE


def test_an_episode_comes_back_with_its_turns_and_what_they_saw(tmp_path):
    said = ({"role": "user", "content": "go on"},)
    turns = (EpisodeTurn(0, 1, "a"), EpisodeTurn(1, 2, "b", said, np.array([7, 8], np.int32)))
    [after] = load_groups(saved(tmp_path, group(7, (replace(COMPLETION, turns=turns), None))), BY_ID, ShapingConfig())[
        1
    ]
    [first, second] = after.samples[0].completion.turns
    assert (first.text, first.inserted, first.context) == ("a", (), None)
    assert (second.text, second.inserted, second.context.tolist()) == ("b", said, [7, 8])


def contents(completion):
    """Of a completion, what can be compared."""
    fields = (completion.token_ids.tolist(), completion.logprobs.tolist()) if completion else None
    return fields and (*fields, completion.text, completion.finish_reason, completion.versions)


def test_a_prompt_that_the_mixture_lacks_is_named(tmp_path):
    with pytest.raises(ValueError, match="prompt p2, which the mixture lacks"):
        load_groups(saved(tmp_path, group(1, (None, None))), {}, ShapingConfig())


def test_a_damaged_file_is_named(tmp_path):
    path = saved(tmp_path, group(1, (None, None)))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TableError, match=r"groups\.parquet"):
        load_groups(path, BY_ID, ShapingConfig())
