"""The pydantic models behind `cleaning:`, which name the prompts that are set aside before sampling."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.config import Config, RunTime

Treatment = Literal["keep", "escape", "set_aside"]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}$", description="a code of ISO 639 such as en")]


class NearDuplicates(Config):
    """The rule by which prompts that share most of their runs of words are near duplicates.

    MinHash over runs of five words, as in Lee et al. 2022 (https://arxiv.org/abs/2107.06499, appendix A), which calls
    documents duplicates from an edit similarity of 0.8 on, and in FineWeb (https://arxiv.org/abs/2406.17557), which
    aims at a Jaccard similarity of 0.75. Here that is estimated from 126 hashes, with a standard error of 0.04 at 0.8.
    Prompts are shorter than those documents, and in a short one each word may be the question (the sum of two squares,
    or their product): every word, those at the ends too, is in five runs, so that prompts which differ in one word are
    alike from 41 words on. System messages are not compared.

    Prompts of the domain precise_if are compared with those of the same constraints alone: data sets put many
    constraints to one text.
    """

    ngram: int = Field(default=5, ge=1)
    """Words in a run."""
    threshold: float = Field(default=0.8, ge=0.5, le=1)
    """Jaccard similarity of the sets of runs from which prompts are near duplicates."""
    same_numbers: bool = True
    """Count prompts with different numbers, operators or brackets as different questions, however alike they are."""
    action: Literal["set_aside", "keep_together"] = "set_aside"
    """Treatment of near duplicates: `set_aside` keeps the first of them; `keep_together` keeps all of them, on one side
    of the split into training and held-out prompts."""


class Contamination(Config):
    """The rule by which a prompt holds a question of an evaluation set (`evaluation_sets`).

    It is that of Tulu 3 (https://arxiv.org/abs/2411.15124, prompt decontamination; open-instruct's decontamination/
    search.py): a word of the question is found in a prompt when it is part of a run of 8 words that both have, and the
    prompt is contaminated when more than half of the question's words are found. Tulu 3 takes spaCy's tokens,
    punctuation among them, and leaves a training set out as a whole where more than 2% of an evaluation set are found;
    here it is words alone, and prompts. A question shorter than `ngram` must be the whole prompt.
    """

    ngram: int = Field(default=8, ge=1)
    """Words in a run."""
    overlap: float = Field(default=0.5, ge=0, lt=1)
    """Share of the question's words above which a prompt is set aside."""


class Filters(Config):
    """Conditions on single prompts; a prompt that does not meet them is set aside."""

    min_words: int | None = Field(default=None, ge=1)
    """Words of a prompt, at least, the system message not counted; None: any number."""
    max_words: int | None = Field(default=None, ge=1)
    """Words of a prompt, at most, the system message not counted; None: any number."""
    languages: list[Language] = []  # noqa: RUF012 (pydantic copies defaults)
    """Codes of ISO 639 such as `[en, de]`, one of which must be the prompt's most likely language; none: any language.
    Likelihoods are those of py3langid; they mean little for short prompts and for those that are mostly formulas or
    code."""
    ground_truths: bool = False
    """Check the ground truths of the verifier `math`: each is judged as if it were a response, the answer in a box, and
    the prompt is set aside where it is rejected. Ground truths of other verifiers are not checked."""

    @model_validator(mode="after")
    def _range_in_order(self) -> Filters:
        if self.min_words is not None and self.max_words is not None and self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is larger than max_words {self.max_words}")
        return self


class CleaningSpec(Config):
    """The prompts that are set aside before any response is sampled.

    Of prompts that are alike, the first of the first source stays.
    """

    priority: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Sources in the order in which they keep a prompt that several have; sources that are not named follow, in the
    order of the data file."""
    duplicates: Literal["text", "row"] = "text"
    """The rule by which prompts are the same: `text` compares their turns, without case and white space and whatever
    their verifiers and ground truths; `row` compares all of it, exactly."""
    near_duplicates: NearDuplicates | None = NearDuplicates()
    """Rule for near duplicates; null: they are not looked for."""
    contamination: Contamination = Contamination()
    """Rule by which a prompt holds a question of the data file's `evaluation_sets`."""
    filters: Filters = Filters()
    """Conditions on single prompts: length, language, ground truth."""
    control_tokens: Treatment = "keep"
    """Treatment of prompts whose text holds a control token of the model, such as `<|im_end|>`, which would end the
    user's turn: `keep` leaves and counts them, `escape` puts a space after the token's first character (`< |im_end|>`),
    `set_aside` sets the prompt aside. Control tokens are the tokenizer's special tokens, and those of the chat
    template."""
    verifier_workers: RunTime[int] = Field(default=1, ge=1)
    """Processes that check ground truths."""

    def screening(self, *, evaluated: bool) -> ScreeningSpec | None:
        """Return the part that concerns single prompts; None where there is nothing to check.

        Args:
            evaluated: the data file has evaluation sets.
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
        """The part that concerns all sources together."""
        return DuplicatesSpec(priority=self.priority, duplicates=self.duplicates, near_duplicates=self.near_duplicates)


class ScreeningSpec(Config):
    """The part of `CleaningSpec` that concerns single prompts; each source is screened by itself."""

    contamination: Contamination
    """Rule by which a prompt holds a question of an evaluation set."""
    filters: Filters
    """Conditions on single prompts."""
    control_tokens: Treatment
    """Treatment of prompts that hold a control token of the model."""
    verifier_workers: RunTime[int]
    """Processes that check ground truths."""


class DuplicatesSpec(Config):
    """The part of `CleaningSpec` that concerns all sources together."""

    priority: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Sources in the order in which they keep a prompt that several have."""
    duplicates: Literal["text", "row"] = "text"
    """Rule by which prompts are the same: by their text, or by all of the row."""
    near_duplicates: NearDuplicates | None = NearDuplicates()
    """Rule for near duplicates; null: they are not looked for."""
