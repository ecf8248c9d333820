#!/usr/bin/env python3
"""Check that the hidden items are solvable and appear nowhere they should not.

usage: check_data.py DATA_FOLDER BOOK SHARDS

Looks for the questions (for code: signature and docstring) in the visible data, in the likelihood documents and in
the regenerated text of SHARDS stretches of training data. Word problems must not return under other names either:
there, the sequence of numbers and short words is compared.
"""
import pathlib
import random
import re
import sys

import corpus
from evaluate import STOPS, read

DOCUMENTS_PER_SHARD = 6000


def strings(data, folder, prefix=""):
    """-> {benchmark: what of each question must not occur elsewhere}"""
    out = {}
    for name in STOPS:
        out[name] = [r.get("question") or r["prompt"].split("\n\n\n")[-1].split("\n    >>>")[0]
                     for r in read(data / folder / f"{prefix}{name}.jsonl")]
    return out


def masked(question):
    """A word problem with names and things blanked: only numbers and short words stay."""
    return " ".join(w for w in re.findall(r"\d+|[a-z]{1,3}\b", question))


def check_solutions(data):
    for r in read(data / "items" / "humaneval.jsonl"):
        scope = {}
        exec(r["prompt"] + r["canonical_solution"] + r["test"], scope)
        scope["check"](scope[r["entry_point"]])


def main():
    data, book, shards = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    check_solutions(data)
    hidden = strings(data, "items")
    wanted = {s for group in hidden.values() for s in group}
    assert len(wanted) == 150
    visible = "\n".join(r["text"] for r in read(data / "visible" / "calibration.jsonl"))
    places = {"calibration": visible,
              "practice": "\n".join(s for g in strings(data, "visible", "practice_").values() for s in g),
              **{k: "\n".join(r["text"] for r in read(data / "documents" / f"{k}.jsonl")) for k in ("search", "verification")}}
    for place, text in places.items():
        assert not [s for s in wanted if s in text], place
    numbers, clashes = {masked(q) for q in hidden["gsm8k"]}, 0
    for shard in range(shards):
        rng = random.Random(corpus.TRAINING_SEED + shard)
        texts = [corpus.sample_document(rng, book) for _ in range(DOCUMENTS_PER_SHARD)]
        whole = "\n".join(t for _, t in texts)
        assert not [s for s in wanted if s in whole], f"shard {shard} holds a hidden question"
        asked = re.findall(r"Question: (.*)", "\n".join(t for s, t in texts if s == "math"))
        clashes += sum(masked(q) in numbers for q in asked)
    assert clashes == 0
    print(f"150 hidden questions, {shards * DOCUMENTS_PER_SHARD} training documents: no question found")


if __name__ == "__main__":
    main()
