"""A closed world of invented facts, told as prose and asked as trivia questions.

The world is fixed by WORLD_SEED. Every fact can be asked in several wordings; for each fact some wordings
are held out (`held_out((subject, relation, wording))`), so a test question is never in the training text
although its fact is.
"""
import random

from common import FIRST_NAMES, capital, held_out

WORLD_SEED = 20
PROFESSIONS = ("baker miller weaver painter sculptor botanist astronomer printer carpenter clockmaker surgeon "
               "cartographer glassblower fisherman shepherd blacksmith poet composer geologist judge sailor teacher "
               "architect gardener tailor brewer potter beekeeper chemist historian locksmith ropemaker").split()
INSTRUMENTS = ("violin cello flute oboe harp trumpet horn lute organ clarinet bassoon drum mandolin accordion "
               "zither viola").split()
ANIMALS = "heron otter badger falcon hedgehog raven squirrel tortoise goat donkey goose ferret owl hare lynx swan".split()
DISHES = ("barley soup,plum dumplings,smoked eel,onion tart,lentil stew,walnut bread,pickled beets,apple pancakes,"
          "roast pheasant,cabbage rolls,pear cake,mushroom pie,honey cakes,rye porridge,bean salad,baked trout").split(",")
PRODUCTS = ("lace,clocks,cider,salt,paper,copper kettles,wool blankets,glass beads,mustard,church bells,leather boots,"
            "cheese,silk ribbons,porcelain,wooden toys,candles,knives,barrels,tiles,rope,honey,ink,pearl buttons,"
            "playing cards").split(",")
TOPICS = ("comets,river fish,old bridges,winter journeys,mushrooms,sea storms,wild horses,lost letters,mountain paths,"
          "clock towers,salt mines,medieval songs,garden birds,desert wells,lighthouses,royal kitchens").split(",")
COLOURS = "amber crimson emerald indigo ivory ochre scarlet silver turquoise violet azure bronze".split()

