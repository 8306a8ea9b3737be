"""The rewards of responses by name, without those that do not apply."""

import pyarrow as pa

from tasks.tables.rewards import collect_reward_values
from tasks.tables.schemas import ROLLOUTS


def test_a_reward_that_does_not_apply_has_no_value():
    kind = ROLLOUTS.field("rewards").type
    first = [None, [], [{"name": "a", "value": None}, {"name": "b", "value": 0.5}]]
    second = [[{"name": "b", "value": 1.0}], [{"name": "c", "value": 0.0}]]
    table = pa.table({"rewards": pa.chunked_array([pa.array(part, kind) for part in (first, second)])})
    assert collect_reward_values(table) == {"b": [0.5, 1.0], "c": [0.0]}
    assert collect_reward_values(table.slice(0, 2)) == {}
    assert collect_reward_values(ROLLOUTS.empty_table()) == {}
