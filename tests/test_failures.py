"""What the infrastructure did is retried, with its cause; a user's mistake is not."""

import errno

import pytest
import ray
from flytekit.core.context_manager import FlyteEntities
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.exceptions.system import FlyteDownloadDataException
from flytekit.exceptions.user import FlyteRecoverableException

import workflows.rlvr  # noqa: F401 declares every task
from tasks.failures import describe_error, find_infrastructure_cause
from tasks.flyte.stages import stage
from tasks.generation.interface import EngineError, EngineOptionsError
from tasks.tables.parquet import TableError
from tasks.training.actors.process import ActorLostError
from tasks.training.control.controller import NoSignalError
from tasks.training.learner.client import LearnerLostError
from tasks.training.runtime.timeouts import StalledError
from tasks.verifiers.chat.server import ServerError


def raised_in_an_actor(error):
    return ray.exceptions.RayTaskError("step", "Traceback ...", error).as_instanceof_cause()


def caused(error, by):
    error.__cause__ = by
    return error


INFRASTRUCTURE = [
    EngineError("the engine died"),
    ActorLostError("no answer"),
    LearnerLostError("a rank was lost"),
    StalledError("nobody decides"),
    ServerError("the judge's server ended"),
    ConnectionResetError("by peer"),
    TimeoutError("60 s"),
    MemoryError(),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.EBUSY, "Please reduce your request rate"),
    FlyteDownloadDataException("s3"),
    ExceptionGroup("several", [ValueError("x"), EngineError("the engine died")]),
    caused(RuntimeError("could not write"), OSError(errno.ENOSPC, "No space left on device")),
    caused(EngineOptionsError("no config"), OSError(errno.EIO, "Input/output error")),
    raised_in_an_actor(OSError(errno.ENOSPC, "No space left on device")),
]


def test_a_person_reads_the_sentence_of_the_cause_and_no_wrapper():
    assert describe_error(raised_in_an_actor(TableError("missing columns"))) == "missing columns"
    assert describe_error(raised_in_an_actor(ValueError("steps"))) == "ValueError: steps"
    assert describe_error(caused(RuntimeError("could not write"), ConnectionResetError("by peer"))) == (
        "ConnectionResetError: by peer"
    )
    assert describe_error(ExceptionGroup("several", [ValueError("x"), EngineError("the engine\n died")])) == (
        "the engine died"
    )


MISTAKES = [
    ValueError("steps"),
    TableError("missing columns"),
    EngineOptionsError("max_model_len"),
    NoSignalError("all equal"),
    FileNotFoundError(errno.ENOENT, "nowhere"),
    PermissionError(errno.EACCES, "not yours"),
    ExceptionGroup("several", [ValueError("x")]),
    raised_in_an_actor(ValueError("steps")),
]


@pytest.mark.parametrize("error", INFRASTRUCTURE, ids=repr)
def test_what_the_infrastructure_did_has_a_cause_there(error):
    assert find_infrastructure_cause(error)


@pytest.mark.parametrize("error", MISTAKES, ids=repr)
def test_a_mistake_has_none(error):
    assert find_infrastructure_cause(error) is None


def test_the_errors_of_libraries_are_called_so():
    import aiohttp
    import torch.distributed

    for error in (
        aiohttp.ClientConnectionError(),
        ray.exceptions.RayActorError(),
        torch.distributed.DistBackendError("NCCL"),
    ):
        assert find_infrastructure_cause(error) is error


def test_a_stage_raises_what_flyte_retries_and_says_why():
    @stage
    def breaks(how: str) -> int:
        """A stage that fails."""
        if how:
            raise OSError(errno.ENOSPC, how) if how == "full" else ValueError(how)
        return 1

    with pytest.raises(FlyteRecoverableException, match=r"OSError: \[Errno 28\] full"):
        breaks.task_function(how="full")
    with pytest.raises(ValueError, match="wrong"):
        breaks.task_function(how="wrong")
    assert breaks.task_function(how="") == 1


def test_every_cached_stage_is_retried():
    tasks = [each for each in FlyteEntities.entities if isinstance(each, PythonFunctionTask)]
    stages = [task for task in tasks if task.execution_mode is task.ExecutionBehavior.DEFAULT]  # not what starts them
    cached = [task for task in stages if task.metadata.cache and task.name.startswith("tasks.")]  # not other tests'
    assert len(cached) >= 9
    assert [task.name for task in cached if task.metadata.retries < 2] == []
