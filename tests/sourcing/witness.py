"""Writes an answer that fulfils the constraints of a generated prompt, to show that there is one.

The answer is a list of sentences, each a list of words. Fillers are English words with w, so that few neighbours start
with consecutive letters; words that are asked for stand between fillers. Then comes the layout, and the marks around
words. What it writes is judged by the verifier: a wrong answer shows as a failing test, never as a passing one.
"""

from collections import Counter

W_WORDS = (
    "we went with warm wishes when winter winds were wild while women who work walked west wearing white wool "
    "which would wait wherever water was wide why worry wise workers would want when we wanted wooden wagons "
    "weekly writers wrote wonderful words without weapons within walls where weary wolves wandered whenever "
    "weather warmed wheat willows waved whispering welcome waves washed whole wharves windows widened worlds "
    "whoever wins wakes wishing weeks were weekends wealth wanes wisdom waxes wounds wither warriors wept "
    "watchful watchmen waited whistling wives wove wreaths widows wondered workshops worked wasps whirled"
)
T_WORDS = (
    "the that this they then there their them these those to take time through town thing turn tree two think try "
    "talk thank three though tall tired thought took tents told true table tail taste touch trust travel twelve "
    "teach tell turned tools tasks tales tender together toward taking telling turning taught tiny towers trails"
)
H_WORDS = (
    "he has had have his her him how home house hand hope help heart head hot high hard hear held happy "
    "hours half harvest hat heavy height hence hero hills hold holiday honest horse hotel however human hungry"
)
PLAIN_WORDS = (
    "this is a very fine day for a walk and we have been out there with all of our friends who said that it would "
    "not be so good as it was before but they were wrong about the weather which has always been like this in spring"
)
FILLERS = tuple(words.split() for words in (W_WORDS, T_WORDS, H_WORDS, PLAIN_WORDS))
BY_LETTER = {
    "b": "web wobble wobbly webbed weblog wobbled wallaby",
    "f": "wife wolf waffle wafer whiff waif wifely",
    "g": "wing wagon wage wiggle waggle wig wedge",
    "k": "walk week work wake wink weak wick wok",
    "m": "warm woman wisdom warmth wampum worm womb",
    "p": "wipe whip weep wrap weapon warp whopper",
    "v": "wave weave wolves wives waive waver woven wavy",
    "w": "wow willow window widow",
    "y": "why way wavy weary worry windy witty worthy",
}
PALINDROME = "level"


