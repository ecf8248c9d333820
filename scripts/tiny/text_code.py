"""Small Python functions to be completed from a docstring, in the form of HumanEval.

A function is a composition (choose elements, change them, reduce them) or one of a few parametrised
families. Its key is that meaning; held-out meanings never reach the training text, so a model has to
put known parts together in a new way.
"""
import string

from common import held_out

# meaning -> (words in a docstring, word in a function name, Python expression over x)
CHANGES = {
    "same": ("{}", "", "x"),
    "square": ("the squares of {}", "squared", "x * x"),
    "cube": ("the cubes of {}", "cubed", "x ** 3"),
    "double": ("twice {}", "doubled", "2 * x"),
    "negate": ("the negatives of {}", "negated", "-x"),
    "abs": ("the absolute values of {}", "absolute", "abs(x)"),
    **{f"add{k}": (f"{{}} plus {k}", f"plus_{k}", f"x + {k}") for k in range(1, 10)},
    **{f"sub{k}": (f"{{}} minus {k}", f"minus_{k}", f"x - {k}") for k in range(1, 10)},
    **{f"mul{k}": (f"{{}} times {k}", f"times_{k}", f"x * {k}") for k in range(3, 10)},
    **{f"mod{k}": (f"the remainders of {{}} modulo {k}", f"mod_{k}", f"x % {k}") for k in range(2, 10)},
}
CHOICES = {
    "all": ("the numbers", "", ""),
    "even": ("the even numbers", "even", "x % 2 == 0"),
    "odd": ("the odd numbers", "odd", "x % 2 == 1"),
    "positive": ("the positive numbers", "positive", "x > 0"),
    "negative": ("the negative numbers", "negative", "x < 0"),
    "nonzero": ("the nonzero numbers", "nonzero", "x != 0"),
    **{f"over{k}": (f"the numbers greater than {k}", f"over_{k}", f"x > {k}") for k in range(1, 10)},
    **{f"under{k}": (f"the numbers less than {k}", f"under_{k}", f"x < {k}") for k in range(1, 10)},
    **{f"div{k}": (f"the numbers divisible by {k}", f"div_{k}", f"x % {k} == 0") for k in range(3, 10)},
}
REDUCTIONS = {
    "list": ("a list of {}", "list", "[{}]"),
    "sum": ("the sum of {}", "sum", "sum({})"),
    "max": ("the largest of {}, or 0 if there is none", "max", "max(({}), default=0)"),
    "min": ("the smallest of {}, or 0 if there is none", "min", "min(({}), default=0)"),
    "sorted": ("a sorted list of {}", "sorted", "sorted({})"),
    "set": ("the set of {}", "set", "set({})"),
    "any": ("whether any of {} is above 20", "any", "any(y > 20 for y in [{}])"),
    "count": ("how many of {} are distinct", "distinct", "len(set({}))"),
}
LIST_NAMES = ("numbers", "values", "items", "nums", "data")
TEXT_NAMES = ("text", "s", "word", "line")
IMPORTS = ("", "", "from typing import List\n\n\n")
WORDS = "river stone window apple garden banana letter summer yellow silver paper orange winter coffee".split()


def pick(rng, table):
    """Plain entries and the many numbered ones each get a fair share."""
    plain = [k for k in table if not k[-1].isdigit()]
    numbered = [k for k in table if k[-1].isdigit()]
    return rng.choice(numbered if numbered and rng.random() < 0.5 else plain)


def number_list(rng):
    return [rng.randint(-12, 30) for _ in range(rng.randint(3, 6))]


def phrase(rng):
    return " ".join(rng.sample(WORDS, rng.randint(1, 3)))


