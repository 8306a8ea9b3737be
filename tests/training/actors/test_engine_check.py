"""Each engine's log-probabilities are compared with the learner's once, after the first weights that it is given."""

import numpy as np
import pytest

from tasks.training.actors.engine_check import EngineCheck, ModelCheckError
from tasks.training.config import ActorsConfig
from tests.training.stand_ins import PLAIN_LOGPROB, Run, ScriptedActor, always, config, prompts

TOLERANCE = 0.01


def engine_check(engines=1, tokens=range(40), longest=24):
    return EngineCheck(list(tokens), longest=longest, tolerance=TOLERANCE, engines=engines)


def run(tmp_path, check, **options):
    actors = ActorsConfig(count=2)
    return Run(tmp_path, config(steps=6, actors=actors), prompts(40), engine_check=check, **options)


def checks(actor):
    return [entry[1] for entry in actor.diary if entry[0] == "check"]


def test_each_engine_is_checked_after_its_first_update_and_never_again(tmp_path):
    done = run(tmp_path, engine_check(engines=2)).play()
    for actor in done.actors:
        first = actor.updates[0]
        assert set(checks(actor)) == {first}
        assert actor.diary.index(("update", first)) < actor.diary.index(("check", first))
        assert len(actor.updates) > 1


class Stale(ScriptedActor):
    """An engine that goes on with a packed copy of its experts."""

    async def prompt_logprobs(self, token_ids):
        return np.full(len(token_ids) - 1, PLAIN_LOGPROB + 2 * TOLERANCE, np.float32)


def test_an_engine_with_other_log_probabilities_ends_the_run_by_its_number_and_the_cause(tmp_path):
    def make_actor(index):
        return (ScriptedActor, Stale)[index](always("right", "wrong"))

    failing = run(tmp_path, engine_check(engines=2), make_actor=make_actor)
    with pytest.raises(ModelCheckError, match=r"actor 1 and the learner differ by 0\.02 nats .* version 1 .* experts"):
        failing.play()


def test_a_difference_that_is_no_number_is_none_that_rounding_makes(tmp_path):
    class Broken(ScriptedActor):
        async def prompt_logprobs(self, token_ids):
            return np.full(len(token_ids) - 1, np.nan, np.float32)

    with pytest.raises(ModelCheckError, match="nan nats"):
        run(tmp_path, engine_check(engines=2), make_actor=lambda _: Broken(always("right", "wrong"))).play()


@pytest.mark.parametrize(
    ("tokens", "longest", "lengths"),
    [(40, 24, [24]), (200, 24, [24] * 4), (200, 10, [10] * 4), (12, 24, [12])],
    ids=["text of 40 tokens", "four sequences", "short rows", "short text"],
)
def test_sequences_fit_into_a_row_and_a_context(tokens, longest, lengths):
    made = engine_check(tokens=range(tokens), longest=longest)
    assert [len(text) for text in made._texts] == lengths
