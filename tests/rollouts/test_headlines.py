"""What a stage says that it sampled."""

import pytest

from tasks.rollouts.headlines import format_sampling_headline


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        (0, "120 responses, all from the cache"),
        (20, "120 responses, 1,000 tokens at 50 tokens/s; 100 came from the cache"),
        (120, "120 responses, 1,000 tokens at 50 tokens/s"),
    ],
)
def test_a_speed_is_only_named_if_something_was_generated(generated, expected):
    assert (
        format_sampling_headline(120, "responses", generated=generated, tokens=1000, tokens_per_second=50.0) == expected
    )
