"""A training run driven in a process of its own, so that it can be killed, and what it leaves can be counted."""

import contextlib
import json
import multiprocessing
import os
import signal
import time

import psutil

from tasks.training.run import train

EXIT_SECONDS = 30


ENGINE, LEARNER = "EngineCore", "ray::LearnerRank"
"""Names of processes."""


def process_of(name):
    """A process of this name below this one; waits for it where it has not been seen yet."""
    deadline = time.monotonic() + EXIT_SECONDS
    while time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                if name in " ".join(process.cmdline()):
                    return process
        time.sleep(0.1)
    raise AssertionError(f"there is no {name}")


def drive(recipe, model, prompts, folder, kills, kill_driver_after, watch):
    """The driver of a training run, to be run in a process of its own; after step n it kills a process `kills[n]`."""
    import ray

    def on_step(metrics):
        watch(folder, metrics)
        if name := kills.get(metrics["step"]):
            process_of(name).kill()

    def on_saved(checkpoint):
        processes = [process.pid for process in psutil.Process().children(recursive=True)]
        (folder / "processes.json").write_text(json.dumps(processes))
        if checkpoint.name == f"step_{kill_driver_after:08d}":
            os.kill(os.getpid(), signal.SIGKILL)

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    result = train(recipe, model, prompts, folder, on_step=on_step, on_saved=on_saved)
    (folder / "resumed_from").write_text(str(result.resumed_from))


def no_one(_folder, _metrics):
    """Watches nothing."""


def run(recipe, model, prompts, folder, *, kills=(), kill_driver_after=0, watch=no_one):
    """Drive a run to its end; returns the exit code, when no process of the run is left.

    `watch`, a function of a module, is called in the driver with the run folder and the metrics of each step.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=drive, args=(recipe, model, prompts, folder, dict(kills), kill_driver_after, watch)
    )
    process.start()
    process.join()
    assert (folder / "processes.json").exists(), f"the driver ended with {process.exitcode} before it saved anything"
    pids = json.loads((folder / "processes.json").read_text())
    processes = [each for each in psutil.process_iter(["pid", "name"]) if each.pid in pids]
    assert [each.info["name"] for each in psutil.wait_procs(processes, EXIT_SECONDS)[1]] == []
    return process.exitcode


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
