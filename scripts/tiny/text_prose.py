"""Short invented stories: scenes of a few sentences with people, places, weather, talk and thought."""
from common import FIRST_NAMES, article, capital, listing, pronouns

ADJECTIVES = ("old young quiet bright narrow wide cold warm dusty golden grey green heavy light broken clean crooked "
              "distant empty familiar gentle hollow hungry lonely modest muddy patient pale plain proud restless rough "
              "round rusty silent simple slow small solemn steep strange sturdy sudden tall tired wet white wild "
              "wooden worn yellow curious cheerful clever careful stubborn honest shy nervous weary").split()
THINGS = ("lantern basket letter key clock ladder bucket coat blanket boat wagon kettle lamp hammer mirror map rope "
          "chest candle bottle table chair bench barrel knife spoon book bell stone feather ring hat umbrella cart "
          "piano drawer window door curtain broom jug saddle violin compass").split()
PLACES = ("harbour mill market church station orchard forest meadow bridge tavern library kitchen attic cellar garden "
          "square workshop stable field riverbank hillside school bakery chapel courtyard lighthouse quarry").split()
ANIMALS = "dog cat horse crow gull fox hen goat sparrow mule owl hare".split()
WEATHER = ["It had rained since {time}", "The wind came from the {dir}", "Snow lay on the roofs of the {place}",
           "A {adj} mist hung over the {place}", "The sun stood low above the {place}", "The air smelled of {smell}",
           "Clouds drifted over the {place}", "Frost covered the {thing} beside the {place}",
           "No leaf moved in the {place}", "Thunder rolled far away in the {dir}"]
SMELLS = "smoke,wet earth,fresh bread,salt,hay,old paper,tar,apples,cut grass,coffee,iron,pine".split(",")
TIMES = "dawn,noon,dusk,midnight,early morning,late evening,the first bell,breakfast,supper".split(",")
SEASONS = "spring summer autumn winter".split()
DIRECTIONS = "north south east west".split()
RELATIVES = "mother father sister brother aunt uncle cousin neighbour grandmother grandfather teacher friend".split()
FEELINGS = "glad afraid ashamed surprised tired curious relieved uneasy proud calm angry hopeful".split()
ACTIONS = ("opened closed carried found lost mended cleaned painted hid dropped borrowed sold bought forgot noticed "
           "admired counted lifted wrapped examined").split()
MOTIONS = "walked ran hurried wandered limped crept strolled rode climbed marched".split()
SAID = "said asked whispered answered shouted murmured replied muttered".split()
ADVERBS = "slowly quickly quietly carefully suddenly at once again alone without a word after a while with a sigh".split()

ACTING = [
    "{name} {action} the {adj} {thing} and {action2} the {thing2}.",
    "{name} {motion} to the {place}, where {she} {action} {a_adj_thing}.",
    "In the {place} {she} {action} {a_adj_thing} and {a_thing2}.",
    "{She} {motion} past the {place} until {she} came to the {place2}.",
    "Before {time}, {name} {action} the {thing} of {her} {relative}.",
    "There were {list} on the {adj} floor of the {place}, and {name} {action} them all.",
    "{A_adj_animal} followed {him} as far as the {place2}.",
    "With {a_thing2} under {her} arm, {name} {motion} back to the {place}.",
    "{She} had {number} {thing}s, but only one of them was {adj}.",
    "Every {season} {name} {action} the {thing} and brought it to the {place}.",
]
THINKING = [
    "{She} felt {feeling}, though {she} could not say why.",
    "{name} remembered the {adj} {place} of {her} childhood.",
    "Perhaps, {she} thought, the {thing} had never belonged to {her} {relative} at all.",
    "Nothing in the {place} seemed as {adj} as it had been in {season}.",
    "{She} wondered whether {other} was still {feeling} about the {thing}.",
    "For {number} days {she} had thought of nothing but the {adj} {thing}.",
    "It was {adj2} of {other}, {she} decided, to leave the {thing} behind.",
    "If the {animal} could speak, it would have told {him} about the {thing2}.",
]
TALKING = [
    "\"Have you seen my {thing}?\" {said} {name}. \"It was in the {place},\" {said2} {other}.",
    "\"The {place} is {adj} today,\" {said} {other}.",
    "\"I am {feeling},\" {said} {name}, \"because the {thing} is {adj}.\"",
    "\"Your {relative} {action} it in {season},\" {other} {said}. {name} did not believe a word.",
    "\"Wait until {time},\" {said} {other}, \"and then bring {a_thing2} to the {place2}.\"",
    "{other} {said}: \"Who {action} the {thing}?\" Nobody answered.",
    "\"We need {list},\" {said} {name}. \"And {a_thing2},\" {said2} {other}.",
    "\"Why is the {animal} so {adj}?\" {name} {said}. \"It lost its way to the {place},\" {said2} {other}.",
]
ENDINGS = [
    "After that, the {thing} stood in the {place} for {number} years.",
    "When {time} came, both of them were {feeling}.",
    "So {name} kept the {adj} {thing}, and {other} kept the {thing2}.",
    "And nobody in the {place} ever spoke of the {thing} again.",
    "{name} went home {adverb}.",
    "By {season}, even the {animal} had grown used to the {place2}.",
]


def fill(rng, template, cast):
    thing, thing2 = rng.choice(cast["things"]), rng.choice(THINGS)
    adj = rng.choice(ADJECTIVES)
    words = dict(
        cast["names"], thing=thing, thing2=thing2, adj=adj, adj2=rng.choice(ADJECTIVES),
        place=rng.choice(cast["places"]), place2=rng.choice(PLACES), a_thing2=article(thing2),
        a_adj_thing=article(f"{adj} {thing}"), A_adj_animal=capital(article(f"{adj} {cast['animal']}")),
        animal=cast["animal"], action=rng.choice(ACTIONS), action2=rng.choice(ACTIONS), motion=rng.choice(MOTIONS),
        said=rng.choice(SAID), said2=rng.choice(SAID), feeling=rng.choice(FEELINGS), relative=rng.choice(RELATIVES),
        time=rng.choice(TIMES), season=cast["season"], smell=rng.choice(SMELLS), dir=rng.choice(DIRECTIONS),
        adverb=rng.choice(ADVERBS[:5]), number=rng.choice("two three four five six seven eight nine ten twelve".split()),
        list=listing([article(t) for t in rng.sample(THINGS, rng.randint(2, 4))]))
    return template.format(**words)


def story(rng):
    name, other = rng.sample(FIRST_NAMES, 2)
    she, him, her = pronouns(name)
    cast = dict(names=dict(name=name, other=other, she=she, She=capital(she), him=him, her=her),
                things=rng.sample(THINGS, 2), places=rng.sample(PLACES, 2), animal=rng.choice(ANIMALS),
                season=rng.choice(SEASONS))
    paragraphs = []
    for i in range(rng.randint(2, 5)):
        lines = [fill(rng, rng.choice(WEATHER), cast) + "."] if i == 0 or rng.random() < 0.3 else []
        for _ in range(rng.randint(3, 6)):
            lines.append(fill(rng, rng.choice(rng.choice((ACTING, THINKING, TALKING))), cast))
        paragraphs.append(" ".join(lines))
    paragraphs[-1] += " " + fill(rng, rng.choice(ENDINGS), cast)
    return "\n\n".join(paragraphs)


def document(rng, heldout=False):
    return story(rng)
