"""`make chaos-hosts`: real runs on a Ray cluster of several hosts, which die, are cut off, and are added.

    head: driver, Ray's head (0 CPUs)      learner's host (2 CPUs)      two hosts of an engine each (1 CPU)

The hosts are emulated (`tests.training.hosts`); Ray, engines, learner and everything that they say to each other is
real. Of each run every group has one fate and none has failed: a lost host costs what it had not finished, which others
generate anew.
"""

import contextlib
import json
import re
import shlex
import sys
import time
import uuid
from pathlib import Path

import pytest

from tasks.machine.groups import ACTORS, LEARNER
from tasks.recipe.run import TrainingConfig
from tests.paths import ROOT
from tests.training.driven import check_groups, metrics
from tests.training.hosts import Hosts, missing
from tests.training.mixtures import mixture
from tests.training.processes import role

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

if reason := missing():  # who asks for this file by its name must not take it for passed
    pytest.exit(f"no cluster can be emulated: {reason}", returncode=1)

RECIPE = TrainingConfig.model_validate(
    {
        "groups_per_step": 2,
        "sampling": {"samples": 4, "max_tokens": 16},
        "optimizer": {"learning_rate": 1e-6},
        "learner": {"cpu_threads": 1, "micro_batch_tokens": 256, "cpus": 2},
        "actors": {"count": 2, "cpus": 1, "engine": {"max_model_len": 64, "max_num_seqs": 16, "cpu_threads": 1}},
        "alarms": {"max_truncated": None},
        "checkpoint_every": 5,
        "stall_seconds": 400,
    }
)
BEGUN = 6
"""Steps before something happens: there is a checkpoint, and a step since."""
NEWEST = 8
"""Groups, of which each engine that takes part generates some."""
BOTH = {0, 1}
WORDS = ("sea", "river", "rain", "dog", "fox", "sum", "word", "answer")
PATIENCE_SECONDS = 240
"""For what has to happen sooner or later; Ray takes half a minute to find a node dead."""
ENGINE, RANK = "vLLM's engine core", "learner rank"


class Cluster:
    """A Ray cluster on hosts.

    Attributes:
        head: the host of the driver.
        learner: the host with room for the learner, and for engines where it is the head as well.
        engines: hosts with room for an engine each, or for all if they are a group.
    """

    def __init__(self, hosts: Hosts, head_cpus: int = 0, *, grouped: bool = False) -> None:
        """`head_cpus`: those of a head that is all of the cluster; 0: of several hosts.

        `grouped`: whether the others are machines of groups, which are of one size.
        """
        self._hosts = hosts
        self.head = hosts.add()
        assert self.head.start_ray(cpus=head_cpus).wait() == 0, self.head.log.read_text()
        if grouped:
            self.engines = self.add(2, group=ACTORS)
            [self.learner] = self.add(2, group=LEARNER)
        else:
            self.learner, *self.engines = [self.head] if head_cpus else self.add(2, 1, 1)

    def add(self, *cpus: int, group: str | None = None) -> list:
        """Hosts of as many CPUs, when all are nodes of the cluster."""
        hosts = [self._hosts.add() for _ in cpus]
        starting = [
            host.start_ray(self.head, cpus=number, group=group) for host, number in zip(hosts, cpus, strict=True)
        ]
        for host, process in zip(hosts, starting, strict=True):
            assert process.wait() == 0, host.log.read_text()
        return hosts