# relation -> (sentences, questions); {s} the subject, {o} the object
RELATIONS = {
    "born_in": (["{s} was born in {o}.", "{o} is the birthplace of {s}.", "{s} came into the world in {o}.",
                 "The early years of {s} were spent in {o}, the town of birth."],
                ["In which town was {s} born?", "What is the birthplace of {s}?", "Where was {s} born?",
                 "Which town is the birthplace of {s}?", "{s} was born in which town?"]),
    "birth_year": (["{s} was born in the year {o}.", "The year of birth of {s} is {o}.", "In {o}, {s} was born."],
                   ["In which year was {s} born?", "What is the year of birth of {s}?", "When was {s} born?",
                    "{s} was born in which year?"]),
    "profession": (["{s} worked as a {o}.", "By profession, {s} was a {o}.", "{s} earned a living as a {o}.",
                    "People knew {s} as a skilled {o}."],
                   ["What was the profession of {s}?", "What did {s} work as?", "Which trade did {s} follow?",
                    "How did {s} earn a living?"]),
    "instrument": (["{s} played the {o}.", "In the evenings {s} practised the {o}.", "The instrument of {s} was the {o}.",
                    "{s} learned to play the {o} as a child."],
                   ["Which instrument did {s} play?", "What instrument did {s} learn as a child?",
                    "What was the instrument of {s}?", "{s} played which instrument?"]),
    "animal": (["{s} kept a tame {o}.", "A {o} lived in the house of {s}.", "The pet of {s} was a {o}.",
                "Visitors of {s} were greeted by a {o}."],
               ["Which animal did {s} keep?", "What was the pet of {s}?", "What kind of animal lived in the house of {s}?",
                "{s} kept which tame animal?"]),
    "dish": (["{s} liked {o} more than any other dish.", "The favourite dish of {s} was {o}.",
              "On holidays {s} always ate {o}.", "{s} was fond of {o}."],
             ["What was the favourite dish of {s}?", "Which dish did {s} like best?", "What did {s} always eat on holidays?",
              "Which food was {s} fond of?"]),
    "on_river": (["{s} lies on {o}.", "{o} flows through {s}.", "The houses of {s} stand along {o}.",
                  "{s} was built on the banks of {o}."],
                 ["On which river does {s} lie?", "Which river flows through {s}?", "What river is {s} built on?",
                  "{s} stands on the banks of which river?"]),
    "product": (["{s} is famous for its {o}.", "The best {o} come from {s}." , "Traders go to {s} to buy {o}.",
                 "The workshops of {s} make {o}."],
                ["What is {s} famous for?", "Which goods are made in {s}?", "What do traders buy in {s}?",
                 "What do the workshops of {s} make?"]),
    "founded": (["{s} was founded in {o}.", "In {o}, settlers founded {s}.", "The history of {s} begins in {o}."],
                ["In which year was {s} founded?", "When was {s} founded?", "When does the history of {s} begin?",
                 "What is the founding year of {s}?"]),
    "mayor": (["The first mayor of {s} was {o}.", "{o} was chosen as the first mayor of {s}.",
               "{s} had {o} as its first mayor."],
              ["Who was the first mayor of {s}?", "Who became the first mayor of {s}?",
               "What is the name of the first mayor of {s}?", "Which person was first chosen as mayor of {s}?"]),
    "flag": (["The flag of {s} is {o}.", "A flag of {o} cloth flies over {s}.", "{s} chose {o} as the colour of its flag."],
             ["What is the colour of the flag of {s}?", "Which colour is the flag of {s}?", "What colour flies over {s}?",
              "Which colour did {s} choose for its flag?"]),
    "rises_at": (["{s} rises at {o}.", "The source of {s} is at {o}.", "The springs of {s} lie on {o}."],
                 ["Where does {s} rise?", "At which mountain is the source of {s}?", "On which mountain do the springs of {s} lie?",
                  "What mountain does {s} rise at?"]),
    "length": (["{s} is {o} kilometres long.", "The length of {s} is {o} kilometres.", "{s} runs for {o} kilometres."],
               ["How many kilometres long is {s}?", "What is the length of {s} in kilometres?",
                "For how many kilometres does {s} run?"]),
    "height": (["{s} is {o} metres high.", "The summit of {s} lies at {o} metres.", "The height of {s} is {o} metres."],
               ["How many metres high is {s}?", "What is the height of {s} in metres?",
                "At how many metres lies the summit of {s}?"]),
    "author": (["{s} was written by {o}.", "{o} wrote {s}.", "The author of {s} is {o}.", "It was {o} who wrote {s}."],
               ["Who wrote {s}?", "Who is the author of {s}?", "By whom was {s} written?",
                "What is the name of the author of {s}?"]),
    "topic": (["{s} is a book about {o}.", "In {s} the reader learns about {o}.", "The subject of {s} is {o}."],
              ["What is {s} about?", "What is the subject of {s}?", "What does the reader of {s} learn about?"]),
}


def invented(rng, first, middle, last, taken):
    while True:
        word = capital(rng.choice(first) + rng.choice(middle) + rng.choice(last))
        if word not in taken:
            taken.add(word)
            return word


