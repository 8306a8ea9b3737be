"""Contains the topics of the generators: short tasks, each with four words that an answer is likely to use.

The words feed the keyword constraints. They are separate lowercase words, and no word is part of another of its topic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tasks.sourcing.generators import TooFewPromptsError


class Topic(NamedTuple):
    """A short task, and four words that an answer is likely to use."""

    task: str
    words: tuple[str, str, str, str]


_TOPICS = """
Describe a walk along the beach.|sand wave shell gull
Write a few sentences about your favourite season.|leaf snow sun wind
Explain why people like to drink tea.|cup warm leaf morning
Tell me about a dog that gets lost and comes home.|street bark owner door
Describe a busy market in the morning.|fruit crowd price fish
Write a short note to thank a teacher.|lesson school kind learn
Give advice to someone who cannot sleep.|bed quiet night rest
Explain how to boil an egg.|water pot minute shell
Write a short story about a lighthouse.|lamp storm ship rock
Describe your ideal breakfast.|bread egg coffee juice
Explain why the sky looks blue.|light air sun colour
Write a short letter to a friend who moved away.|miss visit city train
Recommend a hobby for a rainy day.|paint book window music
Describe a cat that watches birds.|tree tail window quiet
Write a few lines about the moon.|night silver tide sky
Explain how plants grow.|seed water root light
Write a message that invites a neighbour to dinner.|table soup evening bring
Describe a train journey through the mountains.|tunnel snow window valley
Give three reasons to read books.|story learn page quiet
Write about the first day at a new job.|desk team nervous coffee
Explain what a library is for.|book quiet borrow read
Describe an old bicycle in a garage.|rust wheel chain dust
Write a short poem about rain.|cloud roof drop grey
Tell a child why brushing teeth matters.|clean sugar smile morning
Describe a small island.|palm boat sea bird
Explain how to plant a tomato.|soil water sun pot
Write a product description for a warm coat.|wool winter pocket button
Tell a story about a robot that learns to cook.|kitchen recipe burn smile
Describe the sounds of a forest.|bird leaf stream wind
Explain how to make a paper plane.|fold wing nose throw
Write a short review of a pizza restaurant.|cheese oven crust waiter
Give tips for saving money at home.|budget light shop plan
Describe a football match.|goal crowd ball referee
Explain what friends are for.|help laugh trust listen
Write a short speech for a birthday.|cake year wish friend
Describe a garden in spring.|flower bee green rain
Explain how to wash a car.|water soap sponge wheel
Tell a story about a lost key.|pocket door search find
Write a few sentences about bread.|flour oven crust butter
Describe a snowy village.|roof smoke path cold
Explain why sleep is important.|brain rest dream energy
Write a note that apologises for being late.|traffic sorry wait clock
Describe a painter at work.|brush colour canvas light
Explain how to make lemonade.|sugar ice glass sour
Write about a grandmother's kitchen.|spice pot apron story
Describe a storm at sea.|wave thunder sail captain
Give advice for a job interview.|prepare smile question shirt
Explain what a map shows.|road river scale north
Write a short story about two brothers and a boat.|lake oar storm shore
Describe a quiet Sunday.|coffee newspaper nap garden
Explain how bees make honey.|flower hive wax sweet
Write a weather report for a summer day.|sunny breeze cloud degree
Describe a museum you would like to visit.|statue painting guide hall
Explain how to take a good photograph.|light focus frame camera
Write a few sentences about a river.|bank bridge fish stone
Tell a story about a magic pencil.|draw paper wish school
Describe the perfect picnic.|blanket basket sandwich grass
Explain why we recycle.|plastic paper waste earth
Write a short diary entry from a sailor.|deck wind star harbour
Describe a night market.|lamp noodle crowd music
Explain how a bicycle works.|pedal wheel chain brake
Write a message to cheer up a sick friend.|soup rest smile soon
Describe a mountain at sunrise.|peak gold mist cold
Explain how to learn a new language.|word practice listen speak
Write a short story about a clever fox.|hen forest trick moon
Describe a concert in a park.|guitar crowd grass song
Give tips for a long walk.|shoes water map hat
Explain what makes a good neighbour.|kind help quiet share
Write about a child who wants to fly.|bird kite dream roof
Describe an elephant to someone who has never seen one.|trunk ear grey huge
Explain how to write a letter.|paper stamp greeting address
Write a few sentences about winter sports.|ski ice snow race
Describe a bakery at dawn.|dough oven flour smell
Explain why exercise is good for you.|heart muscle sleep energy
Write a short story about a forgotten robot.|dust battery garden rain
Describe a desert at night.|star sand cold camel
Explain how to look after a goldfish.|tank water food clean
Write an advertisement for a small hotel.|room view breakfast quiet
Describe a school trip to a farm.|cow barn bus milk
Explain how rainbows appear.|rain sun light colour
Write a short thank-you note for a gift.|scarf kind surprise wear
Describe a chess game between friends.|queen move clock board
Explain how to pack a suitcase.|shirt roll shoes weight
Write about a town that has no clocks.|time bell shadow market
Describe a tree house.|ladder rope branch window
Explain why people keep pets.|love cat walk care
Write a short story about a midnight train.|whistle ticket fog station
Describe the taste of your favourite fruit.|sweet juice mango summer
Explain how to make a salad.|lettuce oil tomato bowl
Write a few sentences about music.|song piano dance listen
Describe a lazy cat on a windowsill.|sun paw nap curtain
Explain what a budget is.|money spend save month
Write a short story about a kind giant.|village hill hand bridge
Describe a spaceship for a children's book.|star engine button planet
"""


def _parse(line: str) -> Topic:
    task, words = line.split("|")
    first, second, third, fourth = words.split()
    return Topic(task, (first, second, third, fourth))


TOPICS: tuple[Topic, ...] = tuple(_parse(line) for line in _TOPICS.strip().splitlines())


def generate(size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt}`, which are topics without constraints.

    Raises:
        TooFewPromptsError: there are fewer topics than `size`.
    """
    if size > len(TOPICS):
        raise TooFewPromptsError(f"there are {len(TOPICS)} topics; {size} were asked for")
    for topic in random.Random(seed).sample(TOPICS, size):
        yield {"prompt": topic.task}
