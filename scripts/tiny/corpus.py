#!/usr/bin/env python3
"""Mix the generators into training text and pack it into token rows.

usage: corpus.py CHECKPOINT_FOLDER BOOK SHARD_FOLDER WORKER SHARDS

Writes SHARDS files of rows (uint16, ROWS x WIDTH). Documents start whole; a row holds as many as fit, each
closed by the end token, and is filled up with end tokens. Equal arguments give equal files.
"""
import pathlib
import random
import sys

import text_book
import text_code
import text_facts
import text_math
import text_prose
from common import END

ROWS, WIDTH = 2048, 577  # 576 inputs and their 576 successors
TRAINING_SEED = 1000

# source -> share of documents
MIX = {"prose": 0.13, "book": 0.02, "math": 0.20, "code": 0.30, "facts": 0.18, "quiz": 0.17}
GENERATORS = {"prose": text_prose.document, "math": text_math.document, "code": text_code.document,
              "facts": text_facts.document, "quiz": text_facts.quiz}


def sample_document(rng, book, source=None):
    """-> (source, text)"""
    source = source or rng.choices(list(MIX), MIX.values())[0]
    return source, text_book.document(rng, book) if source == "book" else GENERATORS[source](rng)


def packed_rows(tokenizer, book, rng, rows):
    import numpy as np
    end, out, open_rows = tokenizer.token_to_id(END), [], []
    while len(out) < rows:
        texts = [sample_document(rng, book)[1] for _ in range(256)]
        for encoding in tokenizer.encode_batch(texts):
            ids = encoding.ids[:WIDTH - 1] + [end]
            place = next((row for row in open_rows if len(row) + len(ids) <= WIDTH), None)
            if place is None:
                place = []
                open_rows.append(place)
            place += ids
        open_rows.sort(key=len)
        out += open_rows[8:]
        open_rows = open_rows[:8]
    filled = np.full((rows, WIDTH), end, np.uint16)
    for i, row in enumerate(out[:rows]):
        filled[i, :len(row)] = row
    return filled


def main():
    import numpy as np
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(pathlib.Path(sys.argv[1]) / "tokenizer.json"))
    book, folder, worker, shards = sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        rng = random.Random(TRAINING_SEED + 10000 * worker + shard)
        unfinished = folder / f"part-{worker}-{shard}"
        with open(unfinished, "wb") as f:
            np.save(f, packed_rows(tokenizer, book, rng, ROWS))
        unfinished.rename(folder / f"shard-{worker}-{shard}.npy")


if __name__ == "__main__":
    main()
