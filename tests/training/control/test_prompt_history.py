"""Prompts that are solved retire, prompts that are too hard wait for a better policy, and easy ones may come first."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.failures import MistakeError
from tasks.recipe.prompts import CurriculumConfig, PromptsConfig, RerollConfig
from tasks.training.control.controller import NoPromptsLeftError
from tasks.training.control.prompt_history import PromptHistory
from tasks.training.control.prompt_stream import PromptStream, sort_easy_to_hard
from tests.training.stand_ins import Run, always, config, ids, prompts


def played(folder, answer, count, **options):
    """A run that samples one group at a time, in the order of its steps."""
    one_at_a_time = {"groups_per_step": 1, "async_steps": 0, "actors": {"prefetch": 0}}
    return Run(folder, config(**{**one_at_a_time, **options}), prompts(count), answer).play()


# Retirement


def test_a_solved_prompt_is_sampled_no_more(tmp_path):
    async def the_first_is_easy(_actor, prompt):
        return ["right", "right"] if prompt == 1 else ["right", "wrong"]

    run = played(tmp_path, the_first_is_easy, 3, steps=8, prompts={"retirement": {}})
    [solved] = run.rows("zero_variance")
    assert solved["detail"] == "every score is 1; the prompt is solved, and is retired"
    assert Counter(ids(run.rows())) == {1: 1, 2: 4, 3: 4}
    assert [row["retired_prompts"] for row in run.metrics()] == [1] * 8


def test_a_prompt_is_solved_by_its_groups_in_a_row(tmp_path):
    groups = Counter()

    async def first_prompt_is_learned(_actor, prompt):
        groups[prompt] += 1
        passes = prompt == 1 and groups[prompt] in (1, 3, 4)  # a failure lies between the first two
        return ["right", "right"] if passes else ["right", "wrong"]

    retirement = {"consecutive_groups": 2}
    played(tmp_path, first_prompt_is_learned, 3, steps=14, prompts={"retirement": retirement})
    assert groups[1] == 4


def test_a_threshold_below_one_retires_prompts_that_still_carry_a_gradient(tmp_path):
    options = {"prompts": {"retirement": {"pass_rate": 0.5, "when_all_solved": "stop"}}, "steps": 9}
    run = played(tmp_path, always("right", "wrong"), 3, **options)
    assert ids(run.rows("trained")) == [1, 2, 3]


def test_a_run_without_a_prompt_left_fails_in_one_sentence(tmp_path):
    with pytest.raises(
        NoPromptsLeftError, match=r"step 0 of 3: no prompt is left .* 4 of 4 are solved .* Way out: oth"
    ):
        played(tmp_path, always("right", "right"), 4, prompts={"retirement": {}})


def test_or_ends_early_with_its_policy_and_does_so_again(tmp_path):
    solving = {"retirement": {"pass_rate": 0.5, "when_all_solved": "stop"}}
    for attempt in range(2):
        run = played(tmp_path, always("right", "wrong"), 3, steps=9, prompts=solving)
        assert [row["step"] for row in run.metrics()] == [0, 1, 2]
        assert run.controller.version == 3
        assert sum(len(actor.sampled) for actor in run.actors) == 3 * (attempt == 0)


def test_what_is_retired_stays_so_over_a_restart(tmp_path):
    async def odd_ones_are_easy(_actor, prompt):
        return ["right", "right"] if prompt % 2 else ["right", "wrong"]

    played(tmp_path, odd_ones_are_easy, 4, steps=2, prompts={"retirement": {}})
    run = played(tmp_path, odd_ones_are_easy, 4, steps=6, prompts={"retirement": {}})
    assert {prompt for actor in run.actors for prompt in actor.sampled} == {2, 4}


# Deferred re-rolling


def improving(step, hard):
    """An answer: no response to a hard prompt is right before policy `step`."""

    async def answer(actor, prompt):
        return ["wrong", "wrong"] if prompt in hard and actor.version < step else ["right", "wrong"]

    return answer


def test_a_prompt_that_nothing_solved_comes_back_when_the_policy_may_have_improved(tmp_path):
    reroll = {"reroll": {"start_fraction": 0.5, "max_groups": 1}}
    run = played(tmp_path, improving(5, {1, 2}), 50, steps=10, prompts=reroll)
    failed = run.rows("zero_variance")
    assert ids(failed) == [1, 2]
    assert (
        failed[0]["detail"]
        == "every score is 0; no response had a reward at steps [0]; the prompt waits for another try"
    )
    trained = run.rows("trained")
    assert [(row["step"], row["prompt_id"]) for row in trained if row["prompt_id"] in ("p1", "p2")] == [
        (5, "p1"),
        (6, "p2"),
    ]
    assert [row["deferred_prompts"] for row in run.metrics()] == [2, 2, 2, 2, 2, 1, 0, 0, 0, 0]
    assert sum(row["recovered_groups"] for row in run.metrics()) == 2


def test_a_part_of_a_reward_is_no_reason_to_try_again():
    history = PromptHistory(PromptsConfig(reroll=RerollConfig()), steps=10)
    history.begin(0)
    assert history.judged("formatted", passed=[False, False], rewards=[0.25, 0.0]) == ""
    assert "waits for another try" in history.judged("hopeless", passed=[False, False], rewards=[0.0, -1.0])
    assert history.take_figures()["deferred_prompts"] == 1


def test_a_prompt_waits_at_most_so_many_times_and_is_never_tried_twice_by_one_policy(tmp_path):
    reroll = {"reroll": {"start_fraction": 0.0, "max_tries": 3, "max_groups": 9}}
    run = played(tmp_path, improving(99, {1}), 50, steps=10, prompts=reroll)
    failed = run.rows("zero_variance")
    assert ids(failed) == [1, 1, 1]
    assert failed[-1]["detail"] == "every score is 0; no response had a reward at steps [0, 1, 2]"


def test_what_waits_is_not_lost_over_a_restart(tmp_path):
    def go_on(steps):
        reroll = {"reroll": {"start_fraction": 0.4}}
        return played(tmp_path, improving(3, {1, 2}), 50, steps=steps, prompts=reroll)

    go_on(2)
    trained = [(row["step"], row["prompt_id"]) for row in go_on(8).rows("trained")]
    assert [row for row in trained if row[1] in ("p1", "p2")] == [(4, "p2"), (5, "p1")]  # p1 was tried again at step 1


# Curriculum


def graded(rates):
    return [replace(prompt, pass_rate=rate) for prompt, rate in zip(prompts(len(rates)), rates, strict=True)]


def test_prompts_come_from_easy_to_hard_and_later_epochs_are_shuffled():
    mixture = graded([0.1, 0.9, 0.5, 0.7, 0.3])
    stream = PromptStream(mixture, 0, PromptsConfig(curriculum=CurriculumConfig(band=0.0)))
    plain = PromptStream(mixture, 0)
    epochs = [[stream.next().pass_rate for _ in mixture] for _ in range(2)]
    assert epochs[0] == [0.9, 0.7, 0.5, 0.3, 0.1]
    assert epochs[1] == [plain.next().pass_rate for _ in range(10)][5:]


@given(rates=st.lists(st.floats(0, 1), min_size=2, max_size=60), band=st.floats(0, 0.99), seed=st.integers(0, 9))
def test_a_prompts_place_varies_within_the_band(rates, band, seed):
    mixture = graded(rates)
    order = sort_easy_to_hard(mixture, CurriculumConfig(band=band), str(seed))
    assert order == sort_easy_to_hard(mixture, CurriculumConfig(band=band), str(seed))
    ranked = sorted(mixture, key=lambda prompt: -prompt.pass_rate)
    assert all(abs(ranked.index(prompt) - position) <= band * len(rates) for position, prompt in enumerate(order))
    assert sorted(prompt.prompt_id for prompt in order) == sorted(prompt.prompt_id for prompt in mixture)


def test_a_curriculum_goes_on_where_it_was_over_a_restart():
    mixture, options = graded([0.1, 0.9, 0.5, 0.7, 0.3]), PromptsConfig(curriculum=CurriculumConfig(epochs=None))
    straight = [PromptStream(mixture, 7, options)]
    whole = [straight[0].next() for _ in range(20)]
    parts = []
    state = None
    for _ in range(4):
        stream = PromptStream(mixture, 7, options)
        if state:
            stream.restore(state)
        parts.append([stream.next() for _ in range(5)])
        state = stream.state()
    assert list(itertools.chain(*parts)) == whole


def test_a_curriculum_of_prompts_without_pass_rates_is_refused():
    with pytest.raises(MistakeError, match="the mixture has prompts without a pass rate"):
        PromptStream(graded([0.5, None]), 0, PromptsConfig(curriculum=CurriculumConfig()))


def test_a_curriculum_without_differences_is_refused():
    with pytest.raises(MistakeError, match=r"prompts.curriculum: every prompt of the mixture has the pass rate 0.5"):
        PromptStream(graded([0.5] * 3), 0, PromptsConfig(curriculum=CurriculumConfig()))