def composed(rng):
    change, choice, reduction = pick(rng, CHANGES), pick(rng, CHOICES), pick(rng, REDUCTIONS)
    arg = rng.choice(LIST_NAMES)
    said = REDUCTIONS[reduction][0].format(CHANGES[change][0].format(f"{CHOICES[choice][0]} in {arg}"))
    parts = [w for w in (REDUCTIONS[reduction][1], CHOICES[choice][1], CHANGES[change][1]) if w]
    name = "_".join(parts if len(parts) > 1 else parts + ["all"])  # a bare "sum" would hide Python's own
    loop = f"{CHANGES[change][2]} for x in {arg}" + (f" if {CHOICES[choice][2]}" if CHOICES[choice][2] else "")
    body = f"    return {REDUCTIONS[reduction][2].format(loop)}\n"
    return ("composed", change, choice, reduction), name, arg, f"Return {said}.", body, number_list


def affine(rng):
    a, b = rng.randint(2, 12), rng.randint(1, 20)
    name = f"scale_{a}_shift_{b}"
    return (("affine", a, b), name, "x", f"Multiply x by {a} and then add {b}.",
            f"    return x * {a} + {b}\n", lambda r: r.randint(-10, 30))


def clamp(rng):
    lo, hi = rng.randint(-9, 4), rng.randint(5, 20)
    return (("clamp", lo, hi), f"clamp_to_{hi}", "x", f"Limit x to the range from {lo} to {hi}.",
            f"    return max({lo}, min({hi}, x))\n", lambda r: r.randint(-20, 40))


def both_divisible(rng):
    a, b = rng.sample(range(2, 12), 2)
    return (("divisible", a, b), f"by_{a}_and_{b}", "n", f"Check whether n is divisible by both {a} and {b}.",
            f"    return n % {a} == 0 and n % {b} == 0\n",
            lambda r: r.choice((a * b * r.randint(1, 4), r.randint(1, 60))))


def between(rng):
    lo = rng.randint(-5, 15)
    hi = lo + rng.randint(3, 20)
    arg = rng.choice(LIST_NAMES)
    return (("between", lo, hi), f"between_{abs(lo)}_and_{abs(hi)}", arg,
            f"Return a list of the numbers in {arg} that are at least {lo} and at most {hi}.",
            f"    return [x for x in {arg} if {lo} <= x <= {hi}]\n", number_list)


def count_letter(rng):
    c, k = rng.choice(string.ascii_lowercase[:20]), rng.randint(0, 5)
    arg = rng.choice(TEXT_NAMES)
    tail = f" plus {k}" if k else ""
    return (("count_letter", c, k), f"count_{c}" + (f"_plus_{k}" if k else ""), arg,
            f"Count how often the letter {c} occurs in {arg}{tail and ', and add ' + str(k)}.",
            f"    return {arg}.count('{c}')" + (f" + {k}" if k else "") + "\n", phrase)


def replace_letter(rng):
    a, b = rng.sample(string.ascii_lowercase[:20], 2)
    upper = rng.random() < 0.4
    arg = rng.choice(TEXT_NAMES)
    return (("replace", a, b, upper), f"replace_{a}_by_{b}", arg,
            f"Replace every {a} in {arg} by {b}{' and make the result upper case' if upper else ''}.",
            f"    return {arg}.replace('{a}', '{b}'){'.upper()' if upper else ''}\n", phrase)


def part_of_text(rng):
    k, end, how = rng.randint(1, 8), rng.choice(("first", "last")), rng.choice(("", "reversed", "upper"))
    arg = rng.choice(TEXT_NAMES)
    cut = f"{arg}[:{k}]" if end == "first" else f"{arg}[-{k}:]"
    body = {"": cut, "reversed": cut + "[::-1]", "upper": cut + ".upper()"}[how]
    said = {"": "", "reversed": " in reverse order", "upper": " in upper case"}[how]
    many = f"{k} characters" if k > 1 else "character"
    return (("part", k, end, how), "_".join(w for w in (end, str(k), how) if w), arg,
            f"Return the {end} {many} of {arg}{said}.", f"    return {body}\n", phrase)


