"""The image's own settings: the user that pods run as, what is installed by apt, and no caches."""

import re

from tests.paths import ROOT

TEXT = (ROOT / "images" / "Dockerfile").read_text().replace("\\\n", "")
STAGES = {stage.split()[2]: stage for stage in re.split(r"^FROM ", TEXT, flags=re.MULTILINE)[1:]}


def test_every_image_ends_as_one_user_who_is_not_root_and_owns_the_working_directory():
    assert set(STAGES) == {"data", "generation", "training"}
    assert "USER" not in STAGES["training"]  # generation's
    for name in ("data", "generation"):
        assert re.findall(r"^USER (\w+)$", STAGES[name], re.MULTILINE) == ["10001"]
        assert "useradd --uid 10001 --home-dir /root --no-create-home rlvr" in STAGES[name]
        assert "chown --recursive 10001 /root && chmod 755 /root" in STAGES[name]
        assert "HOME=/root" in STAGES[name]


def test_nothing_that_is_installed_leaves_a_cache():
    for name in ("data", "generation"):
        assert "UV_NO_CACHE=1" in STAGES[name]
        assert "rm -rf /var/lib/apt/lists/*" in STAGES[name]
    assert all("--no-cache-dir" in line for line in TEXT.splitlines() if re.search(r"(^|\s)pip install .*uv==", line))


def test_the_gpu_image_has_what_kuberay_and_nccl_need():
    """KubeRay's probes call wget; without these libraries NCCL would talk TCP between nodes."""
    installed = re.search(r"apt-get install -y --no-install-recommends (.*?)&&", STAGES["generation"])[1].split()
    assert {"wget", "libibverbs1", "ibverbs-providers", "librdmacm1", "bubblewrap"} <= set(installed)
