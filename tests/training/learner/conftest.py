"""One Ray, and learner ranks in processes that are used again, for all files that take steps."""

import pytest

from tests.training.learner.rank_processes import RankProcesses


@pytest.fixture(scope="package")
def ray():
    """A local Ray without its dashboard."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="package")
def processes(ray):
    return RankProcesses(ray)
