from typing import NamedTuple

from flytekit import task
from flytekit.core.context_manager import FlyteEntities
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.deck import DeckField

import workflows.rlvr  # noqa: F401 declares every task


def test_no_deck_starts_pip():
    decks = [e for e in FlyteEntities.entities if isinstance(e, PythonFunctionTask) and not e.disable_deck]
    assert len(decks) >= 8
    assert [task.name for task in decks if DeckField.DEPENDENCIES in task.deck_fields] == []


class Two(NamedTuple):
    first: int
    second: str


class Many(NamedTuple):
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int


@task
def gives_two() -> Two:
    return Two(1, "x")


@task
def gives_many() -> Many:
    return Many(1, 2, 3, 4, 5, 6, 7)


def test_results_are_printed_by_name_and_many_by_their_names_alone():
    assert str(gives_two()) == "first       1\nsecond      x"
    assert str(gives_many()) == "results     a, b, c, d, e, f, g"
