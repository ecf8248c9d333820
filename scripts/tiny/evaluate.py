#!/usr/bin/env python3
"""Greedy few-shot accuracy and perplexity of a tiny checkpoint, computed by transformers.

usage: evaluate.py CHECKPOINT_FOLDER DATA_FOLDER [--perplexity]
"""
import json
import pathlib
import re
import sys

import torch
import transformers

STOPS = {"gsm8k": ["Question:"], "humaneval": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"], "triviaqa": ["\n"]}
NEW_TOKENS = {"gsm8k": 80, "humaneval": 64, "triviaqa": 16}


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def prompts(data, benchmark):
    """-> [(prompt, record)]"""
    items = read(data / "items" / f"{benchmark}.jsonl")
    if benchmark == "humaneval":
        return [(x["prompt"], x) for x in items]
    answer = (lambda x: x["answer"]) if benchmark == "gsm8k" else (lambda x: x["answer"]["value"])
    shots = "".join(f"Question: {s['question']}\nAnswer: {answer(s)}\n\n" for s in read(data / "shots" / f"{benchmark}.jsonl"))
    return [(f"{shots}Question: {x['question']}\nAnswer:", x) for x in items]


def normalised(text):
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return " ".join(w for w in words if w not in ("a", "an", "the"))


def correct(benchmark, record, prompt, text):
    if benchmark == "gsm8k":
        said = re.search(r"#### (-?[0-9.,]+)", text)
        return said is not None and said[1].replace(",", "") == record["answer"].split("#### ")[1]
    if benchmark == "triviaqa":
        return normalised(text) in {normalised(a) for a in record["answer"]["aliases"]}
    scope = {}
    try:  # a six-million-parameter model's one-liners; no sandbox needed here
        exec(prompt + text + record["test"], scope)
        scope["check"](scope[record["entry_point"]])
    except Exception:
        return False
    return True


def cut(text, stops):
    return text[:min((at for at in (text.find(s) for s in stops) if at >= 0), default=len(text))]


@torch.no_grad()
def answers(model, tokenizer, texts, new_tokens, batch=50):
    out = []
    for i in range(0, len(texts), batch):
        encoded = tokenizer(texts[i:i + batch], return_tensors="pt", padding=True, padding_side="left",
                            return_token_type_ids=False).to(model.device)
        ids = model.generate(**encoded, max_new_tokens=new_tokens, do_sample=False)
        out += tokenizer.batch_decode(ids[:, encoded.input_ids.shape[1]:], skip_special_tokens=True)
    return out


def accuracy(model, tokenizer, data, benchmark, show=0):
    pairs = prompts(data, benchmark)
    texts = answers(model, tokenizer, [p for p, _ in pairs], NEW_TOKENS[benchmark])
    right = 0
    for (prompt, record), text in zip(pairs, texts):
        text = cut(text, STOPS[benchmark])
        good = correct(benchmark, record, prompt, text)
        right += good
        if not good and show > 0:
            show -= 1
            print(f"--- wrong in {benchmark}: {prompt[-160:]!r} -> {text[:200]!r}")
    return right / len(pairs)


@torch.no_grad()
def perplexity(model, tokenizer, documents, length=384):
    """-> {source: perplexity} over documents cut to one length."""
    sums = {}
    for d in documents:
        ids = torch.tensor([tokenizer(d["text"]).input_ids[:length]], device=model.device)
        log_p = model(ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        nats = -log_p.gather(1, ids[0, 1:, None]).sum().item()
        for key in (d["source"], "all"):
            total, count = sums.get(key, (0.0, 0))
            sums[key] = (total + nats, count + ids.shape[1] - 1)
    return {k: float(torch.tensor(n / c).exp()) for k, (n, c) in sums.items()}


def load(folder):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def main():
    transformers.logging.set_verbosity_error()
    model, tokenizer = load(sys.argv[1])
    data = pathlib.Path(sys.argv[2])
    scores = {b: accuracy(model, tokenizer, data, b, show=3) for b in STOPS}
    print({**scores, "mean": round(sum(scores.values()) / 3, 4)}, flush=True)
    if "--perplexity" in sys.argv:
        print({k: round(v, 3) for k, v in perplexity(model, tokenizer, read(data / "documents" / "verification.jsonl")).items()})


if __name__ == "__main__":
    main()
