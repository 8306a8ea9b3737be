"""Prompts in frames: texts around which published datasets put their questions, and questions without a common run."""

import itertools
import random

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n",
    '\n\nRemember to put your answer on its own line after "Answer:".',
)
"""The text around the problems of DAPO-Math-17k (https://arxiv.org/abs/2503.14476)."""
R1_ZERO = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think> <answer> answer here </answer>. User: ",
    " Assistant:",
)
"""The template of DeepSeek-R1-Zero (https://arxiv.org/abs/2501.12948, table 1)."""
CODE = (
    "You are an expert programmer. You get a problem, and write a complete and correct program that solves it and "
    "passes all hidden tests. Read the input from standard input and write the answer to standard output. Do not print "
    "anything else, and do not test the program on the examples. Put all of the program between the delimiters shown "
    "here, and add no other text after it.\n### Question:\n",
    "\n### Format: Use the following starter code to write the solution, and put it within delimiters.\n"
    "```python\n# YOUR CODE HERE\n```\n### Answer: (use the format above with backticks)",
)
SUFFIX = ("", " Please reason step by step, and put your final answer within \\boxed{}.")
NONE = ("", "")


def words(count, seed=0):
    """Words of seven letters that hardly ever occur twice."""
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(count)]


def questions(count, size, seed=0):
    """Questions of `size` words without a common run."""
    every = iter(words(count * size, seed))
    return [" ".join(itertools.islice(every, size)) for _ in range(count)]


def edited(text, at, word="otherwise"):
    """The text with another word at a position."""
    own = text.split()
    own[at % len(own)] = word
    return " ".join(own)


def framed(texts, frame):
    before, after = frame
    return [f"{before}{text}{after}" for text in texts]


def pair_of(size, seed=99):
    """A frame of `size` words, half before and half after."""
    own = words(size, seed)
    half = size // 2
    return " ".join(own[:half]) + " ", " " + " ".join(own[half:])
