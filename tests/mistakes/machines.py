"""Faults of the machine: no home, no room, other processes, signals."""

from tests.mistakes.case import Case
from tests.mistakes.training import RUN

LONG = "/".join(["a_folder_with_a_long_name"] * 6)


def folder(name, mode=0o755):
    """A step that makes a folder with these permissions."""

    def prepare(here, model, mixture):
        (here / name).mkdir(parents=True)
        (here / name).chmod(mode)

    return prepare


def small_disk(size):
    """A command that runs another where `{here}/disk` is a disk of so many bytes, of its own."""
    mount = f"mount -t tmpfs -o size={size} disk {{here}}/disk"
    return "unshare", "--mount", "sh", "-c", f'mkdir -p {{here}}/disk && {mount} && exec "$0" "$@"'


CASES = (
    Case("the home does not exist", RUN, ("/nonexistent", "HOME"), environment={"HOME": "/nonexistent"}),
    Case("the home cannot be written", RUN, ("/proc", "HOME"), environment={"HOME": "/proc"}),
    Case(
        "the home of the pipeline does not exist",
        "pyflyte",
        ("/nonexistent", "HOME"),
        environment={"HOME": "/nonexistent"},
    ),
    Case(
        "the folder of temporary files is too deep",
        RUN,
        ("TMPDIR", LONG),
        environment={"TMPDIR": f"{{here}}/{LONG}"},
        prepare=folder(LONG),
    ),
    Case(
        "the folder of temporary files is not ASCII",
        RUN,
        ("TMPDIR", "größe"),
        environment={"TMPDIR": "{here}/größe"},
        prepare=folder("größe"),
    ),
    Case("a cluster that is gone is named", f"{RUN} --cluster 127.0.0.1:9", ("127.0.0.1:9",)),
    Case("the folder of a run cannot be made", RUN.replace("{here}/run", "/proc/run"), ("/proc/run",), sampled=True),
    Case(
        "the folder of runs is given as an address",
        "pyflyte",
        ("RLVR_RUNS", "file:"),
        environment={"RLVR_RUNS": "file:///tmp/x"},
    ),
    Case("the outputs cannot be written", "pyflyte", ("/proc/outputs",), environment={"RLVR_OUTPUTS": "/proc/outputs"}),
    Case("the folder of runs cannot be written", "pyflyte", ("/proc/runs",), environment={"RLVR_RUNS": "/proc/runs"}),
    Case(
        "the disk is full",
        RUN.replace("{here}/run", "{here}/disk/run"),
        ("{here}/disk", "No space left"),
        within=small_disk("64k"),
    ),
    Case(
        "the disk is full at a checkpoint",
        RUN.replace("{here}/run", "{here}/disk/run"),
        ("{here}/disk", "No space left"),
        within=small_disk("2m"),
    ),
)
