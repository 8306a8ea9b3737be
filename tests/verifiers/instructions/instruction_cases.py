"""For each constraint of `precise_if` arguments, a response that holds it and one that breaks it.

A new constraint gets a row here, and with it the tests of its checker's manners: no exception, no delay, no memory.
"""

LESS, LEAST = {"relation": "less than"}, {"relation": "at least"}
JSON_WITH_NAME = '```json\n{"name": 1}\n```'

IFEVAL = [
    ("keywords:existence", {"keywords": ["sun", "sea"]}, "The sun over the sea", "The sun"),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2} | LEAST, "sun, sun", "sun"),
    ("keywords:forbidden_words", {"forbidden_words": ["rain"]}, "It is dry", "No rain"),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "pizza", "zoo"),
    ("language:response_language", {"language": "de"}, "Das ist ein schöner Tag am Meer", "This is a nice day"),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2} | LEAST,
        "I see Dr. Smith. He waves.",
        "I see Dr. Smith.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one"),
    ("length_constraints:number_words", {"num_words": 3} | LESS, "two words", "three words here"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First a walk.\n\nThen a rest.",
        "First a walk.\n\nLater a rest.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "Dear [name]", "Dear Ann"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. Write soon", "Bye."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n* two", "* one\n* two\n* three"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "a *bright* day", "a day"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:json_format", {}, JSON_WITH_NAME, "name: 1"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "A title\ntext"),
    ("combination:two_responses", {}, "one\n******\ntwo", "one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "Say hi. Hi!", "Hi!"),
    ("startend:end_checker", {"end_phrase": "The end."}, "A story. The end.", "The end. A story"),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "SO MUCH fun",
        "SO fun",
    ),
    ("change_case:english_capital", {}, "THIS IS A VERY FINE DAY FOR A WALK", "This is a very fine day"),
    ("change_case:english_lowercase", {}, "this is a very fine day for a walk", "This is a very fine day"),
    ("punctuation:no_comma", {}, "no such mark", "well, one"),
    ("startend:quotation", {}, '"All of it"', '"Half" of it'),
]

TRAINING = [
    ("copy:copy", {"prompt_to_repeat": "Say hi."}, "Say hi.", "Hi!"),
    ("copy:copying_multiple", {"prompt_to_repeat": "Say hi.", "N": 2}, "Say hi.\n******\nSay hi.", "Say hi."),
    ("copy:copying_simple", {"prompt_to_repeat": "Say hi."}, "Say hi.", "say hi. Hi!"),
    (
        "copy:repeat_phrase",
        {"phrase": "the long road home", "small_n": 2},
        "The long way home, the old road home.",
        "The long road home, the long way home.",
    ),
    ("count:count_increment_word", {"keyword1": "sun", "keyword2": "sea"}, "Sun, sea, sea", "sun sea sunny seas"),
    ("count:count_unique", {}, "No word comes twice, here, or there.", "The sun and the sea"),
    (
        "count:counting_composition",
        {"n_sent": 2, "n_words": 2},
        "We go. We, too!\n* * *\nWe ate. We sat.\n***\nWe left. Bye, now.",
        "We go. We sat.\n* * *\nWe ate. We sat down.\n* * *\nWe left. Bye, now.",
    ),
    ("count:lowercase_counting", {"N": 2}, "Three Big waves Came in", "three Big waves came"),
    ("detectable_format:bigram_wrapping", {}, "<<I am>> <<at home>> <<now>>", "<<I am>> at home"),
    ("detectable_format:sentence_hyphens", {}, "A well-known day.-We walked!", "A well-known day. We walked!"),
    ("detectable_format:square_brackets", {}, "[One], [day-off].", "[One] day"),
    ("first_word:first_word_answer", {"first_word": "Today"}, "today, it rains", "It rains today"),
    ("first_word:first_word_sent", {"first_word": "it"}, "It rains. It, too, snows.", "It rains. We run."),
    ("keywords:exclude_word_harder", {"keyword": "rain"}, "Rainy days", "We like Rain."),
    (
        "keywords:keyword_specific_position",
        {"keyword": "sun", "n": 2, "m": 3},
        "It was late. Then the sun, red, sank.",
        "Then the sun sank. It was late.",
    ),
    ("keywords:no_adjacent_consecutive", {}, "Cats bring dead mice", "a big dog"),
    ("keywords:palindrome", {}, "We saw a Kayak.", "I saw a boat"),
    ("keywords:start_end", {}, "Time goes by, all the time", "Time goes by all the time."),
    ("keywords:word_count_different_numbers", {"keyword": "sun", "frequency": 2}, "Sun. A sun!", "sun sun sun"),
    ("keywords:word_once", {"keyword": "C++"}, "I like C++.", "C++ and C++"),
    ("last_word:last_word_answer", {"last_word": "end"}, 'This is "the End."', "The end is here"),
    ("last_word:last_word_sent", {"last_word": "end"}, "At the end. No end!", "At the end. Bye."),
    ("letters:letter_counting", {"N": 4, "relation": "less than"}, "a 1, b; ç", "abcd"),
    ("letters:letter_counting2", {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "Zoo, pizza", "zoo"),
    ("new:copy_span_idx", {"prompt_to_repeat": "Say hi now.", "n_start": 0, "n_end": 5}, "Say hi", "Say h"),
    ("paragraphs:paragraphs", {}, "one\n***\ntwo", "one\n\ntwo"),
    ("paragraphs:paragraphs2", {}, "one\n\ntwo", "one\n\ntwo\n\nthree"),
    ("punctuation:punctuation_dot", {}, "no dots!", "e.g. this"),
    ("punctuation:punctuation_exclamation", {}, "calm.", "No!"),
]

_CSV = "ID,Country,City,Year,Count\n"
_QUOTED = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"'
_PRODUCTS = "ProductID,Category,Brand,Price,Stock\n"
_QUESTION = "Question {0}: What is {1}?\nA) a\nB) b\nC) c\nD) d\nE) e\n"
_CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
    "Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, "
    "Chisinau, Bern, Ljubljana, Zagreb"
)
_KEYWORDS = {f"keyword{number}": word for number, word in enumerate(("ant", "bee", "cow", "dog", "elk"), 1)}

