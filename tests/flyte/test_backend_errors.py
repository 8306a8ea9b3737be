"""A backend that is away, a login that is refused, storage that takes nothing: one sentence with address and file."""

import grpc
import pytest
import requests
from click.testing import CliRunner
from flytekit.clis.sdk_in_container.pyflyte import main
from flytekit.exceptions.user import FlyteValueException

from tasks.flyte.backend import BackendError, convert_backend_error, upload_error
from tests.flyte.admin_stand_in import admin

AWAY = "dns:///127.0.0.1:1"


@pytest.fixture
def backend(tmp_path):
    with admin(tmp_path) as made:
        yield made


def sentence(backend, *command):
    """The one line that the command ends with, after flytekit's own of what it does."""
    done = CliRunner().invoke(main, ["--config", str(backend.config), *command])
    assert done.exit_code == 1, done.output
    lines = [
        line for line in done.output.splitlines() if not line.startswith(("Running Execution", "Loading", "Success"))
    ]
    [line] = [line for line in lines if line.startswith("Error: ")]
    assert "Traceback" not in done.output
    assert len(done.output.splitlines()) <= 4, done.output
    return line


LAUNCH = ("run", "--remote", "workflows/rlvr.py", "rlvr")


@pytest.mark.long
def test_a_backend_that_is_away(backend):
    backend.config.write_text(f"admin:\n  endpoint: {AWAY}\n  insecure: true\n")
    line = sentence(backend, *LAUNCH)
    assert f"the Flyte backend at 127.0.0.1:1 (admin.endpoint in {backend.config}) does not answer: " in line
    assert "Connection refused" in line
    assert "name another one by --config FILE" in line


@pytest.mark.long
def test_a_login_that_has_expired(backend):
    backend.refusal = (grpc.StatusCode.UNAUTHENTICATED, "token is expired by 3h")
    line = sentence(backend, *LAUNCH)
    assert f"(admin.endpoint in {backend.config}) refuses this login: token is expired by 3h; log in again" in line


@pytest.mark.long
def test_storage_that_refuses_the_upload(backend):
    backend.http += "/denied"
    line = sentence(backend, *LAUNCH)
    assert "a file cannot be uploaded: the storage http://127.0.0.1:" in line
    assert "refuses it with HTTP status 403" in line
    assert str(backend.config) in line


@pytest.mark.long
def test_a_project_that_does_not_exist_is_named_before_anything_is_sent(backend):
    line = sentence(backend, "run", "--remote", "--project", "reserch", "workflows/rlvr.py", "rlvr")
    assert "--project reserch: 127.0.0.1:" in line
    assert line.endswith("has no such project (did you mean 'research'?); it has: flytesnacks, research")
    assert backend.received == []


def raised(error, cause=None):
    try:
        raise error from cause
    except Exception as caught:
        return caught


def test_an_address_in_the_environment_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("FLYTE_PLATFORM_URL", "flyte.example:443")
    error = convert_backend_error(raised(TimeoutError("x"), raised(BackendError("known"))))
    assert str(error) == "known"
    explained = upload_error(
        requests.exceptions.ConnectionError("x", request=requests.Request("PUT", "https://s3:9/b?key=1"))
    )
    assert "the storage https://s3:9 does not answer (ConnectionError)" in str(explained)
    assert "flyte.example:443 (FLYTE_PLATFORM_URL)" in str(explained)
    assert "key=1" not in str(explained)


def test_other_errors_are_not_the_backends():
    assert convert_backend_error(ValueError("a defect")) is None
    assert upload_error(FlyteValueException("x", "is not a single file")) is None
