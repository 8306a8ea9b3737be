"""Real rows and real worker processes for the verifiers' tests."""

import json
import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("RLVR_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
os.environ.setdefault("NLTK_DATA", str(DATA / "nltk_data"))  # before the first import of nltk


@pytest.fixture(scope="session")
def rows():
    """Read a JSONL file of the shared data; skips the test where it is absent."""

    def read(name):
        if not (DATA / name).exists():
            pytest.skip(f"no {name} in {DATA}; set RLVR_TEST_DATA")
        return [json.loads(line) for line in (DATA / name).read_text().splitlines()]

    return read


@pytest.fixture(scope="session")
def punkt():
    """Skip the test where the sentence tokenizer's data is absent."""
    from tasks.verifiers import instructions

    if not instructions._found(instructions.PUNKT):
        pytest.skip(f"no {instructions.PUNKT} in NLTK_DATA={os.environ['NLTK_DATA']}")


@pytest.fixture(scope="session")
def pool():
    """Two workers with a short limit, shared by the tests that do not kill them."""
    from tasks.verifiers import VerifierPool

    with VerifierPool(workers=2, time_limit_s=2.5) as pool:
        pool.wait_ready()
        yield pool
