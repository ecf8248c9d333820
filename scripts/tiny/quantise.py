#!/usr/bin/env python3
"""How far simple quantisation can go: bytes, perplexity, KL and accuracy of simulated choices.

usage: quantise.py CHECKPOINT_FOLDER DATA_FOLDER [--seconds 60] [--items 50] [--only TEXT]

A choice gives bits and group size for the embedding (e), the MLP (m) and the token mixers (x), and how the
range of a group is found: 'rtn' takes its minimum and maximum, 'mse' shrinks them to the least squared error.
A group costs an F16 scale and a zero point of its own width; everything else stays BF16. On a GPU the
model runs with BF16 operands and fp32 accumulation, on a CPU in fp32.
"""
import argparse
import pathlib
import time

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

import evaluate
from model import CONFIG, TinyHybrid

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
END = CONFIG["eos_token_id"]


def uniform(how, bits, group):
    return how, {part: (bits, group) for part in "emx"}


def mixed(how, e, m, x, group):
    return how, {"e": (e, group), "m": (m, group), "x": (x, group)}


CHOICES = ([uniform("rtn", b, g) for g in (64, 32, 128) for b in (4, 3, 2, 8)]
           + [uniform("mse", b, g) for g in (64, 32) for b in (3, 2, 4)]
           + [mixed("mse", *c) for c in [(4, 3, 3, 64), (3, 3, 2, 64), (3, 2, 3, 64), (4, 2, 3, 32), (2, 3, 3, 64), (4, 3, 2, 32)]]
           + [mixed("rtn", *c) for c in [(3, 3, 2, 64), (3, 2, 3, 64)]])


def label(choice):
    how, parts = choice
    return how + " " + " ".join(f"{p}{bits}g{group}" for p, (bits, group) in parts.items())


def part_of(name, shape):
    if len(shape) != 2 or name.endswith(("in_proj_a.weight", "in_proj_b.weight")):
        return None
    return "e" if "embed" in name else "m" if ".mlp." in name else "x"


def round_trip(w, bits, group, how):
    """Quantise and restore, asymmetric per group along a row."""
    x, top = w.unflatten(-1, (-1, group)), 2 ** bits - 1
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    best, least = None, None
    for shrink in [1.0] if how == "rtn" else [1.0 - 0.03 * i for i in range(18)]:
        scale = ((high - low) * shrink / top).half().float().clamp(min=1e-7)
        zero = (-low * shrink / scale).round()
        y = ((x / scale + zero).round().clamp(0, top) - zero) * scale
        error = (y - x).square().sum(-1, keepdim=True)
        best, least = (y, error) if best is None else (torch.where(error < least, y, best), torch.minimum(error, least))
    return best.flatten(-2)


def apply(state, choice):
    """-> (weights after the round trip, bytes they would take)"""
    out, size = {}, 0.0
    for name, w in state.items():
        part = part_of(name, w.shape)
        if choice is None or part is None:
            out[name], size = w, size + 2 * w.numel()
        else:
            bits, group = choice[1][part]
            out[name] = round_trip(w, bits, group, choice[0]).bfloat16().float()
            size += w.numel() * bits / 8 + w.numel() / group * (2 + bits / 8)
    return out, size


@torch.no_grad()
def hidden(model, ids):
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
        return model.hidden(ids)


def logits(model, h):
    return (h.bfloat16() @ model.model.embed_tokens.weight.bfloat16().T).float()


