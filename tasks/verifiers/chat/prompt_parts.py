"""Escapes texts for a judge's prompt, so that a text can neither end its block in the prompt nor imitate a message.

`make_plain` is for all texts: it removes invisible characters, and breaks up the special tokens of chat formats, which
a server's tokenizer would otherwise parse as real special tokens. `escape_answer` is for the answer, the only text that
would benefit from being read as instructions: lines that start a message, a section of the prompt or a delimiter become
quotations, and text that could be read as a judgement is renamed. Both leave ordinary prose, code and markup unchanged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_JOINERS = "\u200c\u200d"  # shape letters of several scripts, and join emoji
_BLANKS = "\u034f\u115f\u1160\u3164\uffa0"  # invisible, although Unicode classifies them as letters or marks
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")

_OPEN, _SHUT, _BAR = r"[<\uff1c]", r"[>\uff1e]", r"[|\uff5c\u00a6\u2502\u2223\ufe31]"
_EDGE = r"<>\uff1c\uff1e|\uff5c"
_WORDS_OF_TOKENS = (
    r"s|bos|eos|pad|unk|mask|sep|cls|sop|eop|image|img|video|audio|think|thinking|filename|reponame|tool|tools|"
    r"turn|end|eot|SYS|(?:unused|special|reserved|extra)\d+"
)
_TOKENS = re.compile(
    rf"{_OPEN}(?=/?{_BAR}[^{_EDGE}\s][^{_EDGE}\n]{{0,80}}{_BAR}?{_SHUT}"  # <|im_end|>, <|turn>
    rf"|/?[^{_EDGE}\s]{{1,80}}{_BAR}{_SHUT}"  # <turn|>
    rf"|/?[^\W_]\w{{0,60}}_\w{{0,60}}{_SHUT}"  # <start_of_turn>, <tool_call>
    rf"|/?(?:{_WORDS_OF_TOKENS}){_SHUT}"  # </s>, <unused12>
    rf"|{_OPEN}/?SYS{_SHUT})"  # <<SYS>>
    r"|\[(?=(?-i:/?(?:INST|IMG|IMG_BREAK|IMG_END|THINK|ARGS|CALL_ID|CLS|SEP|MASK|PAD|UNK|BOS|EOS|[gs]MASK|[A-Z]+_[A-Z_]+)\])"
    rf"|{_BAR}[^\]|\n]{{0,80}}{_BAR}\]|e~\[)"  # [INST], [|assistant|], [e~[
    r"|\](?=~|<\])",  # ]~b], ]<]name[>[
    re.IGNORECASE,
)

_ROLES = r"system|user|human|assistant|developer|ai|judge|grader|evaluator|examiner"
_SECTIONS = (
    r"the conversation|the reference answer|how to grade|the answer to grade|instructions?|response|input|output|"
    rf"{_ROLES}|question|reference|answer|rubric|judge?ment|grading|evaluation|score|grade|verdict|task"
)
_MESSAGE_LINES = re.compile(
    rf"^(?=[ \t]*[*_\[(]*(?:{_ROLES})[*_\])]*[ \t]*[:\uff1a]"  # a message
    rf"|[ \t]*#+[ \t]*(?:{_SECTIONS})[ \t]*[:\uff1a]?[ \t]*$"  # a section
    r"|[ \t]*\[?(?:\.\.\.|\u2026)[ \t]*\d+ \w+ left out"  # a gap
    r"|[^\w\n]{0,80}(?:begin|start|end)\b(?:[ _](?:of|the|user|assistant|student|model|candidate|ai)){0,3}[ _]"
    r"(?:answer|response|reply|submission|conversation|reference|output|data|text|prompt)\b)",  # a delimiter
    re.IGNORECASE | re.MULTILINE,
)
_QUOTES = "\"'`\u201c\u201d\u201e\u201f\u2018\u2019\u00ab\u00bb\uff02"
_SCORE_KEYS = re.compile(rf"(?<=[{_QUOTES}])(?=\s*score\s*\\?[{_QUOTES}]\s*[:\uff1a])", re.IGNORECASE)
_ESCAPED_LETTERS = re.compile(r"\\(?=u00[4-7][0-9a-f])", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
_SPEAKS_OF_SCORE = re.compile(r"\b(?:scor|grad|rating|verdict|judg)", re.IGNORECASE)


@dataclass(frozen=True)
class Material:
    """One text block of a prompt, with its delimiter lines.

    Attributes:
        text: the escaped text.
        begin, end: the lines before and after the text, which both contain the mark.
        mark: 16 hex digits that do not occur in the text.
        omitted: number of characters removed from the middle of the text, or 0 if it is complete.
        omitted_tokens: tokens of these characters by the judge's tokenizer, or 0 if they were not counted.
    """

    text: str
    begin: str
    end: str
    mark: str
    omitted: int = 0
    omitted_tokens: int = 0


def make_material(name: str, text: str, basis: object, omitted: int = 0, omitted_tokens: int = 0) -> Material:
    """Return the already escaped `text` as the block `name`, with a mark that depends on `basis`.

    The mark is a digest of the judged texts, not a random number. Equal judgements therefore have equal prompts, in
    every process and after every resume, so that a seeded judge is reproducible and servers can cache prompts. An
    answer cannot contain the digest of a text that includes the answer, short of trying 2**64 of them, and a policy
    never sees a digest.
    """
    sign = mark(basis, text)
    return Material(text, f"=== begin {name} {sign} ===", f"=== end {name} {sign} ===", sign, omitted, omitted_tokens)


def mark(basis: object, text: str) -> str:
    """Return 16 hex digits that depend on `basis` (a JSON value) and do not occur in `text`."""
    digest = json.dumps(basis)
    while True:
        digest = hashlib.sha256(digest.encode()).hexdigest()
        if digest[:16] not in text:
            return digest[:16]


def split_middle(text: str, most: int) -> tuple[str, str, str]:
    """Split a text into its first `most` / 2 bytes of UTF-8, the middle, and its last `most` / 2 bytes.

    A text that is short enough is returned whole as the first part. The unit is bytes because a context is counted in
    tokens: English has few tokens per letter, other scripts one or more.
    """
    content = text.encode("utf-8", "surrogatepass")
    if len(content) <= most:
        return text, "", ""
    cuts = [most - most // 2, len(content) - most // 2]
    while content[cuts[0]] & 0xC0 == 0x80:  # within a character: it is removed whole
        cuts[0] -= 1
    while cuts[1] < len(content) and content[cuts[1]] & 0xC0 == 0x80:
        cuts[1] += 1
    parts = (content[: cuts[0]], content[cuts[0] : cuts[1]], content[cuts[1] :])
    head, gap, tail = (part.decode("utf-8", "surrogatepass") for part in parts)
    return head, gap, tail


def keep_ends(text: str, most: int, safe: Callable[[str], str] = str) -> tuple[str, int]:
    """Return the two ends of a text with a line about the gap between them, and the number of characters removed.

    Args:
        text: the text.
        most: maximum bytes of UTF-8 to keep.
        safe: escapes each end, but not the line about the gap, so it can escape imitations of that line.
    """
    head, gap, tail = split_middle(text, most)
    if not gap:
        return safe(head), 0
    return f"{safe(head)}\n[... {len(gap)} characters left out here ...]\n{safe(tail)}", len(gap)


def remove_invisible(text: str) -> str:
    """Return the text without invisible characters: controls, bidirectional overrides, zero-width characters, tags.

    Joiners are kept next to a non-ASCII character, because scripts and emoji need them. A lone surrogate cannot be sent
    in a request and becomes the replacement character.
    """
    text = _LINE_ENDS.sub("\n", text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    shown = "".join(character for character in text if not _is_invisible(character))
    return re.sub(f"(?<![^\x00-\x7f{_JOINERS}])[{_JOINERS}]+|[{_JOINERS}]+(?![^\x00-\x7f{_JOINERS}])", "", shown)


def make_plain(text: str, tokens: Iterable[str] = ()) -> str:
    """Return the visible text with a space inside each special token.

    Args:
        text: the text.
        tokens: additional special tokens, from a known tokenizer.
    """
    text = _TOKENS.sub(lambda opening: opening[0] + " ", remove_invisible(text))
    for token in tokens:
        if len(token) > 1:  # a token of one character cannot be split
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def escape_answer(text: str) -> str:
    """Return an answer like `make_plain`, escaped so that no line reads as a message, a delimiter or a judgement."""
    text = make_plain(_remove_encoded_judgements(remove_invisible(text)))
    text = _MESSAGE_LINES.sub("> ", text)
    return _SCORE_KEYS.sub("quoted ", _ESCAPED_LETTERS.sub(r"\\ ", text))


def find_encoded_text(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each base64 run in a text that decodes to readable text, with the decoded text."""
    for run in _BASE64.finditer(text):
        letters = run[0].rstrip("=").replace("-", "+").replace("_", "/")
        try:
            content = base64.b64decode(letters[: len(letters) // 4 * 4], validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError):
            continue
        if content.replace("\n", " ").isprintable():
            yield run, content


def _remove_encoded_judgements(text: str) -> str:
    pieces, position = [], 0
    for run, content in find_encoded_text(text):
        if _SPEAKS_OF_SCORE.search(content):
            pieces += [text[position : run.start()], "[encoded text left out]"]
            position = run.end()
    return "".join([*pieces, text[position:]])


def _is_invisible(character: str) -> bool:
    if character.isprintable() and character not in _BLANKS:
        return 0xE0100 <= ord(character) <= 0xE01EF
    if character in "\n\t" or character in _JOINERS:
        return False
    return unicodedata.category(character) in ("Cc", "Cf") or character in _BLANKS
