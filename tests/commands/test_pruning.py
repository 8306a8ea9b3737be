"""What runs on this machine have left: what may go goes, and what a run, a resume or a result needs stays."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest
from click.testing import CliRunner
from flytekit import Cache, current_context, task
from flytekit.core.local_cache import LocalTaskCache
from flytekit.types.file import FlyteFile

from tasks.commands.group import rlvr
from tasks.commands.pruning import Plan
from tasks.flyte import local_cache
from tasks.flyte.local_cache import CacheError
from tasks.flyte.local_run import LocalRun
from tasks.flyte.stages import Parquet, make_scratch_path
from tasks.storage.lease import RunInUseError
from tasks.storage.outputs import describe_size, format_size, require_idle
from tasks.training.records.ending import has_ended
from tests.paths import ROOT

DAY = 24 * 3600
LONG_AGO = time.time() - 8 * DAY
COMPUTED = []
"""Names of the results that were computed, and did not come from the cache."""


@task(cache=Cache(version="1"))
def computes(name: str) -> Parquet:
    COMPUTED.append(name)
    path = make_scratch_path(f"{name}.parquet")
    path.write_bytes(bytes(1000))
    return FlyteFile(str(path))


@task(cache=Cache(version="1"))
def trains(name: str, folder: str) -> Parquet:
    """Gives a file of a run folder, as training does."""
    COMPUTED.append(name)
    return FlyteFile(f"{folder}/ledger.parquet")


BOTH = pytest.mark.parametrize("outputs", ["together", "apart"], indirect=True)
"""What Flyte and training write lies in the folder of results, or elsewhere."""


@pytest.fixture
def outputs(request, tmp_path, monkeypatch):
    """The folder of results."""
    apart = getattr(request, "param", "together") == "apart"
    folder = tmp_path / "outputs"
    sandbox = tmp_path / "elsewhere" / "flyte" if apart else folder / "flyte"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLYTE_SDK_LOCAL_SANDBOX", str(sandbox))
    monkeypatch.delenv("RLVR_OUTPUTS", raising=False)
    monkeypatch.delenv("RLVR_RUNS", raising=False)
    if apart:
        monkeypatch.setenv("RLVR_OUTPUTS", str(folder))
        monkeypatch.setenv("RLVR_RUNS", str(tmp_path / "elsewhere" / "runs"))
    monkeypatch.setattr(local_cache.local_cache, "CACHE_LOCATION", str(sandbox / "cache"))
    monkeypatch.setattr(LocalTaskCache, "_initialized", False)
    monkeypatch.setattr(current_context(), "_working_directory", str(sandbox / "user_space"))
    for made in (folder, sandbox, runs_beside(folder)):
        made.mkdir(parents=True)
    COMPUTED.clear()
    yield folder
    LocalTaskCache._initialized = False


def runs_beside(outputs):
    return outputs / "runs" if "RLVR_RUNS" not in os.environ else outputs.parent / "elsewhere" / "runs"


def sandbox_beside(outputs):
    return outputs / "flyte" if "RLVR_RUNS" not in os.environ else outputs.parent / "elsewhere" / "flyte"


def write(folder, *names, when=LONG_AGO, size=1000):
    """Files of a folder, last used long ago."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (when, when))
    return folder


def ended(outputs, name, **options):
    return write(
        runs_beside(outputs) / name,
        *("ledger.jsonl", "ledger.parquet", "policy/model.safetensors", "checkpoints/step_00000012/state.json"),
        **options,
    )


def interrupted(outputs, name, **options):
    return write(runs_beside(outputs) / name, "ledger.jsonl", "checkpoints/step_00000006/state.json", **options)


def results(outputs, name, **options):
    (outputs / name).mkdir()
    (outputs / name / "summary.json").write_text(json.dumps({"title": name, "seconds": 1}))
    return write(outputs / name, "report.html", "policy/model.safetensors", **options)


def prune(*options):
    """The lines that the command prints."""
    done = CliRunner().invoke(rlvr, ["prune", *options])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def table(lines):
    """The number and the size of each kind."""
    rows = [re.fullmatch(r"(\S.*?) {2,}([\d,]+) +(\S.*)", line) for line in lines]
    return {row[1]: (int(row[2]), row[3]) for row in rows if row}


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def long_ago(monkeypatch):
    """A block in which results are used long ago."""

    @contextmanager
    def block():
        with monkeypatch.context() as clock:
            clock.setattr("tasks.flyte.local_cache.time.time", lambda: LONG_AGO)
            yield

    return block


def computed(name):
    """The file of a result."""
    return computes(name=name).path