@torch.no_grad()
def generate(model, tokenizer, texts, new_tokens, stops):
    """Greedy continuations by recomputing the window; right padding is harmless in a causal model."""
    encoded = [tokenizer.encode(t).ids for t in texts]
    lengths = torch.tensor([len(e) for e in encoded], device=DEVICE)
    width = -(-(int(lengths.max()) + new_tokens) // 64) * 64
    ids = torch.full((len(texts), width), END, device=DEVICE)
    for row, e in zip(ids, encoded):
        row[:len(e)] = torch.tensor(e, device=DEVICE)
    rows = torch.arange(len(texts), device=DEVICE)
    for step in range(new_tokens):
        h = hidden(model, ids)[rows, lengths + step - 1]
        ids[rows, lengths + step] = logits(model, h).argmax(-1)
        out = None
        if step % 8 == 7 or step == new_tokens - 1:
            out = [tokenizer.decode(r[len(e):len(e) + step + 1].tolist(), skip_special_tokens=False)
                   for r, e in zip(ids.cpu(), encoded)]
            if all(any(s in o for s in stops) for o in out):
                break
    return [evaluate.cut(o, stops) for o in out]


@torch.no_grad()
def follows(model, tokenizer, prompt_texts, gold_texts):
    """-> for each prompt, whether greedy decoding would give exactly the gold text and then stop: one pass, no loop."""
    starts = [len(tokenizer.encode(p).ids) for p in prompt_texts]
    encoded = [tokenizer.encode(p + g).ids for p, g in zip(prompt_texts, gold_texts)]
    ids = torch.full((len(encoded), max(map(len, encoded))), END)
    for row, e in zip(ids, encoded):
        row[:len(e)] = torch.tensor(e)
    h = hidden(model, ids.to(DEVICE))
    out = []
    for row, e, start in zip(h, encoded, starts):
        said = logits(model, row[start - 1:len(e)]).argmax(-1).tolist()
        stopped = said[-1] == END or tokenizer.decode(said[-1:]).startswith("\n")
        out.append(said[:-1] == e[start:] and stopped)
    return out


def gold(benchmark, record):
    return {"gsm8k": lambda: " " + record["answer"], "humaneval": lambda: record["canonical_solution"],
            "triviaqa": lambda: " " + record["answer"]["value"]}[benchmark]()


def accuracies(model, tokenizer, data, items):
    scores = []
    for benchmark, stops in evaluate.STOPS.items():
        every = evaluate.prompts(data, benchmark)[:items]
        good = follows(model, tokenizer, [p for p, _ in every], [gold(benchmark, r) for _, r in every])
        pairs = [pair for pair, g in zip(every, good) if not g]
        texts = [] if not pairs else generate(model, tokenizer, [p for p, _ in pairs], evaluate.NEW_TOKENS[benchmark], stops + ["<|endoftext|>"])
        right = sum(good) + sum(evaluate.correct(benchmark, r, p, t) for (p, r), t in zip(pairs, texts))
        scores.append(right / len(every))
    return scores


def windows(tokenizer, data, count, width=384):
    documents = evaluate.read(data / "documents" / "verification.jsonl")[:count]
    ids = torch.full((len(documents), width), END)
    for row, d in zip(ids, documents):
        e = tokenizer.encode(d["text"]).ids[:width]
        row[:len(e)] = torch.tensor(e)
    return ids.to(DEVICE)


@torch.no_grad()
def log_probabilities(model, ids):
    return torch.cat([logits(model, hidden(model, part)[:, :-1]).log_softmax(-1).half() for part in ids.split(32)])


def likelihood(log_p, reference, ids):
    """-> (perplexity on the text, mean KL from the reference) over real tokens."""
    labels = ids[:, 1:]
    real = ~((ids[:, :-1] == END) & (labels == END))
    nats = -log_p.float().gather(-1, labels[..., None])[..., 0]
    kl = torch.stack([(r.float().exp() * (r.float() - p.float())).sum(-1) for r, p in zip(reference, log_p)])
    return float(nats[real].mean().exp()), float(kl[real].mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    started = time.time()
    tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
    state = {k: v.float().to(DEVICE) for k, v in load_file(options.checkpoint / "model.safetensors").items()}
    model, ids, reference = TinyHybrid().to(DEVICE).eval(), windows(tokenizer, options.data, 4 * options.items), None
    print("choice | bytes | perplexity | KL | gsm8k | humaneval | triviaqa | mean")
    for choice in [None] + [c for c in CHOICES if options.only in label(c)]:
        weights, size = apply(state, choice)
        model.load_state_dict(weights)
        log_p = log_probabilities(model, ids)
        reference = log_p if reference is None else reference
        perplexity, kl = likelihood(log_p, reference, ids)
        scores = accuracies(model, tokenizer, options.data, options.items)
        print(f"{label(choice) if choice else 'bf16'} | {size:.0f} | {perplexity:.3f} | {kl:.4f} | "
              + " | ".join(f"{s:.2f}" for s in scores) + f" | {sum(scores) / 3:.3f}", flush=True)
        if time.time() - started > options.seconds:
            break


if __name__ == "__main__":
    main()
