"""An S3 bucket on this machine, for processes that share nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "runs"
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


@dataclass(frozen=True)
class ObjectStore:
    """A bucket, and what processes need to know of it."""

    endpoint: str

    @property
    def prefix(self) -> str:
        """Where a run may write."""
        return f"s3://{BUCKET}/raw"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that uses the bucket, by flytekit's names."""
        return {
            "FLYTE_AWS_ENDPOINT": self.endpoint,
            "FLYTE_AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"],
            "FLYTE_AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"],
            "AWS_DEFAULT_REGION": KEYS["region_name"],
        }

    @cached_property
    def _client(self) -> Any:
        return boto3.client("s3", endpoint_url=self.endpoint, **KEYS)

    def keys(self, prefix: str = "") -> dict[str, int]:
        """Names and bytes of the objects below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", [])}


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """An empty bucket, for the length of the block."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = ObjectStore(f"http://{host}:{port}")
        boto3.client("s3", endpoint_url=store.endpoint, **KEYS).create_bucket(Bucket=BUCKET)
        yield store
    finally:
        server.stop()
