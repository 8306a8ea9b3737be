"""Defines the pydantic models of `cleaning:`, which select the prompts that are dropped before sampling."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.config.loading import Config, RunTime

Treatment = Literal["keep", "escape", "set_aside"]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}$", description="a code of ISO 639 such as en")]


class NearDuplicates(Config):
    """The rule for near duplicates: prompts that share most of their n-grams.

    MinHash over n-grams of five words, as in Lee et al. 2022 (https://arxiv.org/abs/2107.06499, appendix A), where
    documents with an edit similarity of at least 0.8 are duplicates, and in FineWeb (https://arxiv.org/abs/2406.17557),
    which aims at a Jaccard similarity of 0.75. Here the similarity is estimated from 126 hashes, with a standard error
    of 0.04 at 0.8. Prompts are shorter than those documents, and in a short prompt a single word can change the
    question (the sum of two squares, or their product). Every word, including those at the ends, is in five n-grams, so
    that prompts that differ in one word are near duplicates if they have at least 41 words. System messages are not
    compared, and neither are frames: a template of the source, or other text that many prompts of a source share around
    their own text, such as examples or the rules of a puzzle (`tasks.cleaning.frames`).

    Prompts of the domain precise_if are only compared with prompts that have the same constraints, because datasets
    combine one text with many different constraints.
    """

    ngram: int = Field(default=5, ge=1)
    """Number of words in an n-gram."""
    threshold: float = Field(default=0.8, ge=0.5, le=1)
    """Jaccard similarity of the n-gram sets at or above which prompts are near duplicates."""
    same_numbers: bool = True
    """If true, prompts with different numbers, operators, brackets, units after a number, or nesting of lines of code
    are different questions, however similar they are."""
    action: Literal["set_aside", "keep_together"] = "set_aside"
    """Treatment of near duplicates: `set_aside` keeps the first of them; `keep_together` keeps all of them, and assigns
    them all to training or all to the held-out prompts."""


class Contamination(Config):
    """The rule that decides whether a prompt contains a question of an evaluation set (`evaluation_sets`).

    It is the rule of Tulu 3 (https://arxiv.org/abs/2411.15124, prompt decontamination; open-instruct's
    decontamination/search.py): a word of the question is found in a prompt if it is part of an 8-gram that both
    contain, and the prompt is contaminated if more than half of the question's words are found. Tulu 3 uses spaCy
    tokens, including punctuation, and drops a whole training set if more than 2% of an evaluation set are found. Here
    only words count, and single prompts are dropped. A question shorter than `ngram` must be the whole prompt. Frames
    do not count: templates, and other text that many prompts of a source or questions of a set share around their own
    text (`tasks.cleaning.frames`).
    """

    ngram: int = Field(default=8, ge=1)
    """Number of words in an n-gram."""
    overlap: float = Field(default=0.5, ge=0, lt=1)
    """Share of the question's words above which a prompt is dropped."""


class Filters(Config):
    """Conditions on single prompts. A prompt that does not meet them is dropped."""

    min_words: int | None = Field(default=None, ge=1)
    """Optional. Minimum number of words of a prompt, not counting the system message. If null, there is no minimum."""
    max_words: int | None = Field(default=None, ge=1)
    """Optional. Maximum number of words of a prompt, not counting the system message. If null, there is no maximum."""
    languages: list[Language] = []  # noqa: RUF012 (pydantic copies defaults)
    """ISO 639 codes such as `[en, de]`, one of which must be the prompt's most likely language. If empty, any language
    is accepted. The likelihoods of py3langid are unreliable for short prompts and for prompts that are mostly formulas
    or code."""
    ground_truths: bool = False
    """If true, check the ground truths of the verifier `math`: each is verified as if it were a response, with the
    answer in a box, and the prompt is dropped if it is rejected. Ground truths of other verifiers are not checked."""

    @model_validator(mode="after")
    def _check_range(self) -> Filters:
        if self.min_words is not None and self.max_words is not None and self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is larger than max_words {self.max_words}")
        return self


class CleaningSpec(Config):
    """The prompts that are dropped before any response is sampled.

    Of duplicates, the first prompt of the first source is kept.
    """

    priority: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Sources in the order of priority: of duplicates, the prompt of the first source is kept. Sources that are not
    listed follow in the order of the data file."""
    duplicates: Literal["text", "row"] = "text"
    """Rule for exact duplicates: `text` compares the messages, ignoring case, white space, verifiers and ground truths,
    but not the case of units after a number (mW, MW) or the nesting of lines of code; `row` compares everything,
    exactly."""
    near_duplicates: NearDuplicates | None = NearDuplicates()
    """Optional. Rule for near duplicates. If null, near duplicates are not removed."""
    contamination: Contamination = Contamination()
    """Rule that decides whether a prompt contains a question of the data file's `evaluation_sets`."""
    filters: Filters = Filters()
    """Conditions on single prompts: length, language, ground truth."""
    control_tokens: Treatment = "keep"
    """Treatment of prompts whose text contains a control token of the model, such as `<|im_end|>`, which would end the
    user's turn: `keep` leaves and counts them, `escape` inserts a space after the token's first character
    (`< |im_end|>`), `set_aside` drops the prompt. Control tokens are the tokenizer's special tokens and the control
    tokens of the chat template."""
    verifier_workers: RunTime[int] = Field(default=1, ge=1)
    """Number of processes that check ground truths."""

    def screening(self, *, evaluated: bool) -> ScreeningSpec | None:
        """Return the options for single prompts, or None if there is nothing to check.

        Args:
            evaluated: True if the data file has evaluation sets.
        """
        if not evaluated and self.filters == Filters() and self.control_tokens == "keep":
            return None
        return ScreeningSpec(
            contamination=self.contamination,
            filters=self.filters,
            control_tokens=self.control_tokens,
            verifier_workers=self.verifier_workers,
        )

    @property
    def duplication(self) -> DuplicatesSpec:
        """The options that concern all sources together."""
        return DuplicatesSpec(priority=self.priority, duplicates=self.duplicates, near_duplicates=self.near_duplicates)


class ScreeningSpec(Config):
    """The options of `CleaningSpec` that concern single prompts. Each source is screened separately."""

    contamination: Contamination
    """Rule that decides whether a prompt contains a question of an evaluation set."""
    filters: Filters
    """Conditions on single prompts."""
    control_tokens: Treatment
    """Treatment of prompts that contain a control token of the model."""
    verifier_workers: RunTime[int]
    """Number of processes that check ground truths."""
    templates: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Templates of the sources (`columns.template`), which are not part of a question."""


class DuplicatesSpec(Config):
    """The options of `CleaningSpec` that concern all sources together."""

    priority: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Sources in the order of priority."""
    duplicates: Literal["text", "row"] = "text"
    """Rule for exact duplicates: by their text, or by the whole row."""
    near_duplicates: NearDuplicates | None = NearDuplicates()
    """Optional. Rule for near duplicates. If null, near duplicates are not removed."""
    templates: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Templates of the sources (`columns.template`). Near duplicates are searched in what they are put around."""
