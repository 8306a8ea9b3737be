"""The ledger: one row and one fate for every group, and back to where a checkpoint knew it."""

import pytest

from tasks.generation.interface import Completion, VersionSpan
from tasks.recipe.objective import ShapingConfig
from tasks.tables.schemas import LEDGER
from tasks.training.groups.group import Group, JudgedGroup
from tasks.training.records.ledger import Ledger, cut_back
from tasks.verifiers import Score
from tests.training.stand_ins import prompts

[PROMPT] = prompts(1)


def group(number, *spans):
    group = Group.create(number, PROMPT, len(spans), sampled_at=1.5, policy_version=4)
    for sample, (version, length) in zip(group.samples, spans, strict=True):
        span = VersionSpan(version, 0, length)
        sample.actor = 1
        sample.completion = Completion("x" * length, [7] * length, [-0.5] * length, "stop", [span])
        sample.score = Score.binary(length > 2, "")
    return JudgedGroup.from_group(group, ShapingConfig(), finished_at=2.5)


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    yield ledger
    ledger.close()


def test_a_row_says_who_sampled_the_group_when_and_what_became_of_it(ledger):
    trained = group(1, (2, 3), (3, 1))
    ledger.close_group(trained, "trained", step=3, spread=0.5)
    ledger.close_group(group(0).sampled, "failed", detail="its actor was lost")
    failed, row = ledger.table().to_pylist()
    assert row == {
        "group": 1,
        "prompt_id": "p1",
        "domain": "math",
        "actors": [1],
        "sampled_at": 1.5,
        "finished_at": 2.5,
        "first_version": 2,
        "last_version": 3,
        "scores": [1.0, 0.0],
        "num_tokens": [3, 1],
        "advantage_spread": 0.5,
        "fate": "trained",
        "step": 3,
        "detail": None,
    }
    # a group that never got a token counts as sampled by the policy that was newest when it began
    assert (failed["first_version"], failed["last_version"], failed["scores"], failed["finished_at"]) == (
        4,
        4,
        [],
        None,
    )
    assert ledger.table().schema.equals(LEDGER)
    assert ledger.fates == {"trained": 1, "failed": 1}


def test_a_group_has_one_fate_also_after_the_file_was_opened_again(ledger):
    ledger.close_group(group(0), "stale")
    again = Ledger(ledger.path)
    for each in (ledger, again):
        with pytest.raises(ValueError, match="group 0 already left the ledger; it cannot become trained"):
            each.close_group(group(0), "trained", step=0)
    again.close()
    assert again.fates == {"stale": 1}


def test_what_came_after_a_checkpoint_is_cut_off_and_may_come_again(ledger):
    ledger.close_group(group(0), "stale")
    known = ledger.sync()
    ledger.close_group(group(1), "trained", step=0)
    ledger.close()
    with ledger.path.open("a") as file:
        file.write('{"group": 2, "fa')  # the process died while it wrote
    cut_back(ledger.path, known)
    after = Ledger(ledger.path)
    after.close_group(group(1), "zero_variance")
    assert after.table().column("fate").to_pylist() == ["stale", "zero_variance"]
    after.close()


def test_an_attempt_that_was_taken_over_from_appends_to_no_file_of_the_next(ledger):
    ledger.close_group(group(0), "stale")
    cut_back(ledger.path, ledger.sync())
    after = Ledger(ledger.path)
    after.close_group(group(1), "stale")
    ledger.close_group(group(1), "failed")
    assert after.table().column("fate").to_pylist() == ["stale", "stale"]
    after.close()


def test_a_file_shorter_than_the_checkpoint_knew_is_an_error(ledger, tmp_path):
    ledger.close_group(group(0), "stale")
    size = ledger.sync()
    with pytest.raises(ValueError, match=rf"holds {size} bytes, the checkpoint recorded {size + 1}"):
        cut_back(ledger.path, size + 1)
    with pytest.raises(ValueError, match=r"absent.jsonl holds 0 bytes, the checkpoint recorded 9"):
        cut_back(tmp_path / "absent.jsonl", 9)


def test_a_row_is_one_line_whatever_an_error_says(ledger, tmp_path):
    """A reward function may quote a response: U+2028 ends a line for Python, and half a surrogate pair is no text."""
    ledger.close_group(group(0), "failed", detail="no number in a\u2028b\x85c \ud800 \n")
    [row] = ledger.table().to_pylist()
    assert row["detail"] == "no number in a\u2028b\x85c \\ud800 \n"
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.fates == {"failed": 1}
    again.close()
