"""Runs the code server, which runs the programs of responses: `python -m tasks.verifiers.code.server --help`.

A run starts one for itself, on a Unix socket. On clusters whose training pods cannot run a sandbox, start it on a
machine that can, and set `code.remote` in the configuration of the verifiers. `tasks.verifiers.code.service` documents
its requests and responses.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from tasks.config.connection import is_loopback
from tasks.config.loading import explain
from tasks.verifiers import process_limits
from tasks.verifiers.code.config import SERVER_OPTIONS, CodeConfig

PORT = 8440
"""Default TCP port."""
SHUTDOWN_SECONDS = 30.0
"""Seconds that requests in flight may take after SIGTERM."""

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, and finish the requests in flight.

    Raises:
        SystemExit: it cannot start; with the reason in one line.
    """
    options = _build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    if options.listener is not None:
        process_limits.die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to a run and all its processes
    try:
        _serve(options)
    except (ValueError, OSError) as error:
        reason = f"the code server cannot start: {error}"
        if options.ready is None:
            sys.exit(reason)
        _write_report(options.ready, reason.encode())
        sys.exit(1)


def _build_parser() -> argparse.ArgumentParser:
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser("python -m tasks.verifiers.code.server", formatter_class=shown, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; a token is needed beyond loopback")
    parser.add_argument("--port", type=int, default=PORT, help="port to listen on; 0 takes a free one, and logs it")
    parser.add_argument("--workers", type=int, default=1, help="programs that run at one time")
    parser.add_argument("--places", type=int, default=256, help="requests that run or wait; a further one gets a 503")
    parser.add_argument("--token-env", help="name of the environment variable with the token that clients must send")
    parser.add_argument("--certificate", help="file with this server's certificate (PEM), for https")
    parser.add_argument("--key", help="file with the private key of the certificate (PEM)")
    for name in SERVER_OPTIONS:
        option = f"--{name.replace('_', '-')}"
        default = CodeConfig.model_fields[name].default
        of_names = isinstance(default, list)
        about = f"as code.{name} of a run{', with commas' if of_names else ''}"
        parser.add_argument(option, default=default, type=_split_names if of_names else str, help=about)
    for name in ("--listener", "--ready"):  # descriptors from a run that starts its own server
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    return parser


def _split_names(text: str) -> list[str]:
    return list(filter(None, text.split(",")))


def _serve(options: argparse.Namespace) -> None:
    from aiohttp import web

    from tasks.verifiers.code.programs import Programs
    from tasks.verifiers.code.service import MAX_BYTES, READ_SECONDS, CodeService
    from tasks.verifiers.http_client import read_key

    own = options.listener is not None
    token = read_key("--token-env", options.token_env)
    os.environ.pop(options.token_env or "", None)  # so that processes of programs do not inherit it
    if token is None and not own and not is_loopback(options.host):
        raise ValueError(f"{options.host} can be reached from elsewhere: --token-env must name a token's variable")
    secured = _load_certificate(options.certificate, options.key)
    config = _build_config(options)
    isolation = _find_isolation(config)
    programs = Programs(config, options.workers)
    places = sys.maxsize if own else options.places
    with socket.socket(fileno=options.listener) if own else _open_listener(options.host, options.port) as listener:
        application = CodeService(
            programs, isolation, places, token, sys.maxsize if own else MAX_BYTES
        ).build_application()

        async def announce(_: web.Application) -> None:  # from now on a signal shuts it down cleanly
            if own:
                _write_report(options.ready, b"ready")
            else:
                logger.info("code server on %s port %d, isolation by %s", *listener.getsockname()[:2], isolation)

        application.on_startup.append(announce)
        web.run_app(
            application,
            sock=listener,
            ssl_context=secured,
            handle_signals=not own,
            print=None,
            keepalive_timeout=READ_SECONDS,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_SECONDS,
            access_log=None if own else logging.getLogger("aiohttp.access"),
            access_log_format='%a "%r" %s %Tf s',
        )
    programs.close()
    if not own:
        logger.info("code server ended")


def _load_certificate(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if (certificate is None) != (key is None):
        raise ValueError("--certificate and --key go together")
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def _write_report(descriptor: int, what: bytes) -> None:
    with open(descriptor, "wb") as stream:
        stream.write(what)


def _build_config(options: argparse.Namespace) -> CodeConfig:
    try:
        return CodeConfig.model_validate({name: getattr(options, name) for name in SERVER_OPTIONS})
    except ValidationError as error:
        raise ValueError(explain(error, "its options", CodeConfig)) from None


def _find_isolation(config: CodeConfig) -> str:
    """Return the isolation mechanism that works here; raises `ValueError` if none does."""
    from tasks.verifiers import code

    try:
        sandbox = code.open_sandbox(config)
    except code.SandboxError as error:
        raise ValueError(str(error)) from None
    sandbox.close()
    return sandbox.isolation


def _open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


if __name__ == "__main__":
    main()
