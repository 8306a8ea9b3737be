"""The image's own settings: the user that pods run as, what is installed by apt, and no caches."""

import os
import re
import subprocess

from images import pins
from tasks.view import environment
from tests.images.environments import DOCKERFILE, ENVIRONMENTS, STAGES
from tests.paths import ROOT


def test_every_image_ends_as_one_user_who_is_not_root_and_owns_the_working_directory():
    assert set(STAGES) == {*ENVIRONMENTS, "generation", "training"}
    assert not any("USER" in STAGES[name] for name in ("generation", "training"))  # that of the stage before
    for name in ENVIRONMENTS:
        assert re.findall(r"^USER (\w+)$", STAGES[name], re.MULTILINE)[-1] == "10001"
        assert "chown --recursive 10001 /root" in STAGES[name]
    for name in ("data", "generation-cuda"):
        assert "useradd --uid 10001 --home-dir /root --no-create-home rlvr" in STAGES[name]
        assert "chmod 755 /root" in STAGES[name]
        assert "HOME=/root" in STAGES[name]


def test_every_image_says_its_name_and_its_accelerator():
    assert DOCKERFILE.splitlines().index("ARG accelerator=cuda") < DOCKERFILE.splitlines().index(
        f"FROM {STAGES['data'].splitlines()[0]}"
    )
    assert STAGES["generation"].startswith("generation-$accelerator AS ")
    for name in ("data", "generation"):
        assert "ARG image accelerator" in STAGES[name]
        assert "ENV FLYTE_INTERNAL_IMAGE=$image RLVR_ACCELERATOR=$accelerator" in STAGES[name]
    assert "ENV FLYTE_INTERNAL_IMAGE=$image" in STAGES["training"]


def test_nothing_that_is_installed_leaves_a_cache():
    for name in ENVIRONMENTS:
        assert "UV_NO_CACHE=1" in STAGES[name] or STAGES[name].startswith("data AS ")
        assert "rm -rf /var/lib/apt/lists/*" in STAGES[name]
    by_pip = [line for line in DOCKERFILE.splitlines() if re.search(r"(^|\s)pip install .*uv==", line)]
    assert all("--no-cache-dir" in line for line in by_pip)


def installed(name):
    """Return the packages that a stage installs by apt, without those that it removes again."""
    lines = re.findall(r"apt-get install -y --no-install-recommends (.*?)&&", STAGES[name])
    removed = re.findall(r"apt-get purge -y --auto-remove (.*?)&&", STAGES[name])
    return {package for line in lines for package in line.split()} - {each for line in removed for each in line.split()}


def test_what_the_base_image_has_of_pinned_distributions_is_removed():
    """Images of Python 3.11 come with setuptools, and a build fails if a version is not the pinned one."""
    assert "setuptools" in pins.read(ROOT / pins.CPU.path)
    assert "pip uninstall --yes setuptools" in STAGES["data"]


def test_images_without_cuda_end_without_a_compiler():
    """Programs that models write run in pods; a distribution without wheels needs a compiler while it is installed."""
    assert "apt-get install -y --no-install-recommends gcc libc6-dev " in STAGES["data"]
    assert "gcc" not in installed("data") | installed("generation-none")


def test_the_gpu_image_has_what_kuberay_and_nccl_need():
    """KubeRay's probes call wget; without these libraries NCCL would talk TCP between nodes."""
    assert {"wget", "libibverbs1", "ibverbs-providers", "librdmacm1", "bubblewrap"} <= installed("generation-cuda")


def test_the_gpu_image_can_have_flashinfers_kernels_of_the_pinned_version(tmp_path):
    """FlashInfer's import fails if its two packages have different versions."""
    [line] = re.findall(r'^RUN \[ -z "\$cubins" \] \|\| (.*?"\n)', STAGES["generation-cuda"], re.MULTILINE | re.DOTALL)
    (tmp_path / "uv").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "uv").chmod(0o755)
    variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "cubins": "https://index"}
    shown = subprocess.run(["/bin/sh", "-c", line], cwd=ROOT, env=variables, check=True, capture_output=True, text=True)
    version = pins.read(ROOT / pins.CUDA.path)["flashinfer-python"]
    assert shown.stdout.split()[-3:] == ["--index-url", "https://index", f"flashinfer-cubin=={version}"]


def test_the_cpu_image_has_what_kuberay_and_vllm_need():
    """vLLM's kernels for CPUs are linked with libnuma, which slim images lack."""
    assert {"wget", "libnuma1"} <= installed("generation-none")


def test_the_data_image_has_the_viewers_environment_with_the_versions_of_its_lock():
    line = "uv venv /opt/rlvr-view && uv pip sync --python /opt/rlvr-view/bin/python images/lock-view.txt"
    assert line in STAGES["data"]
    assert f"ENV {environment.VARIABLE}=/opt/rlvr-view" in STAGES["data"]
    assert STAGES["data"].index("COPY images images") < STAGES["data"].index(line)