@pytest.fixture
def process():
    """Function that has another process hold something; it prints a line once it does, and ends when told to."""
    running = []

    def start(code):
        script = f"{code}:\n    print('works', flush=True)\n    input()"
        held = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        running.append(held)
        return held

    yield start
    for held in running:
        held.kill()
        held.communicate()


AT_WORK = "from tasks.storage.outputs import prevent_pruning\nwith prevent_pruning()"
LEASED = "from pathlib import Path\nfrom tasks.storage.lease import Lease\nwith Lease.from_folder(Path({!r}))"


@BOTH
def test_nothing_is_removed_without_being_told_and_then_exactly_what_was_printed(outputs):
    write(sandbox_beside(outputs), "user_spaceab12/tmpcd/prompts.parquet")
    ended(outputs, "86f8a7bc6f356e2c", size=1_000_000)
    before = everything(outputs.parent)
    printed = prune()
    assert everything(outputs.parent) == before
    assert table(printed) == {
        "left by processes that have ended": (1, "1.0 kB"),
        "runs that have ended": (1, "4.0 MB"),
        "in all": (2, "4.0 MB"),
    }
    assert printed[-1] == "--yes removes this"
    assert prune("--yes")[-1] == "4.0 MB are free now"
    assert not list(runs_beside(outputs).iterdir())
    assert prune() == ["nothing can go"]


def test_a_result_that_was_not_used_goes_with_its_entry_and_is_computed_again(outputs, long_ago):
    with long_ago():
        old, used = computed("old"), computed("used")
    fresh = computed("fresh")
    assert computed("used") == used  # from the cache, which is a use
    assert COMPUTED == ["old", "used", "fresh"]
    assert table(prune("--yes"))["cached results"] == (1, "1.0 kB")
    assert [os.path.exists(path) for path in (old, used, fresh)] == [False, True, True]
    assert [computed(name) for name in ("used", "fresh")] == [used, fresh]
    computed("old")
    assert COMPUTED == ["old", "used", "fresh", "old"]


@BOTH
def test_folders_of_stages_that_no_result_names_go_at_once_and_those_of_results_are_emptied_of_the_rest(outputs):
    path = computed("fresh")
    beside = write(sandbox_beside(outputs), "user_spacezz99/__cp/x", "user_space/tmpab/y", when=time.time())
    rest = write(beside / os.path.relpath(os.path.dirname(path), beside).split("/")[0], "tmprest/z", when=time.time())
    assert table(prune("--yes"))["left by processes that have ended"][0] >= 3
    assert not (beside / "user_spacezz99").exists()
    assert everything(beside / "user_space") == []  # flytekit has made it for the process that begins at this moment
    assert not (rest / "tmprest").exists()
    assert computed("fresh") == path
    assert COMPUTED == ["fresh"]


def test_a_damaged_cache_that_was_set_aside_goes_and_one_in_use_is_one_sentence(outputs):
    path = computed("fresh")
    write(sandbox_beside(outputs), "cache-damaged-20261129-010203/cache.db", when=time.time())
    assert table(prune("--yes"))["damaged caches"] == (1, "1.0 kB")
    LocalTaskCache._cache.close()
    for file in (sandbox_beside(outputs) / "cache").glob("cache.db*"):
        file.write_bytes(b"no database" * 1000)
    with pytest.raises(CacheError, match="is damaged"):
        prune("--yes")
    assert os.path.exists(path)


def test_an_entry_of_the_cache_that_is_none_stays_and_is_named(outputs):
    path = computed("fresh")
    LocalTaskCache._cache.set("garbage", b"\xff\xff")
    assert "entries of the cache that cannot be read, and stay: garbage" in prune("--yes")
    assert os.path.exists(path)
    assert LocalTaskCache._cache.get("garbage") == b"\xff\xff"


def test_a_run_that_has_ended_stays_as_long_as_a_cached_result_names_its_files(outputs, long_ago):
    needed, other = ended(outputs, "86f8a7bc6f356e2c"), ended(outputs, "1234567890abcdef")
    trains(name="trained", folder=str(needed))
    with long_ago():
        trains(name="other", folder=str(other))
    for run in (needed, other):
        os.utime(run / "ledger.parquet", (LONG_AGO, LONG_AGO))  # its digest was computed
    assert table(prune("--yes"))["runs that have ended"] == (1, "4.0 kB")
    assert (needed.exists(), other.exists()) == (True, False)
    trains(name="trained", folder=str(needed))
    assert COMPUTED == ["trained", "other"]
    assert table(prune("--run", needed.name, "--yes"))["runs that have ended"] == (1, "4.0 kB")
    ended(outputs, needed.name)
    trains(name="trained", folder=str(needed))
    assert COMPUTED == ["trained", "other", "trained"]  # the entry went with the files


