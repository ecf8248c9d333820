#!/usr/bin/env python3
"""Train the tiny model's byte-level BPE tokenizer on generated text.

usage: make_tokenizer.py BOOK CHECKPOINT_FOLDER
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from common import END
from corpus import sample_document

VOCABULARY = 4096
DOCUMENTS = 16000
SEED = 11
# The split of the Qwen tokenizers: contractions, words with one leading mark or space, single digits,
# runs of punctuation, line breaks, spaces.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(book):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(SEED)
    texts = (sample_document(rng, book)[1] for _ in range(DOCUMENTS))
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 1, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    return tokenizer


def main():
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    train(sys.argv[1]).save(str(folder / "tokenizer.json"))
    settings = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token=END, pad_token=END, bos_token=None,
                    add_bos_token=False, clean_up_tokenization_spaces=False, model_max_length=2048)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    main()
