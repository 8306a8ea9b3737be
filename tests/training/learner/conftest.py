"""One Ray, and learner ranks in processes that are used again, for all files that take steps."""

import pytest

from tests.conftest import fail_if_ray_runs
from tests.training.learner.rank_processes import RankProcesses


@pytest.fixture(scope="package", autouse=True)
def no_ray_is_left(request):
    """The files of this folder share one Ray, which must end with the last of them."""
    yield
    fail_if_ray_runs(request.node.nodeid)


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
