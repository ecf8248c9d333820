"""Passages of a book: real prose beside the invented texts.

Paragraphs are taken in blocks; every eighth block is held out of training.
"""
import functools
import pathlib

BLOCK, HELD_OUT_EVERY = 40, 8


@functools.cache
def blocks(path, heldout):
    paragraphs = [" ".join(p.split()) for p in pathlib.Path(path).read_text(encoding="utf-8").split("\n\n") if p.strip()]
    every = [paragraphs[i:i + BLOCK] for i in range(0, len(paragraphs), BLOCK)]
    return [b for i, b in enumerate(every) if (i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == heldout]


def document(rng, path, heldout=False):
    """A run of whole paragraphs of some 900 to 1900 characters."""
    while True:
        block = rng.choice(blocks(path, heldout))
        start, length = rng.randrange(len(block)), rng.randint(900, 1900)
        passage = block[start]
        for paragraph in block[start + 1:]:
            if len(passage) >= length:
                break
            passage += "\n\n" + paragraph
        if 700 <= len(passage) <= 2400:
            return passage