def long_words(rng):
    k, longer = rng.randint(3, 7), rng.random() < 0.5
    how = rng.choice(("list", "count", "upper"))
    arg, sign, word = rng.choice(TEXT_NAMES), "><"[not longer], ("longer", "shorter")[not longer]
    said = {"list": f"Return a list of the words in {arg} that are {word} than {k} letters.",
            "count": f"Count the words in {arg} that are {word} than {k} letters.",
            "upper": f"Return a list of the words in {arg} that are {word} than {k} letters, in upper case."}[how]
    body = {"list": f"[w for w in {arg}.split() if len(w) {sign} {k}]",
            "count": f"sum(1 for w in {arg}.split() if len(w) {sign} {k})",
            "upper": f"[w.upper() for w in {arg}.split() if len(w) {sign} {k}]"}[how]
    return ("words", k, longer, how), f"{how}_{word}_than_{k}", arg, said, f"    return {body}\n", phrase


def repeat_text(rng):
    k, sep = rng.randint(2, 9), rng.choice(("", "-", "+", "/", ", "))
    arg = rng.choice(TEXT_NAMES)
    if sep:
        said, body = f"Join {k} copies of {arg} with '{sep}'.", f"'{sep}'.join([{arg}] * {k})"
    else:
        said, body = f"Repeat {arg} {k} times.", f"{arg} * {k}"
    return ("repeat", k, sep), f"repeat_{k}", arg, said, f"    return {body}\n", lambda r: r.choice(WORDS)


def multiples(rng):
    a, b = rng.randint(2, 12), rng.randint(0, 9)
    tail = f", starting at {b}" if b else ", starting at 0"
    return (("multiples", a, b), f"steps_of_{a}", "n", f"Return a list of n numbers in steps of {a}{tail}.",
            f"    return [{b} + {a} * i for i in range(n)]\n", lambda r: r.randint(0, 6))


def looped_sum(rng):
    k, choice = rng.randint(2, 9), pick(rng, {k: v for k, v in CHOICES.items() if k != "all"})
    arg = rng.choice(LIST_NAMES)
    return (("looped", k, choice), f"add_{k}_per_{CHOICES[choice][1]}", arg,
            f"Start at 0 and add {k} for each of {CHOICES[choice][0]} in {arg}.",
            f"    total = 0\n    for x in {arg}:\n        if {CHOICES[choice][2]}:\n            total += {k}\n"
            f"    return total\n", number_list)


FAMILIES = [composed] * 9 + [affine, clamp, both_divisible, between, count_letter, replace_letter, part_of_text,
                             long_words, repeat_text, multiples, looped_sum, looped_sum]


def function(rng, want_held_out=False):
    """-> {"prompt", "entry_point", "canonical_solution", "test"} of one function."""
    while True:
        key, name, arg, said, body, draw = rng.choice(FAMILIES)(rng)
        if held_out(key) == want_held_out:
            break
    head = f"def {name}({arg}):\n"
    scope = {}
    exec(head + body, scope)  # our own text, to fill in the examples
    examples = [draw(rng) for _ in range(7)]
    shown = "".join(f"    >>> {name}({v!r})\n    {scope[name](v)!r}\n" for v in examples[:rng.choice((1, 2, 2))])
    checks = "".join(f"    assert candidate({v!r}) == {scope[name](v)!r}\n" for v in examples)
    return {"prompt": f'{rng.choice(IMPORTS)}{head}    """{said}\n{shown}    """\n', "entry_point": name,
            "canonical_solution": body, "test": f"\n\nMETADATA = {{}}\n\n\ndef check(candidate):\n{checks}\n"}


def document(rng, heldout=False):
    count = rng.choice((1, 1, 2, 3))
    parts = [function(rng, heldout) for _ in range(count)]
    return "\n\n".join(p["prompt"] + p["canonical_solution"] for p in parts)
