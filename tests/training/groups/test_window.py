"""The window, as a state machine under any order of events: what hypothesis finds no way to break."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tasks.generation.interface import Completion, VersionSpan
from tasks.recipe.objective import ShapingConfig
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.groups.group import Group, JudgedGroup, Stage
from tasks.training.groups.window import Window
from tasks.verifiers import Score
from tests.examples import examples
from tests.training.stand_ins import prompts

SAMPLES = 3
COMPLETION = Completion("word", [5], [-0.5], "stop", [VersionSpan(0, 0, 1)])


def new_window(stream, opened):
    def open_group():
        opened.append(Group.create(len(opened), stream.next(), SAMPLES, sampled_at=0.0, policy_version=0))
        return opened[-1]

    return Window(open_group)


class Machine(RuleBasedStateMachine):
    """Actors take, finish and are lost, the judge judges, the learner pops; nothing is ever out of place."""

    def __init__(self):
        super().__init__()
        self.stream = PromptStream(prompts(40), seed=0)
        self.opened = []
        self.window = new_window(self.stream, self.opened)
        self.size = 0
        self.left = []  # groups that left, in their order

    def samples(self, stage):
        return [s for group in self.window.in_flight.values() for s in group.samples if s.stage is stage]

    @rule(size=st.integers(0, 6))
    def fill(self, size):
        self.size = max(size, self.window.size)
        self.window.fill(size)

    @rule(room=st.integers(1, 7), suspects=st.booleans())
    def take(self, room, suspects):
        taken = self.window.take_suspects(room) if suspects else self.window.take(room)
        assert len(taken) <= room
        assert len({sample.group.number for sample in taken}) <= 1
        assert all(sample.stage is Stage.GENERATING for sample in taken)

    @precondition(lambda self: self.samples(Stage.GENERATING))
    @rule(data=st.data())
    def generate(self, data):
        self.window.generated(data.draw(st.sampled_from(self.samples(Stage.GENERATING))), COMPLETION)

    @precondition(lambda self: self.samples(Stage.GENERATING))
    @rule(data=st.data())
    def lose(self, data):
        samples = self.samples(Stage.GENERATING)
        lost = data.draw(st.lists(st.sampled_from(samples), unique=True, min_size=1))
        self.window.requeue(lost)
        if not self.window.has_suspects:  # what was lost is the next that is handed out
            assert self.window.take(1)[0] in lost
        assert all(sample.completion is None for sample in lost)

    @precondition(lambda self: self.samples(Stage.JUDGING))
    @rule(data=st.data(), keep=st.booleans())
    def judge(self, data, keep):
        sample = data.draw(st.sampled_from(self.samples(Stage.JUDGING)))
        self.window.judged(sample, Score.binary(keep, ""))
        if sample.group.all_judged:
            judged = JudgedGroup.from_group(sample.group, ShapingConfig(), finished_at=1.0)
            self.window.finish(judged) if keep else self.drop(judged)

    @precondition(lambda self: self.window.in_flight or self.window.ready)
    @rule(data=st.data())
    def drop_any(self, data):
        self.drop(data.draw(st.sampled_from([*self.window.in_flight.values(), *self.window.ready])))

    def drop(self, group):
        self.window.drop(group)
        self.left.append(group.number)

    @precondition(lambda self: self.window.ready)
    @rule(data=st.data())
    def pop(self, data):
        batch = self.window.pop(data.draw(st.integers(1, len(self.window.ready))))
        assert [group.number for group in batch] == sorted(group.number for group in batch)
        self.left += [group.number for group in batch]

    @rule()
    def restart(self):
        """The driver ends, and another goes on from a checkpoint of this moment, with actors that know nothing."""
        for sample in self.samples(Stage.GENERATING):
            sample.stage = Stage.WAITING
        before, self.window = self.window, new_window(self.stream, self.opened)
        assert self.window.restore(before.ready, before.in_flight.values()) == self.samples(Stage.JUDGING)

    @invariant()
    def every_group_is_in_one_place_or_left_once(self):
        here = [*self.window.in_flight, *(group.number for group in self.window.ready)]
        assert sorted([*here, *self.left]) == list(range(len(self.opened)))

    @invariant()
    def the_window_never_exceeds_its_bound(self):
        assert self.window.size <= self.size

    @invariant()
    def no_prompt_comes_twice_in_an_epoch(self):
        identities = [group.prompt.prompt_id for group in self.opened]
        for epoch in range(0, len(identities), 40):
            assert len(set(identities[epoch : epoch + 40])) == len(identities[epoch : epoch + 40])

    def teardown(self):
        while self.window.take(9) or self.window.take_suspects(9):
            pass
        assert not self.samples(Stage.WAITING)  # whatever waits can be taken


Machine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=60, deadline=None, derandomize=True
)
TestWindow = Machine.TestCase


@pytest.fixture
def window():
    opened = []
    return new_window(PromptStream(prompts(9), seed=0), opened)


def test_samples_of_a_group_go_together_as_far_as_there_is_room(window):
    window.ask(2)
    taken = [window.take(room) for room in (2, 5, 5, 5)]
    assert [[(s.group.number, s.index) for s in samples] for samples in taken] == [
        [(0, 0), (0, 1)],
        [(0, 2)],
        [(1, 0), (1, 1), (1, 2)],
        [],
    ]


def test_a_group_that_lost_two_actors_is_kept_apart(window):
    window.ask(2)
    for _ in range(2):
        assert not window.has_suspects
        taken = window.take(3)
        assert taken[0].group.number == 0
        window.requeue(taken)
    assert window.has_suspects
    assert window.take(3)[0].group.number == 1
    assert [sample.group.number for sample in window.take_suspects(9)] == [0, 0, 0]


def test_a_group_is_not_ready_before_all_of_it_is_judged(window):
    window.ask(1)
    [first, *_] = window.take(3)
    window.generated(first, COMPLETION)
    window.judged(first, Score.binary(True, ""))
    with pytest.raises(ValueError, match="group 0 has samples that are not scored"):
        JudgedGroup.from_group(first.group, ShapingConfig(), finished_at=1.0)
    for sample in first.group.samples:  # as if a judgement came that the window knows nothing of
        sample.completion, sample.score = COMPLETION, Score.binary(True, "")
    with pytest.raises(ValueError, match="group 0 has samples that are not scored"):
        window.finish(JudgedGroup.from_group(first.group, ShapingConfig(), finished_at=1.0))


def test_what_is_out_of_order_is_an_error_that_says_where_the_sample_stands(window):
    window.ask(1)
    [first, *_] = window.take(3)
    with pytest.raises(ValueError, match="sample 0 of group 0 is generating: it cannot be judged"):
        window.judged(first, Score.binary(True, ""))
    window.drop(first.group)
    with pytest.raises(ValueError, match="cannot be judging"):
        window.generated(first, COMPLETION)
