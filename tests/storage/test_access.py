"""A run's place on blob storage is proven before any training: one error for a mistake, retries for an outage."""

import errno
import json

import boto3
import pytest
import requests
import s3fs
from gcsfs.retry import HttpError, validate_response

from tasks.failures import find_infrastructure_cause
from tasks.storage.access import AccessError
from tasks.training.records.remote_store import RunStore, StoreError
from tests.object_store import BUCKET, KEYS, object_store

PLACE = f"s3://{BUCKET}/rlvr-runs/abc"


@pytest.fixture(scope="module")
def server():
    with object_store() as store:
        yield store


@pytest.fixture
def guarded(server):
    """The same server where every request needs a user's keys, and a policy that allows it; gives a user's keys."""

    def check_requests_after(count):
        requests.post(f"{server.endpoint}/moto-api/reset-auth", data=str(count), timeout=10).raise_for_status()

    client = boto3.client("iam", endpoint_url=server.endpoint, **KEYS)
    client.create_user(UserName="trainer")
    keys = client.create_access_key(UserName="trainer")["AccessKey"]
    check_requests_after(0)
    yield {"key": keys["AccessKeyId"], "secret": keys["SecretAccessKey"]}
    check_requests_after(float("inf"))
    client.delete_access_key(UserName="trainer", AccessKeyId=keys["AccessKeyId"])
    client.delete_user(UserName="trainer")


def enter(server, folder, place=PLACE, key="test", secret="test", retry_seconds=()):  # noqa: S107 not a password
    files = s3fs.S3FileSystem(endpoint_url=server.endpoint, skip_instance_cache=True, key=key, secret=secret)
    with RunStore(files, place, folder, retry_seconds):
        pass


def test_a_place_that_takes_a_run_is_left_as_it_was(server, tmp_path):
    before = server.keys()
    enter(server, tmp_path)
    assert server.keys() == before


def test_a_mistyped_bucket_is_one_error_that_names_it_and_no_retry_gets_past_it(server, tmp_path):
    mistyped = "s3://run/rlvr-runs/abc"
    with pytest.raises(AccessError) as caught:
        enter(server, tmp_path, mistyped, retry_seconds=(3600.0,))  # which it does not wait for
    for fact in (mistyped, "cannot be written to: NoSuchBucket: The specified bucket does not exist", "RLVR_RUNS"):
        assert fact in str(caught.value)
    assert find_infrastructure_cause(caught.value) is None


def test_keys_that_nobody_has_are_an_error(guarded, server, tmp_path):
    with pytest.raises(AccessError, match=f"at {PLACE}, which cannot be written to: InvalidAccessKeyId: "):
        enter(server, tmp_path)


@pytest.mark.long
def test_a_secret_that_is_another_is_an_error(guarded, server, tmp_path):
    with pytest.raises(AccessError, match="cannot be written to: SignatureDoesNotMatch: "):
        enter(server, tmp_path, **(guarded | {"secret": "another"}))


def test_a_user_without_rights_is_an_error(guarded, server, tmp_path):
    with pytest.raises(AccessError, match="cannot be written to: AccessDenied: "):
        enter(server, tmp_path, **guarded)


class Outage:
    """A file system that fails for some time."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.content = {}

    def pipe_file(self, path, content):
        if self.errors:
            raise self.errors.pop(0)
        self.content[path] = content

    def _strip_protocol(self, path):
        return path

    def invalidate_cache(self):
        pass

    def find(self, _):
        return list(self.content)

    def cat_file(self, path):
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def rm_file(self, path):
        del self.content[path]


BUSY = OSError(errno.EBUSY, "Please reduce your request rate."), OSError(errno.EREMOTEIO, "We encountered an error")


def test_an_outage_is_waited_for(tmp_path):
    files = Outage(*BUSY)
    with RunStore(files, PLACE, tmp_path, (0.0, 0.0)):
        assert files.errors == []


def test_storage_that_does_not_answer_in_time_is_an_error_that_a_retry_may_get_past(server, tmp_path):
    with pytest.raises(StoreError, match=f"{PLACE} does not answer: .*reduce your request rate"):
        RunStore(Outage(*BUSY, *BUSY), PLACE, tmp_path, (0.0, 0.0)).__enter__()
    closed = s3fs.S3FileSystem(
        endpoint_url="http://127.0.0.1:9",
        skip_instance_cache=True,
        config_kwargs={"retries": {"max_attempts": 0}},
        key="test",
        secret="test",  # noqa: S106 not a password
    )
    closed.retries = 1
    with pytest.raises(StoreError, match=f"{PLACE} does not answer"):
        RunStore(closed, PLACE, tmp_path, ()).__enter__()


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AccessError), (403, AccessError), (404, AccessError), (503, StoreError)]
)
def test_what_google_answers_is_told_apart_as_well(tmp_path, status, kind):
    with pytest.raises((OSError, HttpError)) as answer:
        validate_response(status, json.dumps({"error": {"message": "no", "code": status}}), "bucket/path")
    with pytest.raises(kind):
        RunStore(Outage(answer.value), PLACE, tmp_path, ()).__enter__()