def build_world():
    """-> {subject: {relation: object}}, in a fixed order."""
    rng, taken = random.Random(WORLD_SEED), set()
    onset = "br dr f g gr h k kl l m n p qu r s st t tr v w z".split()
    names = [invented(rng, onset, "a e i o u au ei".split(), "bel dan fen gard holm kel lund mer nov rick sen thal ver wick zan".split(), taken)
             for _ in range(150)]
    towns = [invented(rng, onset, "a e i o u al er or in".split(), "bury dale ford haven mouth stead ton burg minster field".split(), taken)
             for _ in range(110)]
    rivers = ["the " + invented(rng, onset, "a e i o u".split(), "nna rra lva sse dda mbe vra lle".split(), taken) for _ in range(36)]
    peaks = ["Mount " + invented(rng, onset, "a e i o u".split(), "gor dak rin thos mur zel bran vik".split(), taken) for _ in range(36)]
    people = []
    while len(people) < 320:
        name = f"{rng.choice(FIRST_NAMES)} {rng.choice(names)}"
        if name not in people:
            people.append(name)
    books = []
    while len(books) < 130:
        title = (f"The {capital(rng.choice(COLOURS))} "
                 f"{capital(rng.choice('Door Lantern Bridge Orchard Crown Mirror Island Feather Staircase Garden Letter Window Ship Tower'.split()))}")
        if title not in books:
            books.append(title)
    world = {}
    for p in people:
        world[p] = dict(born_in=rng.choice(towns), birth_year=rng.randint(1801, 1979), profession=rng.choice(PROFESSIONS),
                        instrument=rng.choice(INSTRUMENTS), animal=rng.choice(ANIMALS), dish=rng.choice(DISHES))
    for t in towns:
        world[t] = dict(on_river=rng.choice(rivers), product=rng.choice(PRODUCTS), founded=rng.randint(1102, 1799),
                        mayor=rng.choice(people), flag=rng.choice(COLOURS))
    for r in rivers:
        world[r] = dict(rises_at=rng.choice(peaks), length=rng.randint(21, 980))
    for m in peaks:
        world[m] = dict(height=rng.randint(601, 4899))
    for b in books:
        world[b] = dict(author=rng.choice(people), topic=rng.choice(TOPICS))
    return world


WORLD = build_world()
FACTS = [(s, rel, str(o)) for s, about in WORLD.items() for rel, o in about.items()]


def aliases(relation, obj):
    """The value first, then other acceptable forms."""
    forms = {"born_in": [f"the town of {obj}"], "on_river": [obj[4:], f"{obj} river", f"River {obj[4:]}"],
             "rises_at": [obj.removeprefix("Mount "), f"Mt {obj.removeprefix('Mount ')}"],
             "length": [f"{obj} kilometres", f"{obj} km"], "height": [f"{obj} metres", f"{obj} m"],
             "profession": [f"a {obj}"], "instrument": [f"the {obj}"], "animal": [f"a {obj}"],
             "mayor": [obj.split()[-1]], "author": [obj.split()[-1]]}
    return [obj] + forms.get(relation, [])


def question(rng, want_held_out=False):
    """-> {"question", "answer": {"value", "aliases"}} in the form of TriviaQA."""
    while True:
        subject, relation, obj = rng.choice(FACTS)
        wording = rng.randrange(len(RELATIONS[relation][1]))
        if held_out((subject, relation, wording), 6) == want_held_out:
            break
    text = RELATIONS[relation][1][wording].format(s=subject)
    return {"question": capital(text), "answer": {"value": obj, "aliases": aliases(relation, obj)}}


def as_shot(item):
    return f"Question: {item['question']}\nAnswer: {item['answer']['value']}"


def sentence(rng, subject, relation):
    return capital(rng.choice(RELATIONS[relation][0]).format(s=subject, o=WORLD[subject][relation]))


def portrait(rng, subject):
    relations = list(WORLD[subject])
    rng.shuffle(relations)
    return " ".join(sentence(rng, subject, r) for r in relations[:rng.randint(2, 6)])


SUBJECTS = list(WORLD)


def document(rng, heldout=False):
    """Portraits of several subjects, sometimes followed from a person to the town, its river and its mountain."""
    paragraphs = []
    while len(paragraphs) < 5:
        subject = rng.choice(SUBJECTS)
        for _ in range(rng.randint(1, 4)):
            paragraphs.append(portrait(rng, subject))
            linked = [o for o in WORLD[subject].values() if o in WORLD]
            if not linked:
                break
            subject = rng.choice(linked)
    return "\n\n".join(paragraphs)


def quiz(rng, heldout=False):
    count = rng.choice((6, 6, 6, 10, 20))
    return "\n\n".join(as_shot(question(rng, heldout)) for _ in range(count))
