"""An actor that loads other weights than the learner wrote is replaced, at any version."""

import pytest

from tasks.recipe.run import ActorsConfig
from tasks.storage.tensor_digest import NOTHING, Contents
from tasks.training.actors.process import ActorLostError
from tests.training.stand_ins import Run, ScriptedActor, always, config, prompts

ARRIVALS = {
    "nothing": lambda _: NOTHING,
    "half of it": lambda weights: Contents(0, weights),
    "the version before": lambda _: Contents(1, "weights 1"),
}


class Forgetful(ScriptedActor):
    """An actor that loads other weights in its second update."""

    def __init__(self, arrival):
        super().__init__(always("right", "wrong"))
        self.arrival = arrival

    def arrived(self, weights):
        return self.arrival(weights) if len(self.updates) == 2 else super().arrived(weights)


@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=ARRIVALS)
def test_such_an_actor_is_replaced_and_the_run_goes_on(tmp_path, caplog, arrival):
    made = []

    def make_actor(_):
        made.append(Forgetful(arrival) if not made else ScriptedActor(always("right", "wrong")))
        return made[-1]

    done = Run(tmp_path, config(steps=6, actors=ActorsConfig(count=1)), prompts(40), make_actor=make_actor).play()
    assert len(done.metrics()) == 6
    assert [actor.killed for actor in made[:1]] == [True]
    assert len(made) == 2
    lost = made[0].updates[-1]
    assert f"actor 0 loaded other weights than version {lost} of the policy: " in caplog.text
    assert made[1].updates[0] == lost  # the replacement takes what was lost


def test_an_engine_that_never_takes_the_weights_ends_the_run_with_the_reason(tmp_path):
    class Deaf(ScriptedActor):
        def arrived(self, weights):
            return NOTHING

    options = config(steps=6, actors=ActorsConfig(count=1, max_restarts=2))
    with pytest.raises(ActorLostError, match=r"actor 0 loaded other weights than version \d of the policy: 0 of 1"):
        Run(tmp_path, options, prompts(40), make_actor=lambda _: Deaf(always("right", "wrong"))).play()
