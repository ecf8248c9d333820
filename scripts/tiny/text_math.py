"""Arithmetic word problems with worked answers, in the form of GSM8K.

A problem's key is its template and its numbers; held-out keys never reach the training text.
"""
from common import FIRST_NAMES, held_out, pronouns

THINGS = ("apples pears plums shells stamps marbles buttons coins cards pencils books beads cookies muffins "
          "stickers ribbons candles bricks acorns tickets").split()
GOODS = "pens cups lamps hats scarves plates kites brushes bowls baskets".split()
PLACES = "market harbour school library garden station bakery museum".split()

# Each template: draw numbers -> (numbers, question wordings, steps, result). A, B are people, T a thing,
# G something with a price, P a place; she/her are A's pronouns.


def gain_then_give(r):
    a, b = r.randint(5, 60), r.randint(3, 40)
    c = r.randint(2, a + b - 2)
    return (a, b, c), [
        f"{{A}} has {a} {{T}}. {{She}} gets {b} more and then gives {c} to {{B}}. How many {{T}} does {{A}} have left?",
        f"{{A}} owned {a} {{T}}, found another {b} near the {{P}}, and gave {c} of them to {{B}}. How many {{T}} remain with {{A}}?",
    ], [f"{{A}} has {a} + {b} = {a + b} {{T}} at first.",
        f"After giving {c} to {{B}}, {{A}} has {a + b} - {c} = {a + b - c} {{T}}."], a + b - c


def boxes_and_loose(r):
    n, e, x = r.randint(2, 12), r.randint(2, 12), r.randint(2, 30)
    return (n, e, x), [
        f"{{A}} has {n} boxes with {e} {{T}} in each box and {x} loose {{T}}. How many {{T}} does {{A}} have in total?",
        f"There are {e} {{T}} in every box. {{A}} carries {n} boxes to the {{P}} and holds {x} more {{T}}. How many {{T}} is that?",
    ], [f"The boxes hold {n} * {e} = {n * e} {{T}}.",
        f"Together with the loose ones that is {n * e} + {x} = {n * e + x} {{T}}."], n * e + x


def change_from_note(r):
    n, p = r.randint(2, 9), r.randint(2, 11)
    note = r.choice([v for v in (20, 50, 100) if v > n * p])
    return (n, p, note), [
        f"{{A}} buys {n} {{G}} for ${p} each and pays with a ${note} note. How much change does {{she}} get?",
        f"At the {{P}}, {{G}} cost ${p} each. {{A}} takes {n} of them and hands over ${note}. How many dollars does {{she}} get back?",
    ], [f"The {{G}} cost {n} * {p} = ${n * p}.",
        f"The change is {note} - {n * p} = ${note - n * p}."], note - n * p


def times_as_many(r):
    a, k = r.randint(3, 20), r.randint(2, 6)
    return (a, k), [
        f"{{A}} has {a} {{T}}. {{B}} has {k} times as many. How many {{T}} do they have together?",
        f"{{B}} collected {k} times as many {{T}} as {{A}}, who collected {a}. How many {{T}} did the two of them collect?",
    ], [f"{{B}} has {a} * {k} = {a * k} {{T}}.",
        f"Together they have {a} + {a * k} = {a + a * k} {{T}}."], a + a * k


def share_equally(r):
    n, q = r.randint(2, 9), r.randint(3, 12)
    a = r.randint(1, n * q - 1)
    b = n * q - a
    return (a, b, n), [
        f"{{A}} has {a} {{T}} and {{B}} has {b}. They put them together and share them equally among {n} children. How many {{T}} does each child get?",
        f"A bag with {a} {{T}} and a bag with {b} {{T}} are shared equally by {n} friends of {{A}}. How many {{T}} does each friend receive?",
    ], [f"There are {a} + {b} = {n * q} {{T}} in total.",
        f"Each one gets {n * q} / {n} = {q} {{T}}."], q


def wage_and_tip(r):
    p, h, t = r.randint(5, 15), r.randint(2, 9), r.randint(2, 30)
    return (p, h, t), [
        f"{{A}} earns ${p} an hour at the {{P}}. {{She}} works {h} hours and gets a tip of ${t}. How much money does {{she}} earn?",
        f"Working at the {{P}} pays ${p} per hour. {{A}} worked for {h} hours and found ${t} on the way home. How many dollars does {{she}} bring home?",
    ], [f"For the work {{A}} gets {p} * {h} = ${p * h}.",
        f"In total that is {p * h} + {t} = ${p * h + t}."], p * h + t


def empty_seats(r):
    n, s = r.randint(3, 12), r.randint(4, 12)
    e = r.randint(2, n * s - 2)
    return (n, s, e), [
        f"A hall has {n} rows of {s} seats. Tonight {e} seats are empty. How many seats are taken?",
        f"{{A}} sets up {n} rows with {s} chairs each. {e} chairs stay empty. On how many chairs does somebody sit?",
    ], [f"There are {n} * {s} = {n * s} seats.",
        f"Of these, {n * s} - {e} = {n * s - e} are taken."], n * s - e


