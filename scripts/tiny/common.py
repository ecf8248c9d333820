"""What all text generators share: the split into training and held-out material, and small helpers."""
import hashlib

END = "<|endoftext|>"

FIRST_NAMES = ("Ada Alma Anton Beatrix Bruno Carla Casper Clara Conrad Dora Edgar Elsa Emil Esther Felix Flora "
               "Gerta Greta Hanna Hugo Ida Irma Ivan Jasper Jonas Julia Karl Klara Lena Leo Linus Lotte Magnus "
               "Marta Milo Mina Nadia Nils Nora Olga Oscar Otto Paula Petra Quentin Rosa Rufus Sara Selma Simon "
               "Stella Theo Tilda Tobias Ulla Vera Viktor Wanda Willem Yara").split()
SHE = set("Ada Alma Beatrix Carla Clara Dora Elsa Esther Flora Gerta Greta Hanna Ida Irma Julia Klara Lena Lotte "
          "Marta Mina Nadia Nora Olga Paula Petra Rosa Sara Selma Stella Tilda Ulla Vera Wanda Yara".split())


def held_out(key, one_in=12):
    """Whether this piece of material is kept out of training: a fixed property of its content."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:4], "big") % one_in == 0


def pronouns(name):
    return ("she", "her", "her") if name in SHE else ("he", "him", "his")


def capital(text):
    return text[:1].upper() + text[1:]


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def listing(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
