from flytekit.core.context_manager import FlyteEntities
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.deck import DeckField

import workflows.rlvr  # noqa: F401 declares every task


def test_no_deck_starts_pip():
    decks = [e for e in FlyteEntities.entities if isinstance(e, PythonFunctionTask) and not e.disable_deck]
    assert len(decks) >= 8
    assert [task.name for task in decks if DeckField.DEPENDENCIES in task.deck_fields] == []
