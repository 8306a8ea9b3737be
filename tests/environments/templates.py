"""Small chat templates with the branches that published ones have, and tokenizers for them.

Each is as short as its fault allows: which roles it renders, where, and how it ends a turn.
"""

from tests.tiny_model import TEMPLATE, tokenizer_of

GENERATION = """{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
"""The end of the templates in the form of ChatML: the header of the policy's turn."""
ALL_ROLES = TEMPLATE
"""ChatML: every role, and one end of turns."""
NO_TOOL = (
    """
{%- for m in messages -%}
{%- if m.role in ("user", "system", "environment", "assistant") -%}
<|im_start|>{{ m.role }}
{{ m.content | trim }}<|im_end|>
{% endif -%}
{%- endfor -%}
"""
    + GENERATION
)
"""Olmo 3 Think and Phi-3 without `environment`: a message of the role `tool` is nowhere."""
FIRST_SYSTEM_ONLY = (
    """
{%- if messages[0].role == "system" -%}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for m in messages if m.role != "system" -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
"""
    + GENERATION
)
"""Qwen3-VL, gpt-oss: only a first message may be the system's."""
HOISTED_SYSTEM = (
    """
{%- for m in messages if m.role == "system" -%}{{ m.content }}
{% endfor -%}
{%- for m in messages if m.role != "system" -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
"""
    + GENERATION
)
"""DeepSeek-V3: messages of the system are gathered before the conversation."""
STRICT = (
    """
{%- for m in messages -%}
{%- if m.role not in ("user", "assistant") -%}{{ raise_exception("only user and assistant") }}{%- endif -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
"""
    + GENERATION
)
"""Gemma: other roles are refused."""
JSON_RESULTS = (
    """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == "tool" %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor -%}
"""
    + GENERATION
)
"""Llama 3.1: results of tools are quoted as JSON, so that they are not in the text word for word."""
LAST_RESULT_ONLY = (
    """
{%- for m in messages -%}
{%- if m.role != "tool" or loop.last -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
"""
    + GENERATION
)
"""Only the last of several results is rendered."""
BROKEN = "{% for m in messages %}{{ m.role + 1 }}{% endfor %}"
"""A template that raises an error of Python, not of Jinja."""

TWO_ENDS = """
{%- for m in messages -%}
{%- if m.role == "assistant" -%}<|START|><|BOT|><|TEXT|>{{ m.content }}<|END_TEXT|><|END|>
{%- else -%}<|START|><|USER|>{{ m.content }}<|END|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|START|><|BOT|>{%- endif -%}
"""
"""Command R7B: two control tokens end the assistant's turn, and it samples both."""
NO_ENDS = """
{%- for m in messages -%}
{%- if m.role == "assistant" -%}<|assistant|>
{{ m.content }}
{%- elif m.role == "tool" -%}<|observation|>
{{ m.content }}
{%- else -%}<|user|>
{{ m.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{% endif -%}
"""
"""GLM: nothing ends a turn but the header of the next one, which the policy samples."""
SPACED_END = """
{%- for m in messages -%}
{%- if m.role == "assistant" %} {{ m.content }} <|end|>{% else %}<|begin|>[INST] {{ m.content }} [/INST]{% endif -%}
{%- endfor -%}
"""
"""Llama 2: a space before the end, and no generation prompt."""
BROKEN_LINE_END = """
{%- for m in messages -%}
{%- if m.role == "assistant" %}### Response:
{{ m.content }}
<|EOT|>
{% else %}### Instruction:
{{ m.content }}
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}### Response:
{% endif -%}
"""
"""deepseek-coder: a line break before the end."""
OTHER_LAST_END = """
{%- for m in messages -%}
<|start|>{{ m.role }}<|message|>{{ m.content }}
{%- if loop.last and not add_generation_prompt -%}<|return|>{%- else -%}<|end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
"""gpt-oss: the last turn of a conversation ends with a token of its own, which the policy samples."""


def speaking(template, *control, **added):
    """A tokenizer with a template and further control tokens; `added` are options of the tokens, such as `rstrip`."""
    from tokenizers import AddedToken

    tokenizer = tokenizer_of(ends=True)
    tokens = [AddedToken(text, special=True, normalized=False, **added) for text in control]
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    tokenizer.chat_template = template.removeprefix("\n") if template is not TEMPLATE else template
    return tokenizer