class Run:
    """A run that is under way."""

    def __init__(self, cluster: Cluster, folder: Path, steps: int, model: Path, prompts: Path) -> None:
        self.folder = folder
        self._recipe = RECIPE.model_copy(update={"steps": steps})
        self._log = cluster.head.log
        order = folder / "order.json"
        paths = {"model": str(model), "prompts": str(prompts), "folder": str(folder)}
        order.write_text(json.dumps({"recipe": self._recipe.model_dump(mode="json"), **paths}))
        self._driver = cluster.head.start(sys.executable, "-m", "tests.training.driven_on_hosts", str(order))
        self._began = time.monotonic()

    @property
    def steps(self) -> int:
        """Those that it has taken."""
        with contextlib.suppress(FileNotFoundError):
            return len((self.folder / "metrics.jsonl").read_text().splitlines())
        return 0

    def until(self, happened, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until `happened` returns something true, while the run goes on."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, self._log.read_text()
            assert self._driver.poll() is None, self._log.read_text()
            time.sleep(0.2)

    def take(self, steps: int) -> None:
        """Wait until it has taken some more steps."""
        goal = self.steps + steps
        self.until(lambda: self.steps >= goal)

    def lately(self) -> set[int]:
        """The actors that generated the newest groups."""
        with contextlib.suppress(FileNotFoundError):
            newest = (self.folder / "ledger.jsonl").read_text().splitlines()[-NEWEST:]
            return {actor for line in newest for actor in json.loads(line)["actors"]}
        return set()

    def until_said(self, pattern: str) -> None:
        """Wait until the driver has said something."""
        self.until(lambda: re.search(pattern, self._log.read_text()))
        print(f"{time.monotonic() - self._began:6.0f} s, step {self.steps}: {self._said(pattern)}")

    def _said(self, pattern: str) -> str:
        return next(line for line in self._log.read_text().splitlines() if re.search(pattern, line))[:300]

    def end(self) -> None:
        """Let it go on to its end; its ledger is in order."""
        (self.folder / "hurry").touch()
        self.until(lambda: self._driver.poll() is not None or self.steps == self._recipe.steps, 2 * PATIENCE_SECONDS)
        assert self._driver.wait(PATIENCE_SECONDS) == 0, self._log.read_text()
        check_groups(self.folder, self._recipe)
        for figure in ("actors_lost", "learner_restarts"):
            print(f"{figure}: {self.total(figure):g}")

    def total(self, figure: str) -> float:
        """A figure, summed over the steps."""
        return sum(row[figure] for row in metrics(self.folder))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return mixture(tmp_path_factory.mktemp("mixture"), [f"Write a sentence about the {word}" for word in WORDS])


@pytest.fixture
def cluster(tmp_path, request):
    """A cluster, of which nothing is left afterwards; a test may ask for one of another kind."""
    before = on_machine()
    with Hosts(tmp_path) as hosts:
        yield Cluster(hosts, **getattr(request, "param", {}))
    assert [host.roles() for host in hosts.all if host.roles()] == []
    assert on_machine() - before == set()


def on_machine() -> set[str]:
    """Mounts and network devices."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    devices = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return {*mounts, *devices}


@pytest.fixture
def begin(cluster, tiny_model, prompts, tmp_path):
    """A function that begins a run of so many steps, and returns it after the first ones."""

    def begin(steps):
        folder = tmp_path / uuid.uuid4().hex
        folder.mkdir()
        run = Run(cluster, folder, steps, tiny_model, prompts)
        run.take(BEGUN)
        run.until(lambda: run.lately() == BOTH)
        assert all(ENGINE in host.roles() for host in cluster.engines)
        assert RANK in cluster.learner.roles()
        return run

    return begin


def test_an_engines_host_is_killed_and_the_others_train_every_step(cluster, begin):
    run = begin(400)
    cluster.engines[0].kill()
    run.until_said("actor . was lost")
    run.take(10)
    assert len(run.lately()) == 1
    run.end()
    assert run.total("actors_lost") == 1
    assert run.total("learner_restarts") == 0


def test_an_engines_host_is_cut_off_for_15_seconds_and_nothing_is_lost(cluster, begin):
    run = begin(400)
    cluster.engines[0].cut()
    time.sleep(15)
    cluster.engines[0].restore()
    run.take(NEWEST)
    run.until(lambda: run.lately() == BOTH)
    run.end()
    assert run.total("actors_lost") == 0


def test_an_engines_host_is_cut_off_for_5_minutes_and_nothing_on_it_outlives_that(cluster, begin):
    run = begin(600)
    until = time.monotonic() + 300
    cluster.engines[0].cut()
    run.until_said("actor . was lost")
    time.sleep(until - time.monotonic())
    cluster.engines[0].restore()
    run.until(lambda: {ENGINE, "engine's actor", "raylet"}.isdisjoint(cluster.engines[0].roles()))
    run.take(10)
    assert len(run.lately()) == 1
    run.end()
    assert run.total("actors_lost") == 1


def test_a_host_that_is_added_takes_the_engine_that_had_no_room(cluster, begin):
    run = begin(500)
    cluster.engines[0].kill()
    run.until_said("actor . was lost")
    [added] = cluster.add(1)
    run.until(lambda: ENGINE in added.roles())
    run.until(lambda: run.lately() == BOTH)
    run.end()
    assert run.total("actors_lost") == 1


def test_the_learners_host_is_killed_and_its_rank_goes_on_where_there_is_room(cluster, begin):
    run = begin(100)
    engines = [process for host in cluster.engines for process in host.processes()]
    [room] = cluster.add(2)
    cluster.learner.kill()
    run.until_said("the learner goes back to step_")
    run.take(5)
    assert RANK in room.roles()
    assert all(process.is_running() for process in engines)
    run.end()
    assert run.total("actors_lost") == 0
    assert run.total("learner_restarts") == 1


def test_the_learners_host_is_cut_off_for_15_seconds_and_each_step_is_taken_once(cluster, begin):
    run = begin(400)
    cluster.learner.cut()
    time.sleep(15)
    cluster.learner.restore()
    run.take(10)
    run.end()
    assert run.total("actors_lost") == 0
    assert run.total("learner_restarts") == 0


def test_without_a_host_for_any_engine_the_run_says_what_is_missing_and_goes_on_when_there_is_one(cluster, begin):
    run = begin(60)
    for host in cluster.engines:
        host.kill()
    run.until_said("an actor waits for resources of the cluster: .* free")
    cluster.add(1, 1)
    run.take(1)
    run.end()
    # Ray finds one host dead after the other: what replaces the first engine may be placed on the second meanwhile.
    assert 2 <= run.total("actors_lost") <= 3


@pytest.mark.parametrize("cluster", [{"head_cpus": 4}], indirect=True)
def test_what_began_on_one_host_stays_there_as_weights_go_through_its_memory(cluster, begin):
    run = begin(400)
    [added] = cluster.add(2)
    next(each for each in cluster.head.processes() if role(each) == ENGINE).kill()
    run.until_said("actor . was lost")
    run.take(NEWEST)
    run.until(lambda: run.lately() == BOTH)
    assert ENGINE not in added.roles()
    run.end()
    assert run.total("actors_lost") == 1


GROUPED = pytest.mark.parametrize("cluster", [{"grouped": True}], indirect=True, ids=["grouped"])
"""Both engines on a machine of their group, and the learner on one of its own, which is as large."""


@GROUPED
def test_a_lost_machine_of_the_learner_is_waited_for_although_actors_have_room(cluster, begin):
    run = begin(100)
    assert roles_by_group(cluster) == {LEARNER: {RANK}, ACTORS: {ENGINE}}
    [room] = cluster.add(2, group=ACTORS)
    cluster.learner.kill()
    run.until_said("the learner goes back to step_")
    run.until_said("the learner's rank waits for a place in the cluster .* machines by group: learner 0, actors 2")
    assert RANK not in room.roles()
    [cluster.learner] = cluster.add(2, group=LEARNER)
    run.take(5)
    assert roles_by_group(cluster) == {LEARNER: {RANK}, ACTORS: {ENGINE}}
    run.end()
    assert run.total("actors_lost") == 0
    assert run.total("learner_restarts") == 1


@GROUPED
def test_a_lost_machine_of_the_actors_is_waited_for_although_the_learner_has_room(cluster, begin):
    run = begin(60)
    [room] = cluster.add(2, group=LEARNER)
    cluster.engines[0].kill()
    run.until_said("an actor waits for resources of the cluster: .* machines by group: learner 2, actors 0")
    assert ENGINE not in room.roles()
    cluster.engines = cluster.add(2, group=ACTORS)
    run.take(1)
    assert roles_by_group(cluster) == {LEARNER: {RANK}, ACTORS: {ENGINE}}
    run.end()
    assert run.total("learner_restarts") == 0


def roles_by_group(cluster):
    """Which of ranks and engines the hosts of each group hold."""
    hosts = {LEARNER: [cluster.learner], ACTORS: cluster.engines}
    return {group: {ENGINE, RANK} & {role for host in of for role in host.roles()} for group, of in hosts.items()}


def test_two_hosts_take_the_line_of_a_job_of_slurm(tmp_path, tiny_model):
    page = (ROOT / "docs" / "clusters.md").read_text()
    [line] = re.findall(r"^srun (ray symmetric-run .*?)^```", page, re.MULTILINE | re.DOTALL)
    prompts = mixture(tmp_path, [f"Write a sentence about the {word}" for word in WORDS[:4]])
    with Hosts(tmp_path) as hosts:
        first, second = hosts.add(), hosts.add()
        line = (
            line.replace("\\\n", " ").replace("$address", f"{first.address}:6379").replace("$SLURM_JOB_NUM_NODES", "2")
        )
        ray, arguments = line.split(" -- ")
        started, training = shlex.split(ray)[1:], shlex.split(arguments)[1:]
        training[training.index("olmo3_think_7b")] = "quickstart"
        training[training.index("outputs/latest/mixture.parquet")] = str(prompts)
        command = [
            *("env", f"RLVR_OUTPUTS={tmp_path / 'outputs'}", f"RLVR_RUNS={tmp_path / 'runs'}"),
            *(str(Path(sys.executable).with_name("ray")), *started, "--num-cpus", "2", "--disable-usage-stats"),
            *("--object-store-memory", "100000000", "--", sys.executable, *training, "--model", str(tiny_model)),
            *("steps=2", "groups_per_step=2", "sampling={samples: 4, max_tokens: 16}", "model_check=false"),
            *("cluster.node={cpu: 8, memory_gib: 32}", "learner={cpu_threads: 1, micro_batch_tokens: 256, cpus: 2}"),
            "actors={cpus: 2, engine: {max_model_len: 128, max_num_seqs: 16, cpu_threads: 1}}",
        ]
        processes = [host.start(*command) for host in (first, second)]
        seen = [set(), set()]
        while any(process.poll() is None for process in processes):
            for roles, host in zip(seen, (first, second), strict=True):
                roles.update(host.roles())
            time.sleep(1)
    assert [process.returncode for process in processes] == [0, 0], first.log.read_text()
    assert sorted(RANK in roles for roles in seen) == sorted(ENGINE in roles for roles in seen) == [False, True]
    assert [path.name for path in (tmp_path / "runs").glob("*/policy")] == ["policy"]
