"""Runs the code of other machines' responses: `python -m tasks.verifiers.code.server --help`.

For clusters whose training pods can hold no sandbox: this server runs where one can be held, and `code.remote` of the
verifiers' configuration names it. See `tasks.verifiers.code.service` for what it answers.

Each worker process imports this module, so what the server alone needs is imported where it is needed.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from tasks.config import explain
from tasks.verifiers.code.config import LIMITS, CodeConfig
from tasks.verifiers.config import VerifiersConfig

PORT = 8440
GRACE_SECONDS = 6.0
"""How long a worker may take beyond the time of the tests, before it is killed."""
SHUTDOWN_SECONDS = 30.0
"""How long requests that are under way may take after SIGTERM."""

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; what is under way is then finished.

    Raises:
        SystemExit: it cannot start; with one sentence that says why.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        _serve(options)
    except (ValueError, OSError) as error:
        sys.exit(f"the code server cannot start: {error}")


def _parser() -> argparse.ArgumentParser:
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser("python -m tasks.verifiers.code.server", formatter_class=shown, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; a token is needed beyond loopback")
    parser.add_argument("--port", type=int, default=PORT, help="port to listen on; 0 takes a free one, and says which")
    parser.add_argument("--workers", type=int, default=1, help="programs that run at one time")
    parser.add_argument("--places", type=int, default=256, help="requests that run or wait; a further one gets a 503")
    parser.add_argument("--token-env", help="name of the environment variable with the token that clients must send")
    for name in ("isolation", "python", *LIMITS):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, default=CodeConfig.model_fields[name].default, help=f"as code.{name} of a run")
    return parser


def _serve(options: argparse.Namespace) -> None:
    from aiohttp import web

    from tasks.verifiers.code.service import CodeService
    from tasks.verifiers.http import read_key
    from tasks.verifiers.pool import VerifierPool

    token = read_key("--token-env", options.token_env)
    os.environ.pop(options.token_env or "", None)  # no process that runs a program inherits it
    if token is None and not _is_loopback(options.host):
        raise ValueError(f"{options.host} can be reached from elsewhere: --token-env must name a token's variable")
    config = _config(options)
    isolation = _isolation(config.code)
    with (
        _listen(options.host, options.port) as listener,
        VerifierPool(options.workers, config, max_pending=options.places) as pool,
    ):
        pool.wait_ready()
        application = CodeService(pool, isolation, options.places, token).application()

        async def announce(_: web.Application) -> None:  # only now does a signal end it in good order
            logger.info("code server on %s port %d, isolation by %s", *listener.getsockname()[:2], isolation)

        application.on_startup.append(announce)
        web.run_app(
            application,
            sock=listener,
            print=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            access_log_format='%a "%r" %s %Tf s',
        )
    logger.info("code server ended")


def _config(options: argparse.Namespace) -> VerifiersConfig:
    named = {name: getattr(options, name) for name in ("isolation", "python", *LIMITS)}
    try:
        code = CodeConfig.model_validate(named)
    except ValidationError as error:
        raise ValueError(explain(error, "its options", CodeConfig)) from None
    return VerifiersConfig(time_limit_seconds=code.total_seconds + GRACE_SECONDS, code=code)


def _isolation(config: CodeConfig) -> str:
    """Which mechanism works here; raises `ValueError` where none does."""
    from tasks.verifiers import code

    try:
        sandbox = code.open_sandbox(config)
    except code.SandboxError as error:
        raise ValueError(str(error)) from None
    sandbox.close()
    return sandbox.isolation


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


if __name__ == "__main__":
    main()