def age_later(r):
    a, b, c = r.randint(4, 40), r.randint(2, 30), r.randint(2, 20)
    return (a, b, c), [
        f"{{A}} is {a} years old and {{B}} is {b} years older. How old will {{B}} be in {c} years?",
        f"{{B}} is {b} years older than {{A}}, who is {a}. What will be the age of {{B}} after {c} years?",
    ], [f"{{B}} is {a} + {b} = {a + b} years old now.",
        f"In {c} years {{B}} will be {a + b} + {c} = {a + b + c} years old."], a + b + c


def pages_left(r):
    p, d, left = r.randint(4, 20), r.randint(2, 9), r.randint(5, 60)
    total = p * d + left
    return (total, p, d), [
        f"{{A}} reads a book of {total} pages. {{She}} reads {p} pages a day for {d} days. How many pages are left?",
        f"A book has {total} pages. For {d} days, {{A}} reads {p} pages every day. How many pages does {{she}} still have to read?",
    ], [f"{{A}} has read {p} * {d} = {p * d} pages.",
        f"There are {total} - {p * d} = {left} pages left."], left


def more_than(r):
    a, d = r.randint(5, 60), r.randint(2, 40)
    return (a, d), [
        f"{{A}} picked {a} {{T}}. {{B}} picked {d} more than {{A}}. How many {{T}} did they pick together?",
        f"{{B}} has {d} more {{T}} than {{A}}. {{A}} has {a}. How many {{T}} do both have?",
    ], [f"{{B}} has {a} + {d} = {a + d} {{T}}.",
        f"Together they have {a} + {a + d} = {2 * a + d} {{T}}."], 2 * a + d


def fewer_than(r):
    a = r.randint(10, 70)
    d = r.randint(2, a - 3)
    return (a, d), [
        f"{{A}} picked {a} {{T}}. {{B}} picked {d} fewer than {{A}}. How many {{T}} did they pick together?",
        f"{{B}} has {d} fewer {{T}} than {{A}}. {{A}} has {a}. How many {{T}} do both have?",
    ], [f"{{B}} has {a} - {d} = {a - d} {{T}}.",
        f"Together they have {a} + {a - d} = {2 * a - d} {{T}}."], 2 * a - d


