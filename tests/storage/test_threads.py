"""Storage that hangs ends no run in silence: the error is seen, and the process ends."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from tasks.storage.threads import PatientThreads
from tasks.training.runtime.timeouts import StalledError

HANGING = """
import asyncio, threading
from tasks.storage.threads import PatientThreads, call_in_thread

async def main():
    asyncio.get_running_loop().set_default_executor(PatientThreads(0.2))
    call_in_thread(threading.Event().wait)
    await asyncio.wait_for(asyncio.to_thread(threading.Event().wait), 0.1)

asyncio.run(main())
"""


async def ends_while_a_thread(does, seconds):
    asyncio.get_running_loop().set_default_executor(PatientThreads(seconds))
    writing = asyncio.create_task(asyncio.to_thread(does))
    await asyncio.sleep(0.05)
    assert not writing.done()
    raise StalledError("the checkpoint was not written")


def test_the_end_waits_for_what_is_being_written():
    written = []
    with pytest.raises(StalledError):
        asyncio.run(ends_while_a_thread(lambda: (time.sleep(0.5), written.append(1)), 60.0))
    assert written


def test_the_end_waits_for_storage_that_hangs_only_a_while(caplog):
    release = threading.Event()
    with pytest.raises(StalledError):
        asyncio.run(ends_while_a_thread(release.wait, 0.1))
    assert "1 calls to storage have not returned within 0.1 s" in caplog.text
    release.set()


def test_nor_does_the_end_of_the_process():
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "TimeoutError" in done.stderr


def test_what_a_call_returns_and_raises_is_the_callers():
    async def main():
        asyncio.get_running_loop().set_default_executor(PatientThreads())
        with pytest.raises(OSError, match="full"):
            await asyncio.to_thread(fails)
        return await asyncio.to_thread(sum, (1, 2))

    def fails():
        raise OSError("full")

    assert asyncio.run(main()) == 3
