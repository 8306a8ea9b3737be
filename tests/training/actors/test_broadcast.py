"""Copies on many nodes: every piece is written once, no link is divided, and nobody waits for a bad node."""

import asyncio
import os

import pytest

from tasks.training.actors.broadcast import RelayError, Spread, split_into_pieces
from tests.training.actors.file_relays import Nodes
from tests.training.stand_ins import run_in_virtual_time

PIECES = 40
SIZE = 1000
FILE = os.urandom(PIECES * SIZE - 7)


def spread_of(nodes, content=FILE):
    (nodes["origin"].root / "v1").write_bytes(content)
    return Spread("/v1", "origin", nodes.__getitem__, SIZE)


async def seconds_of(awaitable):
    loop = asyncio.get_running_loop()
    began = loop.time()
    await awaitable
    return loop.time() - began


def bring(spread, nodes):
    return asyncio.gather(*(spread.bring(node) for node in nodes))


def test_pieces_cover_every_file_and_none_is_larger_than_asked_for():
    pieces = split_into_pieces([("a", 25), ("b", 0), ("c", 10)], 10)
    assert [(piece.name, piece.offset, piece.size) for piece in pieces] == [
        *(("a", 0, 10), ("a", 10, 10), ("a", 20, 5)),
        ("c", 0, 10),
    ]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_many_nodes_have_the_file_in_less_than_twice_the_time_of_the_link_and_each_piece_once(tmp_path, count):
    async def scenario():
        nodes = Nodes(tmp_path)
        names = [f"node{number}" for number in range(count)]
        seconds = await seconds_of(bring(spread_of(nodes), names))
        for name in names:
            assert (nodes[name].root / "v1").read_bytes() == FILE
            assert set(nodes[name].received.values()) == {1}
            assert len(nodes[name].received) == PIECES
        return seconds

    assert run_in_virtual_time(scenario()) < 2 * PIECES


def test_a_folder_arrives_whole_with_empty_files_and_folders_below(tmp_path):
    async def scenario():
        nodes = Nodes(tmp_path)
        adapter = nodes["origin"].root / "v1"
        (adapter / "below").mkdir(parents=True)
        (adapter / "weights").write_bytes(FILE)
        (adapter / "below" / "empty").touch()
        await Spread("/v1", "origin", nodes.__getitem__, SIZE).bring("node")
        copy = nodes["node"].root / "v1"
        assert (copy / "weights").read_bytes() == FILE
        assert (copy / "below" / "empty").read_bytes() == b""
        assert [path.name for path in nodes["node"].root.iterdir()] == ["v1"]

    run_in_virtual_time(scenario())


def test_a_slow_node_delays_no_other(tmp_path):
    async def scenario():
        nodes = Nodes(tmp_path)
        spread = spread_of(nodes)
        nodes["slow"].seconds = 20.0
        slow = asyncio.create_task(spread.bring("slow"))
        seconds = await seconds_of(bring(spread, ["a", "b", "c"]))
        assert not slow.done()
        slow.cancel()
        return seconds

    assert run_in_virtual_time(scenario()) < 3 * PIECES


@pytest.mark.parametrize("dies", [True, False], ids=["is lost", "sends nothing more"])
def test_a_node_that_ends_in_mid_transfer_costs_the_others_seconds(tmp_path, dies):
    async def scenario():
        nodes = Nodes(tmp_path)
        spread = spread_of(nodes)
        lost = asyncio.create_task(spread.bring("lost"))
        others = asyncio.create_task(seconds_of(bring(spread, ["a", "b", "c"])))
        while nodes["lost"].sent < PIECES / 2:
            await asyncio.sleep(1)
        if dies:
            nodes["lost"].lose()
        else:
            nodes["lost"].hangs = True
        seconds = await others
        for name in "abc":
            assert (nodes[name].root / "v1").read_bytes() == FILE
        if dies:
            with pytest.raises(RelayError):
                await lost
        else:
            await lost
        return seconds

    assert run_in_virtual_time(scenario()) < 2 * PIECES + 60


def test_a_second_call_fetches_what_the_first_has_not(tmp_path):
    async def scenario():
        nodes = Nodes(tmp_path)
        spread = spread_of(nodes)
        nodes["origin"].hangs = True
        with pytest.raises(RelayError, match="no node sends /v1 to node a: 40 pieces are missing"):
            await spread.bring("a")
        nodes["origin"].hangs = False
        first = asyncio.create_task(spread.bring("a"))
        await asyncio.sleep(10.5)
        first.cancel()
        await asyncio.wait([first])
        assert spread.running == 0
        await spread.bring("a")
        assert (nodes["a"].root / "v1").read_bytes() == FILE
        assert nodes["a"].received.total() == PIECES
        await spread.bring("a")
        assert nodes["a"].received.total() == PIECES

    run_in_virtual_time(scenario())


def test_a_file_that_is_cut_while_it_is_read_never_arrives(tmp_path):
    async def scenario():
        nodes = Nodes(tmp_path)
        spread = spread_of(nodes)
        bringing = asyncio.create_task(spread.bring("a"))
        await asyncio.sleep(10)
        (nodes["origin"].root / "v1").write_bytes(FILE[: 20 * SIZE])
        with pytest.raises(RelayError):
            await bringing
        assert not (nodes["a"].root / "v1").exists()

    run_in_virtual_time(scenario())


def test_an_origin_without_the_file_is_an_error(tmp_path):
    nodes = Nodes(tmp_path)
    with pytest.raises(RelayError, match="node origin has no /v1"):
        run_in_virtual_time(Spread("/v1", "origin", nodes.__getitem__).bring("a"))