def egg_boxes(r):
    q, p = r.randint(2, 9), r.randint(2, 10)
    h = r.randint(2, 9)
    u = next((u for u in range(1, 40) if (q * p + u) % h == 0 and (q * p + u) // h <= 12), None)
    if u is None:
        return egg_boxes(r)
    e = (q * p + u) // h
    return (h, e, u, p), [
        f"{{A}} has {h} hens that lay {e} eggs each. {{She}} eats {u} eggs and packs the rest in boxes of {p}. How many boxes does {{she}} fill?",
        f"On a farm, {h} hens lay {e} eggs each. {u} eggs are eaten and the others go into boxes of {p}. How many boxes are filled?",
    ], [f"The hens lay {h} * {e} = {h * e} eggs.",
        f"There are {h * e} - {u} = {q * p} eggs to pack.",
        f"They fill {q * p} / {p} = {q} boxes."], q


def two_prices(r):
    a, p, b, q = r.randint(2, 9), r.randint(2, 9), r.randint(2, 9), r.randint(2, 9)
    return (a, p, b, q), [
        f"{{A}} buys {a} {{G}} for ${p} each and {b} {{T}} for ${q} each. How much does {{she}} pay?",
        f"At the {{P}}, {{G}} cost ${p} each and {{T}} cost ${q} each. {{A}} takes {a} {{G}} and {b} {{T}}. What is the price?",
    ], [f"The {{G}} cost {a} * {p} = ${a * p}.",
        f"The {{T}} cost {b} * {q} = ${b * q}.",
        f"Together they cost {a * p} + {b * q} = ${a * p + b * q}."], a * p + b * q


def cups_missing(r):
    c, n = r.randint(2, 9), r.randint(2, 9)
    h = r.randint(1, c * n - 1)
    return (c, n, h), [
        f"A cake needs {c} cups of flour. {{A}} bakes {n} cakes and has {h} cups. How many more cups does {{she}} need?",
        f"{{A}} has {h} cups of flour and wants to bake {n} cakes of {c} cups each. How many cups are missing?",
    ], [f"The cakes need {c} * {n} = {c * n} cups.",
        f"{{A}} still needs {c * n} - {h} = {c * n - h} cups."], c * n - h


def leaking_tank(r):
    k, h = r.randint(2, 9), r.randint(2, 9)
    s, f = k * h + r.randint(3, 60), r.randint(2, 30)
    return (s, k, h, f), [
        f"A tank holds {s} litres. It loses {k} litres an hour for {h} hours, then {{A}} pours in {f} litres. How many litres are in the tank?",
        f"{{A}} has a barrel with {s} litres of water. Every hour {k} litres run out. After {h} hours {{she}} adds {f} litres. How many litres are there now?",
    ], [f"It loses {k} * {h} = {k * h} litres.",
        f"Then there are {s} - {k * h} = {s - k * h} litres.",
        f"At the end there are {s - k * h} + {f} = {s - k * h + f} litres."], s - k * h + f


def part_sold(r):
    k, q = r.randint(2, 6), r.randint(3, 15)
    word = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth"}[k]
    return (k * q, k), [
        f"{{A}} takes {k * q} {{T}} to the {{P}} and sells {word} of them. How many {{T}} does {{she}} keep?",
        f"Of {k * q} {{T}}, {{A}} gives {word} to {{B}}. How many {{T}} are left for {{A}}?",
    ], [f"The part that goes away is {k * q} / {k} = {q} {{T}}.",
        f"{{A}} keeps {k * q} - {q} = {k * q - q} {{T}}."], k * q - q


def fence_length(r):
    a, b = r.randint(3, 40), r.randint(3, 40)
    return (a, b), [
        f"The garden of {{A}} is {a} metres long and {b} metres wide. How many metres of fence go around it?",
        f"{{A}} walks once around a field that is {a} metres long and {b} metres wide. How many metres does {{she}} walk?",
    ], [f"One long and one short side make {a} + {b} = {a + b} metres.",
        f"All around that is 2 * {a + b} = {2 * (a + b)} metres."], 2 * (a + b)


def saving_up(r):
    w, n = r.randint(2, 12), r.randint(2, 9)
    price = w * n + r.randint(2, 40)
    return (price, w, n), [
        f"{{A}} wants a bicycle that costs ${price}. {{She}} saves ${w} a week for {n} weeks. How many dollars are missing?",
        f"A coat costs ${price}. {{A}} puts aside ${w} every week. After {n} weeks, how much more money does {{she}} need?",
    ], [f"{{A}} has saved {w} * {n} = ${w * n}.",
        f"{{She}} still needs {price} - {w * n} = ${price - w * n}."], price - w * n


def bus_stops(r):
    a, b = r.randint(8, 50), r.randint(2, 20)
    c = r.randint(2, a - 2)
    return (a, c, b), [
        f"A bus carries {a} people. At the {{P}} {c} people get off and {b} get on. How many people are on the bus now?",
        f"There are {a} people on the bus with {{A}}. First {c} leave and then {b} enter. How many people ride on?",
    ], [f"After {c} people leave there are {a} - {c} = {a - c} people.",
        f"After {b} people enter there are {a - c} + {b} = {a - c + b} people."], a - c + b


def team_points(r):
    n, p, m, q = r.randint(2, 9), r.randint(2, 5), r.randint(2, 9), r.randint(6, 10)
    return (n, p, m, q), [
        f"In a game {{A}} hits {n} small targets for {p} points each and {m} large targets for {q} points each. How many points is that?",
        f"{{A}} scores {n} times {p} points and {{B}} scores {m} times {q} points. How many points do they have together?",
    ], [f"The first part gives {n} * {p} = {n * p} points.",
        f"The second part gives {m} * {q} = {m * q} points.",
        f"The sum is {n * p} + {m * q} = {n * p + m * q} points."], n * p + m * q


TEMPLATES = [gain_then_give, boxes_and_loose, change_from_note, times_as_many, share_equally, wage_and_tip,
             empty_seats, age_later, pages_left, more_than, fewer_than, egg_boxes, two_prices, cups_missing,
             leaking_tank, part_sold, fence_length, saving_up, bus_stops, team_points]


def problem(rng, want_held_out=False):
    """-> {"question", "answer"}; the answer is worked step by step and ends with '#### N'."""
    while True:
        template = rng.choice(TEMPLATES)
        numbers, wordings, steps, result = template(rng)
        if held_out((template.__name__, numbers)) == want_held_out:
            break
    a, b = rng.sample(FIRST_NAMES, 2)
    she, her, _ = pronouns(a)
    fill = dict(A=a, B=b, T=rng.choice(THINGS), G=rng.choice(GOODS), P=rng.choice(PLACES), she=she,
                She=she.capitalize(), her=her)
    return {"question": rng.choice(wordings).format(**fill),
            "answer": "\n".join(s.format(**fill) for s in steps) + f"\n#### {result}"}


def as_shot(item):
    return f"Question: {item['question']}\nAnswer: {item['answer']}"


def document(rng, heldout=False):
    count = rng.choice((1, 3, 5, 5, 5, 5, 6))
    return "\n\n".join(as_shot(problem(rng, heldout)) for _ in range(count))
