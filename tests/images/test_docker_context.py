"""The context of an image's build is what its Dockerfile copies from a checkout."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_context_holds_what_is_copied_and_nothing_else():
    text = (ROOT / "images" / "Dockerfile").read_text()
    copied = [name for names in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in names.split()]
    ignored = (ROOT / "images" / "Dockerfile.dockerignore").read_text().splitlines()
    lines = [line for line in ignored if not line.startswith("#")]
    assert lines[0] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied)
    assert all((ROOT / name).exists() for name in copied)