def test_an_interrupted_run_stays_with_all_that_its_resume_may_need_until_it_is_named(outputs, long_ago):
    run, recent = interrupted(outputs, "86f8a7bc6f356e2c"), ended(outputs, "1234567890abcdef")
    with long_ago():
        result = computed("old")
    prune("--yes")  # what the stage has left beside its result
    write(runs_beside(outputs), "rollouts/f526/responses/1.parquet", "model-78edd06d/config.json")
    published = results(outputs, "20261101-000000-abc")
    begun = write(runs_beside(outputs) / "fedcba", "ledger.jsonl")
    write(outputs.parent / "outputs" / "errors", "20261129-012525-11120.txt")
    printed = prune("--yes")
    assert set(table(printed)) == {"runs without a checkpoint", "tracebacks", "in all"}
    assert "86f8a7bc6f356e2c (step_00000006); --run NAME removes one" in "\n".join(printed)
    assert not begun.exists()
    assert all(os.path.exists(path) for path in (run, recent, result, published))

    printed = prune("--run", run.name, "--yes")
    assert "86f8a7bc6f356e2c was interrupted: without its step_00000006 it starts again" in printed
    assert table(printed).keys() == {
        *("runs that were interrupted", "runs that have ended", "cached results", "caches of responses"),
        *("prepared models", "results of runs", "in all"),
    }
    assert not list(runs_beside(outputs).glob("[!r]*"))
    assert not published.exists()
    assert not os.path.exists(result)


def test_a_run_that_goes_on_after_its_end_counts_as_interrupted(outputs):
    run = ended(outputs, "86f8a7bc6f356e2c")
    assert has_ended(run)
    (run / "ledger.parquet").unlink()  # as an attempt does that takes more steps
    assert "interrupted runs stay, and all that their resume may need" in "\n".join(prune("--yes"))
    assert run.exists()


@BOTH
def test_latest_and_experiments_stay_and_the_page_of_all_runs_knows_what_is_gone(outputs):
    old, latest = results(outputs, "20261101-000000-abc"), results(outputs, "20261102-000000-def")
    (outputs / "latest").symlink_to(latest.name)
    experiment = write(outputs / "experiments" / "20261101-000000-0123", "experiment.html")
    (outputs / "index.html").write_text(f"{old.name} {latest.name}")
    unpublished = write(outputs / ".20261103-000000-abc-4711", "report.html", when=time.time())
    write(outputs, "notes.txt", "mine/notes.txt")
    assert table(prune("--yes")).keys() == {"left by processes that have ended", "results of runs", "in all"}
    assert [path.exists() for path in (old, unpublished, latest, experiment)] == [False, False, True, True]
    assert (outputs / "mine" / "notes.txt").exists()
    assert old.name not in (outputs / "index.html").read_text()
    assert latest.name in (outputs / "index.html").read_text()


def test_the_age_is_that_of_the_last_use_and_an_option(outputs):
    run = ended(outputs, "86f8a7bc6f356e2c")
    os.utime(run / "ledger.parquet", (time.time() - 2 * DAY, LONG_AGO))  # read, and not written
    assert prune() == ["nothing can go"]
    assert table(prune("--older-than", "1"))["runs that have ended"] == (1, "4.0 kB")


def test_a_file_with_several_names_frees_nothing_until_the_last_goes(outputs):
    run = ended(outputs, "86f8a7bc6f356e2c")
    published, latest = results(outputs, "20261101-000000-abc"), results(outputs, "20261102-000000-def")
    (outputs / "latest").symlink_to(latest.name)
    weights = run / "policy" / "model.safetensors"
    weights.write_bytes(bytes(5_000_000))
    for folder in (published, latest):
        (folder / "policy" / "model.safetensors").unlink()
        os.link(weights, folder / "policy" / "model.safetensors")
    os.utime(weights)  # another run has read them by one of their names
    assert "contain" in describe_size()
    assert "5.0 MB" in describe_size()
    rows = table(prune())
    assert (rows["runs that have ended"], rows["in all"]) == ((1, "3.0 kB"), (2, "4.0 kB"))
    shutil.rmtree(latest)
    rows = table(prune("--yes"))
    assert (rows["runs that have ended"], rows["results of runs"], rows["in all"]) == (
        *((1, "3.0 kB"), (1, "5.0 MB"), (2, "5.0 MB")),
    )
    assert not weights.exists()