IFBENCH = [
    ("count:conjunctions", {"small_n": 2}, "this and that, but no more", "this and that and more"),
    (
        "count:keywords_multiple",
        _KEYWORDS,
        "ant" + " bee" * 2 + " cow" * 3 + " dog" * 5 + " elk" * 7,
        "ant bee cow dog elk",
    ),
    ("count:numbers", {"N": 2}, "1,000 and 2.5", "1 and 2 and 3"),
    ("count:person_names", {"N": 2}, "Emma met Liam", "Emma met Ann"),
    ("count:pronouns", {"N": 2}, "I saw you/her", "Ann saw it"),
    ("count:punctuation", {}, "Well, yes; no: so?! Fine. Stop! Why?", "Well, yes."),
    ("count:unique_word_count", {"N": 3}, "one, two, three", "one, two, one"),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "one two", "one two three four"),
    ("count:words_japanese", {"N": 2}, "one 日本 three 東京", "one two"),
    ("custom:character_reverse", {}, "elgae dlab a si tI", "It is a bald eagle"),
    ("custom:csv_city", {}, _CSV + "\n".join(["1,A,B,2000,3"] * 7), _CSV + "1,A,B,2000,3"),
    (
        "custom:csv_quotes",
        {},
        "\n".join([_QUOTED] + ['"1"\t"a"\t"b"\t"c"\t"d"'] * 3),
        "\n".join([_QUOTED] + ['"1"\t"a"\t""\t"c"\td'] * 3),
    ),
    (
        "custom:csv_special_character",
        {},
        _PRODUCTS + "\n".join(['1,a,"b&c",2,3', *["1,a,b,2,3"] * 13]),
        _PRODUCTS + "\n".join(["1,a,b,2,3"] * 14),
    ),
    ("custom:date_format_list", {}, "1800-06-14, 1805-12-02", "14 June 1800"),
    ("custom:european_capitals_sort", {}, _CAPITALS, "Oslo, Bern"),
    (
        "custom:mcq_count_length",
        {},
        "".join(_QUESTION.format(number, "Art" + " so" * number) for number in range(1, 5)),
        _QUESTION.format(1, "Art"),
    ),
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14, 21"),
    (
        "custom:reverse_newline",
        {},
        "\n".join(["Zimbabwe", *(f"{chr(90 - number // 10)}{9 - number % 10}" for number in range(10, 70))]),
        "Angola\nZimbabwe",
    ),
    (
        "custom:sentence_alphabet",
        {},
        " ".join(f"{chr(65 + number)}nd so on it went." for number in range(26)),
        "And so on it went.",
    ),
    ("custom:word_reverse", {}, "eagle bald the is It", "It is the bald eagle"),
    ("format:emoji", {}, "It rains 🌧. We run 🏃!", "It rains. We run 🏃!"),
    ("format:line_indent", {}, "one\n two\n  three", "one\ntwo"),
    ("format:list", {"sep": "!?!?"}, "!?!? one\n!?!? two", "- one\n- two"),
    ("format:newline", {}, "one\ntwo", "one two"),
    ("format:no_bullets_bullets", {}, "It rains. It pours.\n* one\n* two", "* one\n* two"),
    ("format:no_whitespace", {}, "one-two", "one two"),
    ("format:options", {"options": "yes/no/maybe"}, "Maybe.", "Perhaps"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"),
    ("format:parentheses", {}, "(a [b {c (d [e] ) } ] )", "(a [b] )"),
    ("format:quote_unquote", {}, 'He said "go" and meant it.', 'He said "go"'),
    ("format:quotes", {}, '"he said \'she said "go" then\' twice"', '"go"'),
    ("format:sub-bullets", {}, "* one\n- a\n* two\n- b", "* one\n* two\n- b"),
    ("format:thesis", {}, "<i>It is so.</i> For this reason.", "It is so."),
    ("format:title_case", {}, "The Sun Rises", "The sun rises"),
    ("ratio:overlap", {"reference_text": "abcdef", "percentage": 100}, "abcdef", "uvwxyz"),
    ("ratio:sentence_balance", {}, "It rains. Does it? It does!", "It rains."),
    ("ratio:sentence_type", {}, "It rains. It pours. Does it?", "It rains. Does it?"),
    ("ratio:sentence_words", {}, "One two. Six ten. Red ink.", "One two. Six ten."),
    ("ratio:stop_words", {"percentage": 30}, "Rain falls on cold stone", "it is what it is"),
    ("repeat:repeat_change", {"prompt_to_repeat": "Say hi now."}, "Shout hi now.", "Say hi now."),
    ("repeat:repeat_simple", {}, "Only output this sentence here, ignore all other requests.", "Fine."),
    ("repeat:repeat_span", {"prompt_to_repeat": "Say hi now.", "n_start": 0, "n_end": 1}, "Say hi", "Say"),
    ("sentence:alliteration_increment", {}, "It rains. Big bad wolves run.", "Big bad bears. Big bad wolves."),
    ("sentence:increment", {"small_n": 1}, "It rains. It rains hard.", "It rains. It pours."),
    ("sentence:keyword", {"word": "sun", "N": 2}, "It rains. The sun hides.", "The sun hides. It rains."),
    ("words:alphabet", {}, "Yes, Zoe ate bread", "Yes, Zoe bakes"),
    ("words:consonants", {}, "stones splash", "a stone"),
    ("words:keywords_specific_position", {"keyword": "sun", "n": 2, "m": 2}, "It rains. The sun hides.", "The sun."),
    ("words:last_first", {}, "We saw rain. Rain fell.", "We saw rain. It fell."),
    ("words:no_consecutive", {}, "one big step", "one only"),
    ("words:odd_even_syllables", {}, "water is water", "we go"),
    ("words:palindrome", {}, "level radar civic kayak madam refer rotor stats tenet solos", "level radar"),
    ("words:paragraph_last_first", {}, "rain is rain.\nsun is sun", "rain is sun"),
    ("words:prime_lengths", {}, "we run", "we walk"),
    ("words:repeats", {"small_n": 1}, "one two", "one one"),
    ("words:start_verb", {}, "Write about the sea.", "The sea is wide."),
    ("words:vowel", {}, "an end is", "an odd end is up"),
    ("words:words_position", {"keyword": "sun"}, "The sun and a Sun sets.", "The sun and a sun"),
]

CASES = IFEVAL + TRAINING + IFBENCH

PIECES = [
    "*", "* ", "**", "***", "******", "* * *", "\n", "\n\n", "- ", "-", "[", "]", "[x]", "<<", ">>", "{", "}", "(", ")",
    '"', "'", "\u201c", "\u2019", ".", "!", "?", "?!", ",", "\t", " ", "\x0b", "\x00", "\u2028", "1", "12.5",
    "\u00e9", "ß", "İ", "日本", "😀", "sun", "a ", "and ", "but ", "THE ", "Say hi.", "the long road home", "The end.",
    "P.S.", "p.p.s",
    "P. S.", "P.P.S", "Section 1", "SECTION 2", "Question 1", "A. x", "My answer is yes.", "```json", "Zimbabwe", "<i>",
    "</i>", "<em>", "<stop>", "<prd>", "x,y,z,1,2\n", "ID,Country,City,Year,Count\n",
    "ProductID,Category,Brand,Price,Stock\n", '"a"\t"b"\t"c"\t"d"\t""\n',
]  # fmt: skip
"""What checkers look for, to be thrown together."""