class Answer:
    """An answer under construction."""

    def __init__(self, ids, kwargs, fillers, least):
        self.asked = dict(zip(ids, kwargs, strict=True))
        self.fillers, self.least = fillers, least
        self.unique = "count:count_unique" in self.asked
        self.used = Counter(dict.fromkeys(fillers, 0))

    def get(self, name, key, default=None):
        return self.asked.get(name, {}).get(key, default)

    def asked_for(self):
        """The words that constraints are about, which come where they are wanted and nowhere else."""
        values = [value for kwargs in self.asked.values() for value in kwargs.values()]
        return {word for value in values for word in (value if isinstance(value, list) else [value])}

    def filler(self):
        """The least used filler, so that none comes twice before all have come."""
        word = min((each for each in dict.fromkeys(self.fillers) if each not in self.asked_for()), key=self.used.get)
        self.used[word] += 1
        return word

    def wanted(self):
        """The words to be placed, each as often as asked for."""
        counts = Counter()
        for word in self.get("keywords:existence", "keywords", []):
            counts[word] = max(counts[word], 1)
        for name, times in (
            ("keywords:frequency", "frequency"),
            ("keywords:word_count_different_numbers", "frequency"),
        ):
            if name in self.asked:
                counts[self.asked[name]["keyword"]] = self.asked[name][times]
        if "keywords:word_once" in self.asked:
            counts[self.asked["keywords:word_once"]["keyword"]] = 1
        if "count:count_increment_word" in self.asked:
            counts[self.asked["count:count_increment_word"]["keyword1"]] = 1
            counts[self.asked["count:count_increment_word"]["keyword2"]] = 2
        if "keywords:keyword_specific_position" in self.asked:
            word = self.asked["keywords:keyword_specific_position"]["keyword"]
            counts[word] = max(0, counts[word] - 1)
        if "keywords:palindrome" in self.asked:
            counts[PALINDROME] = 1
        words = list(counts.elements())
        for name in ("keywords:letter_frequency", "letters:letter_counting2"):
            if name in self.asked:
                words += self.lettered(self.asked[name]["letter"], self.asked[name]["let_frequency"])
        return words

    def lettered(self, letter, times):
        words = []
        for word in BY_LETTER[letter].split() * 2:
            if times > 0 and word not in self.asked_for() and not (self.unique and self.used[word]):
                words.append(word)
                self.used[word] += 1
                times -= word.count(letter)
        return words

    def sentences(self):
        """Lists of words that hold what is asked of words, sentences and their length."""
        if "count:counting_composition" in self.asked:
            return self.composed()
        wanted, phrases = self.wanted(), self.phrases()
        count = max(1, len(phrases), self.fewest_sentences())
        position = self.asked.get("keywords:keyword_specific_position")
        made = []
        for number in range(count):
            words = [self.opening(number)] if self.opening(number) else []
            if position and position["n"] == number + 1:
                while len(words) < position["m"] - 1:
                    words.append(self.filler())
                words.append(position["keyword"])
            if number < len(phrases):
                words += [self.filler(), *phrases[number]]
            for word in wanted[number::count]:
                words += [self.filler(), word]
            words += [self.filler() for _ in range(self.marks() if number == 0 else 0)]
            words += [self.filler()] if count > 1 or not words else []
            made.append(words)
        self.lengthen(made)
        for number, words in enumerate(made):
            words.extend(self.closing(number == len(made) - 1, made[0][0]))
        return made

    def composed(self):
        sentences, words = self.asked["count:counting_composition"].values()
        position = self.asked.get("keywords:keyword_specific_position")
        wanted, made = self.wanted(), []
        for number in range(3 * sentences):
            opening = self.opening(number)
            line = [opening] if opening else []
            while len(line) < words:
                if position and (position["n"], position["m"]) == (number + 1, len(line) + 1):
                    line.append(position["keyword"])
                else:
                    line.append(wanted.pop() if wanted else self.filler())
            made.append(line)
        return made

    def opening(self, number):
        first = self.get("first_word:first_word_sent", "first_word")
        return first or (self.get("first_word:first_word_answer", "first_word") if number == 0 else None)

    def closing(self, last, first_word):
        if "last_word:last_word_sent" in self.asked:
            return [self.asked["last_word:last_word_sent"]["last_word"]]
        if last and "last_word:last_word_answer" in self.asked:
            return [self.asked["last_word:last_word_answer"]["last_word"]]
        return [first_word] if last and "keywords:start_end" in self.asked else []

    def phrases(self):
        asked = self.asked.get("copy:repeat_phrase")
        if asked is None:
            return []
        first, *middle, last = asked["phrase"].split()
        return [[first, "whatever", *middle[1:], last] for _ in range(asked["small_n"])]

    def marks(self):
        """How many words are to be marked; they stand in the first sentence."""
        placeholders = self.get("detectable_content:number_placeholders", "num_placeholders", 0)
        return placeholders + self.get("detectable_format:number_highlighted_sections", "num_highlights", 0)

    def fewest_sentences(self):
        counts = [self.get("keywords:keyword_specific_position", "n", 1)]
        counts += [self.get("length_constraints:number_paragraphs", "num_paragraphs", 1)]
        counts += [self.get("length_constraints:nth_paragraph_first_word", "num_paragraphs", 1)]
        counts += [self.get("detectable_format:number_bullet_lists", "num_bullets", 1)]
        counts += [self.get("detectable_format:multiple_sections", "num_sections", 1)]
        counts += [2 for name in ("paragraphs:paragraphs", "paragraphs:paragraphs2") if name in self.asked]
        if self.get("length_constraints:number_sentences", "relation") == "at least":
            counts.append(self.asked["length_constraints:number_sentences"]["num_sentences"])
        return max(counts)

    def lengthen(self, made):
        words, letters = self.least, 0
        if self.get("length_constraints:number_words", "relation") == "at least":
            words = self.asked["length_constraints:number_words"]["num_words"]
        if self.get("letters:letter_counting", "relation") == "at least":
            letters = self.asked["letters:letter_counting"]["N"]
        while sum(map(len, made)) < words or sum(len(word) for line in made for word in line) < letters:
            made[-1].append(self.filler())

    def cased(self, line, number):
        """The words of a sentence in the case that is asked for."""
        if "change_case:english_capital" in self.asked:
            return [word.upper() for word in line]
        if "change_case:english_lowercase" in self.asked:
            return line
        if "count:lowercase_counting" in self.asked:
            line = [word.capitalize() for word in line]
        loud = self.asked.get("change_case:capital_word_frequency")
        if loud and loud["capital_relation"] == "at least" and number == 0:
            while len(line) < loud["capital_frequency"]:
                line = [*line, self.filler()]
            line = [word.upper() for word in line[: loud["capital_frequency"]]] + line[loud["capital_frequency"] :]
        return [line[0][0].upper() + line[0][1:], *line[1:]]

    def text(self):
        """The whole answer."""
        stop = "." if "punctuation:punctuation_dot" not in self.asked else "!"
        stop = "?" if stop == "!" and "punctuation:punctuation_exclamation" in self.asked else stop
        lines = [self.marked(self.cased(line, number)) for number, line in enumerate(self.sentences())]
        ended = [line + stop for line in lines]
        if "keywords:start_end" in self.asked:
            ended[-1] = lines[-1]
        if "detectable_format:bigram_wrapping" in self.asked:
            ended = [_bigrams(" ".join(line.split()), stop) for line in [" ".join(lines)]]
        text = self.laid_out(ended)
        if "detectable_format:title" in self.asked:
            text = f"<<{self.case_of('Wow')}>>\n{text}"
        if "detectable_content:postscript" in self.asked:
            text += self.case_of("\n\nP.S. Writing")
        if "startend:end_checker" in self.asked:
            gap = "-" if "detectable_format:sentence_hyphens" in self.asked else " "
            text += gap + self.asked["startend:end_checker"]["end_phrase"]
        quotes = '"\n{}"' if "detectable_format:number_bullet_lists" in self.asked else '"{}"'
        return quotes.format(text) if "startend:quotation" in self.asked else text

    def case_of(self, text):
        if "change_case:english_capital" in self.asked:
            return text.upper()
        return text.lower() if "change_case:english_lowercase" in self.asked else text

    def marked(self, words):
        words = list(words)
        if "detectable_format:square_brackets" in self.asked:
            return " ".join(f"[{word}]" for word in words)
        spare = sorted(range(len(words)), key=lambda number: words[number].lower() not in self.fillers)
        if not getattr(self, "placed", False):
            self.placed = True
            marks = (
                ("[{}]", self.get("detectable_content:number_placeholders", "num_placeholders", 0)),
                ("*{}*", self.get("detectable_format:number_highlighted_sections", "num_highlights", 0)),
            )
            for mark, count in marks:
                for _ in range(count):
                    place = spare.pop(0)
                    words[place] = mark.format(words[place])
        return " ".join(words)

    def laid_out(self, ended):
        if "detectable_format:sentence_hyphens" in self.asked:
            return "-".join(ended)
        for name, key, divider in (
            ("length_constraints:number_paragraphs", "num_paragraphs", "\n***\n"),
            ("length_constraints:nth_paragraph_first_word", "num_paragraphs", "\n\n"),
            ("paragraphs:paragraphs", 2, "\n***\n"),
            ("paragraphs:paragraphs2", 2, "\n\n"),
            ("count:counting_composition", 3, "\n* * *\n"),
        ):
            if name in self.asked:
                count = key if isinstance(key, int) else self.asked[name][key]
                size = self.get("count:counting_composition", "n_sent", 1)
                parts = _split(ended, count, size)
                return divider.join(self.opened(" ".join(part), n) for n, part in enumerate(parts, 1))
        if "detectable_format:number_bullet_lists" in self.asked:
            count = self.asked["detectable_format:number_bullet_lists"]["num_bullets"]
            ended = ["* " + " ".join(part) for part in _split(ended, count)]
        if "detectable_format:multiple_sections" in self.asked:
            sections = self.asked["detectable_format:multiple_sections"]
            name, parts = sections["section_spliter"], _split(ended, sections["num_sections"])
            return "\n".join(f"{name} {number}\n" + "\n".join(part) for number, part in enumerate(parts, 1))
        return "\n".join(ended) if "detectable_format:number_bullet_lists" in self.asked else " ".join(ended)

    def opened(self, paragraph, number):
        asked = self.asked.get("length_constraints:nth_paragraph_first_word")
        if asked and asked["nth_paragraph"] == number:
            return f"{self.case_of(asked['first_word'].capitalize())} {paragraph}"
        return paragraph


def _split(items, count, size=1):
    """Items in `count` parts, in order, all but the last of `size`."""
    last = (count - 1) * size
    return [*(items[start : start + size] for start in range(0, last, size)), items[last:]]


def _bigrams(text, stop):
    words = text.split()
    pairs = [" ".join(words[number : number + 2]) for number in range(0, len(words), 2)]
    return " ".join(f"<<{pair}>>" for pair in pairs)


def answers(ids, kwargs):
    """Answers that are meant to fulfil the constraints: what is taken for English differs with words and length."""
    for least in (6, 18, 36, 60):
        for fillers in FILLERS:
            yield Answer(ids, kwargs, fillers, least).text()
