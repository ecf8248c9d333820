#!/usr/bin/env python3
"""Write the tiny tasks' data: hidden items, shots, what agents may see, and likelihood documents.

usage: make_data.py CHECKPOINT_FOLDER BOOK OUTPUT_FOLDER

Hidden and practice questions come from held-out keys, so none is in the training text.
"""
import json
import pathlib
import random
import re
import sys

from tokenizers import Tokenizer

import text_code
import text_facts
import text_math
from corpus import GENERATORS, sample_document

SEED = 77
ITEMS, PRACTICE, DOCUMENTS_PER_SOURCE, CALIBRATION_BYTES, LEAST_TOKENS = 50, 20, 32, 300_000, 170


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")


def distinct(draw, label, count, taken):
    """count items whose label was not taken before."""
    out = []
    while len(out) < count:
        item = draw()
        if label(item) not in taken:
            taken.add(label(item))
            out.append(item)
    return out


def numbers(item):
    return tuple(re.findall(r"\d+", item["question"]))


def passing(item):
    scope = {}
    exec(item["prompt"] + item["canonical_solution"] + item["test"], scope)
    scope["check"](scope[item["entry_point"]])
    return item


def questions(rng, count, taken, asked, heldout, tag):
    """-> {benchmark: records in the layout of the real one}"""
    math = distinct(lambda: text_math.problem(rng, heldout), numbers, count, taken)
    code = distinct(lambda: passing(text_code.function(rng, heldout)), lambda x: x["entry_point"], count, taken)
    trivia = distinct(lambda: text_facts.question(rng, heldout), lambda x: x["question"], count, taken)
    asked |= {x["question"] for x in math + trivia} | {x["entry_point"] for x in code}
    return {"gsm8k": [{"id": f"tiny-gsm8k/{tag}/{i}", **x} for i, x in enumerate(math)],
            "humaneval": [{"task_id": f"TinyEval/{tag}/{i}", **x} for i, x in enumerate(code)],
            "triviaqa": [{"question_id": f"tiny-trivia/{tag}/{i}", **x} for i, x in enumerate(trivia)]}


def long_document(rng, source, least, asked):
    """A document of held-out material, lengthened until it has enough tokens, without any of the asked questions."""
    kind = rng.choice(("facts", "quiz")) if source == "facts" else source
    gap = "\n\n\n" if source == "code" else "\n\n"
    while True:
        text = GENERATORS[kind](rng, True)
        while not least(text):
            text += gap + GENERATORS[kind](rng, True)
        if not any(question in text for question in asked):
            return text


def likelihood_documents(rng, least, asked):
    """-> (search, verification)"""
    sets = [], []
    for source in ("prose", "math", "code", "facts"):
        for i in range(2 * DOCUMENTS_PER_SOURCE):
            text = long_document(rng, source, least, asked)
            sets[i % 2].append({"id": f"{('search', 'verification')[i % 2]}/{source}-{i // 2}", "source": source, "text": text})
    return sets


def calibration(rng, book):
    total = 0
    while total < CALIBRATION_BYTES:
        source, text = sample_document(rng, book)
        total += len(text.encode())
        yield {"id": f"calibration-{total}", "text": text, "source": {"book": "prose", "quiz": "facts"}.get(source, source)}


def main():
    tokenizer = Tokenizer.from_file(str(pathlib.Path(sys.argv[1]) / "tokenizer.json"))
    book, out, rng = sys.argv[2], pathlib.Path(sys.argv[3]), random.Random(SEED)
    taken, asked = set(), set()
    hidden = questions(rng, ITEMS, taken, asked, True, "hidden")
    practice = questions(rng, PRACTICE, taken, asked, True, "practice")
    shots = questions(rng, 5, taken, asked, False, "shot")
    for name in hidden:
        write(out / "items" / f"{name}.jsonl", hidden[name])
        write(out / "visible" / f"practice_{name}.jsonl", practice[name])
    write(out / "shots" / "gsm8k.jsonl", shots["gsm8k"][:4])
    write(out / "shots" / "triviaqa.jsonl", shots["triviaqa"])
    least = lambda text: len(tokenizer.encode(text).ids) >= LEAST_TOKENS
    search, verification = likelihood_documents(rng, least, asked)
    write(out / "documents" / "search.jsonl", search)
    write(out / "documents" / "verification.jsonl", verification)
    write(out / "visible" / "calibration.jsonl", calibration(rng, book))


if __name__ == "__main__":
    main()