@BOTH
def test_links_are_not_followed(outputs, tmp_path):
    outside = write(tmp_path / "outside", "ledger.jsonl", "ledger.parquet", "rollout/1.parquet", "summary.json")
    before = everything(outside)
    for link in (
        *(outputs / "20261101-000000-abc", outputs / "experiments", runs_beside(outputs) / "abc"),
        *(runs_beside(outputs) / "rollouts", runs_beside(outputs) / "model-1", sandbox_beside(outputs) / "user_spacea"),
    ):
        link.symlink_to(outside)
    inside = write(sandbox_beside(outputs) / "user_spaceb", "tmp/x")
    (inside / "link").symlink_to(outside)
    (inside / "file").symlink_to(outside / "ledger.jsonl")
    printed = prune("--yes")
    assert everything(outside) == before
    assert not inside.exists()
    assert not (sandbox_beside(outputs) / "user_spacea").is_symlink()  # the link alone
    assert (runs_beside(outputs) / "abc").is_symlink()
    assert f"{outputs}/20261101-000000-abc is a link, and stays" in printed
    assert f"{runs_beside(outputs)}/abc is not a run folder, and stays" in printed


def test_garbage_and_what_cannot_be_read_stay_and_are_named(outputs, monkeypatch):
    write(runs_beside(outputs), "notes.txt", "mine/data.bin")
    run, other = ended(outputs, "86f8a7bc6f356e2c"), ended(outputs, "1234567890abcdef")
    lstat = os.lstat

    def refusing(path, *arguments, **options):
        if str(path).startswith(str(run)) and str(path).endswith("ledger.jsonl"):
            raise PermissionError(13, "Permission denied")
        return lstat(path, *arguments, **options)

    monkeypatch.setattr(os, "lstat", refusing)
    printed = prune("--yes")
    assert f"{run} cannot be read, and stays: Permission denied" in printed
    assert {f"{runs_beside(outputs)}/{name} is not a run folder, and stays" for name in ("mine", "notes.txt")} < {
        *printed
    }
    assert (run.exists(), other.exists()) == (True, False)


def test_what_cannot_be_removed_is_named_and_the_rest_goes(outputs, monkeypatch):
    ended(outputs, "1234567890abcdef"), ended(outputs, "86f8a7bc6f356e2c")
    rmtree = shutil.rmtree

    def refusing(path):
        if path.name.startswith(".1234"):
            raise PermissionError(13, "Permission denied")
        rmtree(path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refusing)
        printed = prune("--yes")
    assert f"{runs_beside(outputs)}/1234567890abcdef cannot be removed: [Errno 13] Permission denied" in printed
    assert printed[-1] == "4.0 kB are free now"
    assert table(prune("--yes"))["left by processes that have ended"][0] == 1
    assert not list(runs_beside(outputs).iterdir())


def test_a_name_that_is_no_run_is_one_sentence(outputs):
    ended(outputs, "86f8a7bc6f356e2c")
    for name in ("86f8", "../outputs", "rollouts"):
        with pytest.raises(ValueError, match=r"no run is called .*; there are: 86f8a7bc6f356e2c"):
            prune("--run", name, "--yes")


@task
def prunes() -> str:
    with pytest.raises(RunInUseError):
        prune("--yes")
    return "refused"


def test_a_local_run_works_with_the_folders(outputs):
    left = write(sandbox_beside(outputs) / "user_spaceab", "x", when=time.time())
    assert LocalRun(prunes)().startswith("prunes      refused\noutputs contains ")
    assert left.exists()
    assert prune("--yes")[-1] == "1.0 kB are free now"


@BOTH
def test_while_a_run_works_nothing_goes_and_its_end_in_any_way_frees_the_folders(outputs, process):
    left = write(sandbox_beside(outputs) / "user_spaceab", "x", when=time.time())
    for _ in range(2):
        run = process(AT_WORK)
        assert run.stdout.readline() == "works\n"
        with pytest.raises(RunInUseError, match=rf"process {run.pid} uses it"):
            prune("--yes")
        assert left.exists()
        run.kill()
        run.wait()
    assert prune("--yes")[-1] == "1.0 kB are free now"


def test_a_run_that_starts_during_a_prune_waits_for_its_end_and_another_prune_is_refused(outputs, process):
    with require_idle():
        run = process(AT_WORK)
        assert "is being pruned: the run waits for that" in run.stderr.readline()
        with pytest.raises(RunInUseError, match=rf"process {os.getpid()} uses it"):
            prune()
    assert run.stdout.readline() == "works\n"


