"""Shards hold every row once, and change little where the data grows."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.difficulty.sharding import shards


def rows(**sizes):
    return [name for name, size in sizes.items() for _ in range(size)]


def test_small_sources_share_a_shard_and_large_ones_are_cut():
    assert shards(rows(a=2, b=3, c=12, d=4), 5) == [
        range(5),
        range(5, 10),
        range(10, 15),
        range(15, 17),
        range(17, 21),
    ]


def test_a_source_that_is_added_leaves_the_shards_of_large_ones_alone():
    before = shards(rows(a=10, b=10), 5)
    assert shards(rows(a=10, b=10, c=7), 5)[: len(before)] == before


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(1, 10))
def test_every_row_is_in_one_shard_and_none_is_too_large(sizes, limit):
    sources = rows(**{f"s{number}": size for number, size in enumerate(sizes)})
    found = shards(sources, limit)
    assert [row for shard in found for row in shard] == list(range(len(sources)))
    assert all(0 < len(shard) <= limit for shard in found)
