"""New weights every few steps: what engines are given, how old tokens are then, and what a resumed run does."""

import pytest
from pydantic import ValidationError

from tests.training.stand_ins import RecordingLearner, Run, config, prompts, settle


def played(folder, *, sync_every, **options):
    actors = {"sync_every": sync_every, "engine": {"max_num_seqs": 4}}
    chosen = config(**{"steps": 5, "async_steps": 0, "actors": actors, **options})
    return Run(folder, chosen, prompts(50), learner=RecordingLearner(lambda _: settle())).play()


@pytest.mark.parametrize(("every", "given"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (5, [])])
def test_engines_are_given_weights_every_few_steps_and_those_of_the_last(tmp_path, every, given):
    run = played(tmp_path, sync_every=every)
    [actor] = run.actors
    assert [version for version in actor.updates if version < 5] == given
    assert run.weights.version == 5


def test_a_token_is_as_old_as_the_weights_that_sampled_it(tmp_path):
    run = played(tmp_path, sync_every=2)
    assert [row["staleness"] for row in run.metrics()] == [0, 1, 0, 1, 0]
    assert all(row["first_version"] in (0, 2, 4) for row in run.rows("trained"))


def test_a_run_that_goes_on_gives_what_it_has_to_its_new_engines(tmp_path):
    played(tmp_path, sync_every=2, steps=3, checkpoint_every=1)
    run = played(tmp_path, sync_every=2, steps=5, checkpoint_every=1)
    assert run.actors[0].updates[:2] == [3, 4]
    assert [row["step"] for row in run.metrics()] == [0, 1, 2, 3, 4]


def test_an_interval_that_makes_every_group_too_old_is_refused():
    with pytest.raises(ValidationError, match=r"actors.sync_every = 4: .* max_staleness = 2; raise it to 3 or more"):
        config(actors={"sync_every": 4}, max_staleness=2)


def test_a_deterministic_run_must_be_able_to_go_on_as_it_was():
    repeated = {"deterministic": True, "async_steps": 0, "actors": {"engine": {"max_num_seqs": 1}, "sync_every": 2}}
    assert config(**repeated, checkpoint_every=4).deterministic
    with pytest.raises(ValidationError, match=r"checkpoint_every = 3 must be a multiple of actors.sync_every = 2"):
        config(**repeated, checkpoint_every=3)
