"""What named tensors contain: every value, name, type and shape counts, and their order does not."""

import pytest
import torch

from tasks.storage.tensor_digest import NOTHING, Contents, TensorDigest, compute_contents

TENSORS = {
    "weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    "bias": torch.tensor([0.5, -0.0]),
    "count": torch.tensor(3),
    "empty": torch.zeros(0, 4),
}


def test_the_order_of_tensors_and_the_memory_that_they_lie_in_do_not_count():
    assert compute_contents(TENSORS) == compute_contents(dict(reversed(TENSORS.items())))
    assert compute_contents({"a": TENSORS["weight"].t()}) == compute_contents({"a": TENSORS["weight"].t().contiguous()})
    assert compute_contents(TENSORS).tensors == 4


OTHERS = {
    "a value": {"weight": TENSORS["weight"] + torch.eye(3, 4, dtype=torch.bfloat16)},
    "the sign of zero": {"bias": torch.tensor([0.5, 0.0])},
    "a type": {"weight": TENSORS["weight"].half()},
    "a type of the same bits": {"weight": TENSORS["weight"].view(torch.float16)},
    "a shape": {"weight": TENSORS["weight"].reshape(4, 3)},
    "an empty shape": {"empty": torch.zeros(4, 0)},
    "one more": {"more": torch.ones(1)},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_each_difference_is_another_digest(other):
    assert compute_contents(TENSORS | other) != compute_contents(TENSORS)


def test_names_that_are_exchanged_are_other_contents():
    a, b = torch.ones(2), torch.zeros(2)
    assert compute_contents({"a": a, "b": b}) != compute_contents({"a": b, "b": a})


def test_no_tensors_are_nothing_and_a_difference_is_told_in_words():
    assert compute_contents({}) == TensorDigest().contents() == NOTHING
    all_of_them = compute_contents(TENSORS)
    assert NOTHING.differs_from(all_of_them) == "0 of 4 tensors"
    assert Contents(4, "0" * 32).differs_from(all_of_them) == "4 tensors with other values"
