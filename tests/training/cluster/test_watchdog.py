"""Nothing of Ray outlives the driver, even where nobody of Ray is left to see to it."""

import json
import multiprocessing
import os

import psutil
import pytest

from tasks.training.cluster.watchdog import watch
from tests.training.driven import identity, process_of, running

pytestmark = [pytest.mark.engine, pytest.mark.complete]

SECONDS = 15
"""Much less than the minute for which Ray's agents wait for a GCS that is gone."""


def end_without_a_gcs(known, bystander):
    """A driver that ends in the middle, just after its cluster's GCS."""
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    other = psutil.Popen(["sleep", "600"])
    watch()
    known.write_text(
        json.dumps([identity(each) for each in psutil.Process().children(recursive=True) if each != other])
    )
    bystander.write_text(json.dumps(identity(other)))
    process_of("gcs_server").kill()
    os._exit(1)


def test_rays_processes_end_with_a_driver_whose_gcs_was_killed_and_others_do_not(tmp_path):
    known, bystander = tmp_path / "known", tmp_path / "bystander"
    driver = multiprocessing.get_context("spawn").Process(target=end_without_a_gcs, args=(known, bystander))
    driver.start()
    driver.join()
    [other] = running([json.loads(bystander.read_text())])
    left = psutil.wait_procs(running(json.loads(known.read_text())), SECONDS)[1]
    spared = other.is_running()
    other.kill()
    assert [each.info["name"] for each in left] == []
    assert spared
