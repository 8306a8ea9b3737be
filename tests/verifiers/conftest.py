"""Real rows and real worker processes for the verifiers' tests."""

import json
import os

import pytest

from tests.paths import DATA

os.environ.setdefault("NLTK_DATA", str(DATA / "nltk_data"))  # before the first import of nltk


@pytest.fixture(scope="session")
def data_file():
    """Return the path of a file of the shared data; skips the test where it is absent."""

    def path(name):
        if not (DATA / name).exists():
            pytest.skip(f"no {name} in {DATA}; set RLVR_TEST_DATA")
        return DATA / name

    return path


@pytest.fixture(scope="session")
def rows(data_file):
    """Read a JSONL file of the shared data; skips the test where it is absent."""
    return lambda name: [json.loads(line) for line in data_file(name).read_text().splitlines()]


@pytest.fixture(scope="session")
def punkt():
    """Skip the test where the sentence tokenizer's data is absent."""
    from tasks.verifiers.instructions import needs

    if not needs.has_data(needs.PUNKT):
        pytest.skip(f"no {needs.PUNKT} in NLTK_DATA={os.environ['NLTK_DATA']}")


@pytest.fixture(scope="session")
def nltk_data(punkt):
    """Skip the test where any of the data that a constraint reads is absent."""
    from tasks.verifiers.instructions import needs

    if absent := [each for each in (needs.TAGGER, needs.STOP_WORDS) if not needs.has_data(each)]:
        pytest.skip(f"no {absent} in NLTK_DATA={os.environ['NLTK_DATA']}")


@pytest.fixture(scope="session")
def pool():
    """Two workers with a short limit, shared by the tests that do not kill them."""
    from tasks.verifiers import VerifierPool, VerifiersConfig

    with VerifierPool(2, VerifiersConfig(time_limit_seconds=2.5, code={"test_seconds": 1, "total_seconds": 2})) as pool:
        pool.start(["math", "precise_if"])
        yield pool
