"""A machine whose GPUs cannot be used says so in one sentence. There is no GPU: torch and programs are stand-ins."""

import sys
import sysconfig

import pytest

from tasks.difficulty.spec import DifficultySpec
from tasks.inputs.files import DataFile, EvaluationFile
from tasks.inputs.overrides import with_overrides
from tasks.inputs.preflight import _list_engine_types
from tasks.machine import gpus
from tasks.machine.gpus import Card, GpuError, Usable, check_gpus, check_types
from tasks.machine.local_ray import check_machine

T4, P100, L4 = Card("Tesla T4", (7, 5)), Card("Tesla P100-PCIE-16GB", (6, 0)), Card("NVIDIA L4", (8, 9))

TORCH = """
class cuda:
    @staticmethod
    def init():
        {reason}

    @staticmethod
    def device_count():
        return 2

    class get_device_properties:
        def __init__(self, index):
            self.name, self.major, self.minor = [("NVIDIA L4", 8, 9), ("Tesla T4", 7, 5)][index]
"""


def program(folder, name, *lines):
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines)]) + "\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with torch for CUDA 13 and gcc: what `machine(...)` says of its GPUs, in an empty PATH."""
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "no-driver")
    for name in ("CC", gpus.VISIBLE):
        monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    program(programs, "gcc")

    def become(*cards, reason="", driver=""):
        if driver:
            smi = program(programs, "nvidia-smi")
            smi.write_text(f'#!/bin/sh\ncase "$1" in *=name) echo NVIDIA L4;; *) echo {driver};; esac\n')
        monkeypatch.setattr(gpus, "find_usable_gpus", lambda: Usable(cards, reason))
        return programs

    return become


def test_a_driver_that_is_too_old_for_torch_is_named_with_the_one_to_install(machine, monkeypatch):
    machine(reason="The NVIDIA driver on your system is too old", driver="535.104.05")
    with pytest.raises(GpuError) as error:
        check_machine()
    assert str(error.value) == (
        "NVIDIA's driver 535.104.05 is too old for torch 2.13.0+cu130, which is built for CUDA 13.0 and cannot use "
        "this machine's GPU (NVIDIA L4): install NVIDIA's driver 580 or later"
    )
    monkeypatch.setenv(gpus.VISIBLE, "-1")  # somebody hides the GPU
    check_machine()


def test_a_gpu_that_a_new_driver_has_and_torch_cannot_use_is_named_with_torchs_reason(machine):
    machine(reason="CUDA unknown error", driver="580.65.06")
    with pytest.raises(GpuError, match=r"GPU \(NVIDIA L4, driver 580\.65\.06\): CUDA unknown error; to run without"):
        check_gpus()


def test_without_a_driver_torch_for_gpus_is_no_fault(machine):
    machine(reason="Found no NVIDIA driver on your system")
    check_gpus()


def test_a_card_before_turing_is_refused(machine):
    machine(L4, P100)
    with pytest.raises(GpuError, match=r"^GPU 1 \(Tesla P100-PCIE-16GB, compute capability 6\.0\) is too old: .* 7\.5"):
        check_gpus()
    machine(L4, T4)
    check_gpus()


def test_without_a_c_compiler_triton_cannot_start(machine, monkeypatch):
    (machine(L4) / "gcc").unlink()
    with pytest.raises(GpuError, match=r"^there is no C compiler \(gcc or clang\), and Triton .*: install gcc$"):
        check_gpus()
    program(machine(L4), "clang")
    check_gpus()
    monkeypatch.setenv("CC", "icx")
    with pytest.raises(GpuError, match=r"there is no C compiler \(icx\)"):
        check_gpus()
    machine()  # no GPU needs none
    check_gpus()


def test_without_pythons_headers_triton_cannot_start(machine, monkeypatch, tmp_path):
    machine(L4)
    schemes = {"posix_prefix": str(tmp_path), "posix_local": "/usr/local/include/python"}
    monkeypatch.setattr(sysconfig, "get_default_scheme", lambda: "posix_local")  # Python of Debian and Ubuntu
    monkeypatch.setattr(sysconfig, "get_path", lambda _, scheme: schemes[scheme])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(GpuError, match=rf"^{tmp_path}/Python\.h is missing, and Triton .* \({version}-dev on Debian"):
        check_gpus()
    (tmp_path / "Python.h").touch()
    check_gpus()
    schemes["posix_prefix"] = "/nowhere"
    monkeypatch.setenv("C_INCLUDE_PATH", f"/elsewhere:{tmp_path}")
    check_gpus()


@pytest.mark.parametrize(
    ("learner", "engine", "sentence"),
    [
        (
            "auto",
            "float16",
            r"^learner\.dtype = auto, which is bfloat16 on a GPU: .* 7\.5, .*; set it to float32$",
        ),
        ("float32", "bfloat16", r"^engine\.dtype = bfloat16: .*; set it to float16 or float32$"),
        ("float32", "auto", r"^engine\.dtype = auto, .*; set it to float16 or float32$"),
        ("float32", "float16", None),
        ("float32", "float32", None),
    ],
)
def test_a_card_without_bfloat16_names_the_types_that_remain(machine, learner, engine, sentence):
    options = {"learner.dtype": learner}, {"engine.dtype": engine}
    machine(L4)
    check_types(*options)
    machine(L4, T4)
    if sentence is None:
        check_types(*options)
        return
    with pytest.raises(GpuError, match=sentence):
        check_types(*options)


def test_preflight_asks_for_the_types_of_all_engines():
    recipe = with_overrides("quickstart", ["actors.engine.dtype=float32"])
    data = recipe.load_companion(DataFile).model_copy(update={"difficulty": DifficultySpec()})
    evaluation = recipe.load_companion(EvaluationFile)
    assert _list_engine_types(data, recipe, evaluation) == {
        "training: actors.engine.dtype": "float32",
        "evaluation: engine.dtype": evaluation.engine.dtype,
        f"{data.name}: difficulty.engine.dtype": "auto",
        f"{data.name}: verifiers.judge.server.dtype": "auto",
    }


def test_torch_says_in_a_process_of_its_own_what_it_can_use(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text(TORCH.format(reason="pass"))
    assert gpus.probe_gpus() == Usable((L4, T4))
    (tmp_path / "torch.py").write_text(TORCH.format(reason='raise RuntimeError("too old\\nPlease update")'))
    assert gpus.probe_gpus() == Usable((), "too old")
    (tmp_path / "torch.py").write_text("import a_library_that_is_missing")
    with pytest.raises(GpuError, match=r"torch cannot look for GPUs: .*a_library_that_is_missing"):
        gpus.probe_gpus()


def test_the_drivers_version_is_read_from_the_kernel_module(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "version")
    for kind in ("NVIDIA UNIX x86_64 Kernel Module", "NVIDIA UNIX Open Kernel Module for x86_64"):
        gpus.DRIVER.write_text(f"NVRM version: {kind}  580.65.06  Release Build  (root@host)  Sun Jul 27 2025\n")
        assert gpus.read_driver_version() == "580.65.06"
    gpus.DRIVER.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = program(tmp_path, "nvidia-smi", "575.57.08", "575.57.08")
    assert gpus.read_driver_version() == "575.57.08"
    smi.unlink()
    assert gpus.read_driver_version() == ""
    assert gpus.list_gpu_names() == []