def test_a_run_whose_lease_a_process_has_stays(outputs, process):
    """As one on another machine that shares the folder: there is no lock of this one."""
    run, other = ended(outputs, "86f8a7bc6f356e2c"), ended(outputs, "1234567890abcdef")
    write(run, "checkpoints/step_00000014.partial/state.json")
    holder = process(LEASED.format(str(run)))
    assert holder.stdout.readline() == "works\n"
    assert f"{run} stays: process {holder.pid} on" in "\n".join(prune("--yes"))
    assert ((run / "checkpoints" / "step_00000014.partial").exists(), other.exists()) == (True, False)
    with pytest.raises(RunInUseError, match=f"process {holder.pid} on .* works on this run"):
        prune("--run", run.name, "--yes")
    holder.kill()
    holder.wait()
    prune("--run", run.name, "--yes")
    assert not run.exists()


def test_a_run_that_another_machine_has_taken_up_since_it_was_planned_stays(outputs, process):
    ours, theirs, held = (ended(outputs, name) for name in ("aaaa", "bbbb", "cccc"))
    with require_idle():
        plan = Plan(time.time())
        (theirs / "ledger.parquet").unlink()
        assert process(LEASED.format(str(held))).stdout.readline() == "works\n"
        plan.remove()
    assert [path.exists() for path in (ours, theirs, held)] == [False, True, True]
    assert "another process has worked on it meanwhile" in plan.sentences[0]
    assert "works on this run" in plan.sentences[1]
    assert not (theirs / "lease.json").exists()


def test_what_was_being_written_in_a_run_that_stays_goes_at_once(outputs):
    run = write(
        interrupted(outputs, "86f8a7bc6f356e2c"), "policy.partial/model", "checkpoints/step_7.partial/a/b.partial"
    )
    write(runs_beside(outputs), "model-78.partial/config.json", when=time.time())
    before = set(everything(run))
    assert table(prune("--yes"))["left by processes that have ended"] == (3, "3.0 kB")
    assert not [name for name in everything(run) if ".partial" in name]
    assert {name for name in before if ".partial" not in name} == set(everything(run))


class KilledError(BaseException):
    """Stands for the death of the process at this point."""


def killed_at(monkeypatch, number):
    changes = []

    def changing(change, *arguments, **options):
        changes.append(arguments)
        if len(changes) == number:
            raise KilledError
        return change(*arguments, **options)

    for name in ("rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, partial(changing, getattr(os, name)))


@pytest.mark.long
def test_a_prune_that_is_killed_at_any_moment_leaves_nothing_that_looks_whole_and_the_next_removes_the_rest(
    outputs, monkeypatch, long_ago
):
    for number in range(1, 100):
        run, published = ended(outputs, "86f8a7bc6f356e2c"), results(outputs, "20261101-000000-abc")
        whole = everything(run), everything(published)
        with long_ago():
            result = computed("old")
        with monkeypatch.context() as patched:
            killed_at(patched, number)
            try:
                with require_idle():
                    Plan(time.time() - 7 * DAY).remove()
                was_killed = False
            except KilledError:
                was_killed = True
        for folder, files in zip((run, published), whole, strict=True):
            assert not folder.exists() or set(files) <= set(everything(folder))
        computed("old")
        assert len(COMPUTED) == 2  # the entry goes before the file
        COMPUTED.clear()
        prune("--yes", "--older-than", "0")
        assert not list(runs_beside(outputs).iterdir())
        assert not list(outputs.glob("*2026*"))
        assert not os.path.exists(result)
        if not was_killed:
            break
    assert number > 10


@pytest.mark.long
def test_the_command_as_a_person_calls_it(outputs, process):
    ended(outputs, "86f8a7bc6f356e2c", size=1_000_000)
    command = [sys.executable, "-m", "tasks.commands", "prune"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=outputs.parent)
    assert done.returncode == 0, done.stderr
    assert table(done.stdout.splitlines())["runs that have ended"] == (1, "4.0 MB")
    run = process(AT_WORK)
    assert run.stdout.readline() == "works\n"
    done = subprocess.run([*command, "--yes"], capture_output=True, text=True, env=environment, cwd=outputs.parent)
    assert done.returncode == 1
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("Error: ")
    assert f"process {run.pid} uses it: try again when that has ended" in sentence


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (3_940_000_000, "3.9 GB"), (12e6, "12 MB"), (5e12, "5,000 GB")],
)
def test_sizes_are_in_the_largest_unit(size, text):
    assert format_size(size) == text
