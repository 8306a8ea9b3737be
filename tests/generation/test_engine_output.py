"""The reason why an engine ended, read from what its processes printed."""

import asyncio
import multiprocessing
import os
import re
import signal
import time

import pytest

from tasks.generation.engine_output import EngineOutput

DEAD = RuntimeError("EngineCore encountered an issue. See stack trace (above) for the root cause.")


def test_the_reason_is_awaited_where_the_engine_has_ended_before_it_is_printed(tmp_path):
    path = tmp_path / "output.txt"
    path.touch()

    async def printed_later():
        waiting = asyncio.create_task(EngineOutput(path).wait_for_reason(DEAD))
        await asyncio.sleep(0.3)
        path.write_text("RuntimeError: head_dim=16 is not supported\n")
        return await waiting

    assert asyncio.run(printed_later()) == "RuntimeError: head_dim=16 is not supported"


def test_nothing_is_awaited_where_the_error_names_itself(tmp_path):
    assert asyncio.run(EngineOutput(tmp_path / "none.txt").wait_for_reason(ValueError("no room"))) == "no room"


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("RuntimeError: head_dim=16 is not supported", True),
        ("ValueError: no such dtype", True),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("torch.OutOfMemoryError: tried to allocate 2 GiB", False),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", False),
    ],
)
def test_a_refused_model_is_told_from_a_fault_of_the_machine(tmp_path, line, refused):
    path = tmp_path / "output.txt"
    path.write_text(f"{line}\n")
    assert EngineOutput(path).names_refusal is refused


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_the_signal_that_killed_an_engine_is_named_whatever_was_printed_before(tmp_path, name):
    output = EngineOutput(tmp_path / "output.txt")
    with output.capture():
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
        process.start()
    assert output.processes == [process]
    output._path.write_text("ValueError: an earlier one\n")
    os.kill(process.pid, signal.Signals[name])
    process.join()
    assert re.fullmatch(rf"killed by {name} \(.*\)", output.find_reason(DEAD))
    assert not output.names_refusal


@pytest.mark.parametrize(("code", "told"), [(-4, "killed by SIGILL (Illegal instruction)"), (1, None)])
def test_a_signal_during_the_start_is_read_from_vllms_error(tmp_path, code, told):
    error = RuntimeError(f"Engine core initialization failed. Failed core proc(s): {{'EngineCore': {code}}}")
    assert EngineOutput(tmp_path / "none").find_reason(error) == (told or str(error))
    output = EngineOutput(tmp_path / "output.txt")
    output._path.write_text("ValueError: an earlier one\n")
    assert output.has_mistake(error) == (told is None)
