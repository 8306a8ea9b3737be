"""An S3 server on a host: `python -m tests.training.store_on_host FILE`, which gets all objects' names now and then.

Files that are written while it lists them are in the next list.
"""

import json
import sys
import time
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from tasks.storage.durable import write_whole
from tests.object_store import BUCKET, KEYS, ObjectStore

PORT = 5000
LIST_SECONDS = 1.0


def main(file: Path) -> None:
    """Serve until the host ends."""
    server = ThreadedMotoServer(ip_address="0.0.0.0", port=PORT, verbose=False)  # noqa: S104 on a network of its own
    server.start()
    store = ObjectStore(f"http://127.0.0.1:{PORT}")
    boto3.client("s3", endpoint_url=store.endpoint, **KEYS).create_bucket(Bucket=BUCKET)
    while True:
        with write_whole(file) as partial:
            partial.write_text(json.dumps(list(store.keys())))
        time.sleep(LIST_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
