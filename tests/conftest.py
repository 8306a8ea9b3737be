"""What all tests share: the tiny model, what vLLM knows of it, and their order."""

import gc
import os
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.tiny_model import build

# Many tests give a process a home of its own, where vLLM would find out anew what it knows of the model's class.
os.environ.setdefault("VLLM_CACHE_ROOT", str(Path("~/.cache/vllm").expanduser()))
# Ray runs its workers at niceness 15: beside the tests of other processes, engines and ranks of theirs would starve.
os.environ.setdefault("RAY_worker_niceness", "0")

WITH_ONE_ENGINE = (
    (
        "tests/generation/test_sampling_options.py",
        "tests/generation/test_vllm_arguments.py",
        "tests/rollouts/test_policy_server.py",
        "tests/generation/test_engine_episodes.py",
        "tests/generation/test_engine.py",
    ),
    (
        "tests/training/learner/test_universal.py",
        "tests/training/learner/test_learner.py",
        "tests/training/learner/test_sharded_loading.py",
    ),
)
"""Files that share the processes of their folder's conftest.py, in the order in which they run."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A Hugging Face folder with a random Llama, its tokenizer and a chat template."""
    return build(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def one_thread():
    """torch with one thread: its models are tiny, and several test processes run at a time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def no_ray_is_left(request):
    """A file that leaves Ray running fails, instead of the next file of its process that starts one."""
    yield
    fail_if_ray_runs(request.node.nodeid)


def fail_if_ray_runs(owner):
    """Shut Ray down and fail, if it still runs after the tests of `owner`."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail(f"{owner} left Ray running")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector: it imports most libraries, whose objects live as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def unit(path):
    """The file whose worker and place in the order a file has: its own, or the first that its engine is shared with."""
    return next((together[0] for together in WITH_ONE_ENGINE if path in together), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a worker whole files, and all that share an engine."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return unit(super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


CASES_AT_ONCE = 12
"""Number of cases of one parametrized test from which on `make test-fast` runs a sample of as many."""


@pytest.hookimpl(tryfirst=True)  # before marks are selected
def pytest_collection_modifyitems(items):
    """Mark cases of long tables as `long`, but for a sample, and put files in their order."""
    _sample_tables(items)
    _order(items)


def _sample_tables(items):
    tables = {}
    for item in items:
        tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tables.values():
        sampled = set(cases[:: -(-len(cases) // CASES_AT_ONCE)])
        for case in cases:
            if case not in sampled:
                case.add_marker("long")


def _order(items):
    """Whole pipelines first, then files with engines, which compute, by turns with others, which mostly wait."""
    in_order = [path for together in WITH_ONE_ENGINE for path in together]
    files = {}
    for item in items:
        files.setdefault(item.path.relative_to(ROOT).as_posix(), []).append(item)
    units = {}
    for path in sorted(files, key=lambda path: in_order.index(path) if path in in_order else -1):
        units.setdefault(unit(path), []).extend(files[path])

    def marked(name):
        return [first for first in units if any(item.get_closest_marker(name) for item in units[first])]

    pipelines, long = marked("pipeline"), marked("long")
    # In reverse, as the longest, whole runs of training, have late names.
    engines = [first for first in sorted(marked("engine"), reverse=True) if first not in pipelines]
    others = sorted(units.keys() - {*pipelines, *engines}, key=lambda first: (first not in long, first))
    by_turns = [first for pair in zip_longest(engines, others) for first in pair if first]
    items[:] = [item for first in (*pipelines, *by_turns) for item in units[first]]
