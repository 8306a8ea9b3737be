"""What is cleaned out of the sources' prompts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.config import Config, RunTime

Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}$", description="a code of ISO 639 such as en")]


class NearDuplicates(Config):
    """Prompts that share most of their runs of words.

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
    """The Jaccard similarity of the sets of runs."""
    same_numbers: bool = True
    """Prompts with other numbers, operators or brackets are other questions, however alike."""
    action: Literal["set_aside", "keep_together"] = "set_aside"
    """`set_aside` keeps the first of those that are alike; `keep_together` keeps all of them, on one side of the split
    into training and held-out."""


class Contamination(Config):
    """Prompts that hold a question of an evaluation set (`evaluation_sets`).

    As Tulu 3 does it (https://arxiv.org/abs/2411.15124, prompt decontamination; open-instruct's decontamination/
    search.py): a word of the question is found in a prompt when it is part of a run of 8 words that both have, and the
    prompt is contaminated when more than half of the question's words are found. Tulu 3 takes spaCy's tokens,
    punctuation among them, and leaves a training set out as a whole where more than 2% of an evaluation set are found;
    here it is words alone, and prompts. A question shorter than `ngram` must be the whole prompt.
    """

    ngram: int = Field(default=8, ge=1)
    """Words in a run."""
    overlap: float = Field(default=0.5, ge=0, lt=1)
    """The share of the question's words above which a prompt is set aside."""


class Filters(Config):
    """What prompts must be; nothing is asked where nothing is given."""

    min_words: int | None = Field(default=None, ge=1)
    """Of the prompt, system message not counted."""
    max_words: int | None = Field(default=None, ge=1)
    """Of the prompt, system message not counted."""
    languages: list[Language] = []  # noqa: RUF012 (pydantic copies defaults)
    """Codes of ISO 639 such as `[en, de]`: the most likely language must be one of them. Likelihoods are py3langid's;
    of short prompts and of those that are mostly formulas or code they say little."""
    ground_truths: bool = False
    """Have the verifier `math` judge each of its ground truths as if it were a response, the answer in a box; the
    prompt is set aside where it is not right. Other verifiers' ground truths are no responses."""

    @model_validator(mode="after")
    def _range_in_order(self) -> Filters:
        if self.min_words is not None and self.max_words is not None and self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is larger than max_words {self.max_words}")
        return self


class CleaningSpec(Config):
    """What is set aside before any response is sampled.

    Of prompts that are alike, the first source's first stays.
    """

    priority: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Sources in the order in which they keep what several have; those that are not named follow, in the order of the
    data file."""
    duplicates: Literal["text", "row"] = "text"
    """`text` sets prompts aside whose turns are those of another but for case and white space, whatever their verifiers
    and ground truths; `row` those alone that share all of it."""
    near_duplicates: NearDuplicates | None = NearDuplicates()
    """Null looks for none."""
    contamination: Contamination = Contamination()
    """How prompts are compared with the data file's `evaluation_sets`."""
    filters: Filters = Filters()
    verifier_workers: RunTime[int] = Field(default=1, ge=1)
    """Processes that judge ground truths."""

    def screening(self, *, evaluated: bool) -> ScreeningSpec | None:
        """What is asked of each prompt by itself, where there are evaluation sets or not; None: nothing."""
        if not evaluated and self.filters == Filters():
            return None
        return ScreeningSpec(
            contamination=self.contamination, filters=self.filters, verifier_workers=self.verifier_workers
        )

    @property
    def duplication(self) -> DuplicatesSpec:
        """What prompts are asked about each other."""
        return DuplicatesSpec(priority=self.priority, duplicates=self.duplicates, near_duplicates=self.near_duplicates)


class ScreeningSpec(Config):
    """The part of `CleaningSpec` that each source is asked by itself."""

    contamination: Contamination
    filters: Filters
    verifier_workers: RunTime[int]


class DuplicatesSpec(Config):
    """The part of `CleaningSpec` that is asked of all sources together."""

    priority: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    duplicates: Literal["text", "row"] = "text"
    near_duplicates: NearDuplicates | None = NearDuplicates()
