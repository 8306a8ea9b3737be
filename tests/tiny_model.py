"""A language model small enough to be built, served and trained within a test: random weights, a real tokenizer."""

from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps.",
    "Write a sentence about the sea, the river and the rain.",
    "What is the sum of seven and eleven? The answer is eighteen.",
    "Answer in one word, without any comma.",
]


def build(folder: Path, seed: int = 0, *, tied: bool = True, ends: bool = True, context: int = 512) -> Path:
    """Save a Llama of some 150,000 random bfloat16 weights, its tokenizer and chat template; equal for equal seeds.

    Where it is `tied`, the head is the embedding; unless it `ends`, every response goes on up to its limit.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer_of(ends=ends)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the smallest that the engine's CPU kernels take
        max_position_embeddings=context,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tokenizer_of(*, ends):
    """The tokenizer of all tiny models, of some 300 tokens; without an end token unless it `ends`."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    special = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
    bpe.train_from_iterator(SENTENCES, vocab_size=300, min_frequency=2, special_tokens=special, show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        eos_token="<|im_end|>" if ends else None,
        pad_token="<|pad|>",  # noqa: S106 a token of text
        chat_template=TEMPLATE,
    )
