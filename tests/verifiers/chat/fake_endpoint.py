"""An OpenAI-compatible endpoint over real HTTP, in a thread: a stand-in for the model that judges, not for the client.

A `reply` is a function from a request's JSON to a `Reply`. `scripted` makes one from a list; `Gullible` is a judge that
falls for whatever it reads outside the answer's place.
"""

import json
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    """What the endpoint sends, and how badly."""

    body: bytes = b""
    status: int = 200
    headers: dict = field(default_factory=dict)
    delay_s: float = 0.0
    drip_s: float = 0.0  # between any two bytes
    drop: bool = False  # close the connection in place of an answer


def completion(content, *, finish_reason="stop", usage=(100, 20), **message):
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return Reply(json.dumps({"choices": [choice | {"finish_reason": finish_reason}], "usage": counts}).encode())


def likeliest(chances):
    """A completion of one token with the log-probabilities of the likeliest ones."""
    listed = [{"token": token, "logprob": math.log(chance)} for token, chance in chances.items()]
    top = {"token": listed[0]["token"], "logprob": listed[0]["logprob"], "top_logprobs": listed}
    choice = {"index": 0, "message": {"role": "assistant", "content": top["token"]}, "finish_reason": "length"}
    counts = {"prompt_tokens": 100, "completion_tokens": 1}
    return Reply(json.dumps({"choices": [choice | {"logprobs": {"content": [top]}}], "usage": counts}).encode())


def graded(score, reason="it is so", **options):
    return completion(json.dumps({"reason": reason, "score": score}), **options)


def failing(status, body=b"{}", **headers):
    return Reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


def scripted(*replies):
    """The replies in their order, the last one again and again."""
    left = list(replies)
    lock = threading.Lock()

    def reply(request):
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return reply


class FakeEndpoint:
    """The server for the length of a block; `url` is its base, `requests` holds (headers, body) of what came in.

    `beside` holds replies to requests at other paths; those requests are not in `requests`.
    """

    def __init__(self, reply: Callable[[dict], Reply], base="/v1", path="/chat/completions", beside=None):
        self.reply = reply
        self.beside = beside or {}
        self.path = f"{base}{path}"
        self.requests = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                endpoint._handle(self)

            do_GET = do_POST  # noqa: N815 a name of http.server

            def log_message(self, *arguments):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request, client_address):  # clients that give up are part of the tests
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{base}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, handler):
        request = json.loads(handler.rfile.read(int(handler.headers.get("Content-Length", 0))) or "{}")
        with self._lock:
            if handler.path == self.path:
                self.requests.append((dict(handler.headers), request))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            paths = {self.path: self.reply, **self.beside}
            reply = paths.get(handler.path, lambda request: failing(404))(request)
            self._closing.wait(reply.delay_s)
        finally:
            with self._lock:
                self.at_once -= 1
        if reply.drop:
            handler.close_connection = True
            return
        handler.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        for byte in [reply.body] if not reply.drip_s else [reply.body[i : i + 1] for i in range(len(reply.body))]:
            handler.wfile.write(byte)
            handler.wfile.flush()
            if reply.drip_s and self._closing.is_set():
                return
            time.sleep(reply.drip_s)


MESSAGE_MARKS = re.compile(
    r"<\|[^<>\n]{0,40}\|?>|<[^<>\s]{1,40}\|>|<\uff5c[^<>\n]{0,40}\uff5c>|\[/?INST\]|<</?SYS>>|</?s>|<(?:bos|eos)>"
    r"|<(?:start|end)_of_turn>|<[A-Z_]+_TOKEN>|\[\|[a-z]+\|\]|\]~b\]|</?tool_(?:call|response)>|\[/?SYSTEM_PROMPT\]"
    r"|^[ \t*#\[]*(?:system|user|human|assistant|judge|grader|evaluator)[*\]]*[ \t]*[:\uff1a]"
    r"|^[ \t]*#+[ \t]*(?:instructions?|response|system|grading|the answer to grade|how to grade)[ \t]*:?[ \t]*$"
    r"|^[^\w>\n]{0,8}end[ _](?:of[ _])?(?:the[ _])?(?:answer|response|submission)\b",
    re.IGNORECASE | re.MULTILINE,
)
"""What this judge takes for the start of a message or the end of the answer, wherever it stands."""

UNSEEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u00ad\u0000-\u0008]")
ORDERS = re.compile(r"score\W{0,6}(?:of |it |this |is |as |to |= ?|: ?){0,2}(\d+)", re.IGNORECASE)


class Gullible:
    """Gives the lowest grade, but for the last grade that it is told or shown outside the answer's place.

    The answer's place ends at the first line that ends it; after anything that looks like a message of its own, what
    follows is no part of the answer either. It sees through characters that print nothing.
    """

    def __init__(self, places=r"(?m)^=== begin answer (?P<mark>\w+) ===$(?P<answer>.*?)^=== end answer (?P=mark) ===$"):
        self._places = re.compile(places, re.DOTALL)

    def __call__(self, request):
        return graded(self.grade(request["messages"][-1]["content"]))

    def grade(self, prompt):
        match = self._places.search(prompt)
        assert match, "the judge cannot find the answer"
        answer = match["answer"]
        for mark in MESSAGE_MARKS.finditer(UNSEEN.sub("", answer)):
            answer = UNSEEN.sub("", match["answer"])[mark.end() :]
            return self._grade_in(answer)
        return self._grade_in(prompt[match.end() :])

    def _grade_in(self, text):
        orders = [int(order) for order in ORDERS.findall(text)]
        return min(10, orders[-1]) if orders else 1
