#!/usr/bin/env python3
"""Scoring speed of the public transformers implementation, for gpu_check.sh to compare with.

    scripts/score_transformers.py tasks/configs/MODEL.json [--batch 4] [--length 2048] [--repeats 5]

Random BF16 weights made on the GPU. One pass feeds `batch` sequences of `length` tokens and takes
the log-probabilities of the last three quarters of each, as the likelihood protocol does: hidden
states through the head in chunks, log-sum-exp in fp32. Prints one JSON line with tokens fed per
second (median of the repeats, and their range). Needs torch and transformers; exit 3 without.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    import transformers

    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        from transformers.modeling_utils import no_init_weights
except ImportError as error:
    print(f"score_transformers: {error}; install torch and transformers", file=sys.stderr)
    sys.exit(3)


def make_model(path, device):
    raw = json.load(open(path))
    config = transformers.AutoConfig.for_model(**raw)
    config = config.get_text_config()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device), no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02, generator=generator)
            else:
                parameter.fill_(0.5)
    return model.eval()


@torch.no_grad()
def score(model, ids, chunk=2048):
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    context = ids.shape[1] // 4
    rows = hidden[:, context - 1 : -1].reshape(-1, hidden.shape[-1])
    targets = ids[:, context:].reshape(-1)
    total = torch.zeros((), dtype=torch.float64, device=ids.device)
    for begin in range(0, rows.shape[0], chunk):
        logits = model.lm_head(rows[begin : begin + chunk]).float()
        nll = torch.logsumexp(logits, -1) - logits.gather(1, targets[begin : begin + chunk, None])[:, 0]
        total += nll.double().sum()
    return total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    model = make_model(args.config, args.device)
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.length), device=args.device)
    for _ in range(2):
        score(model, ids)
    rates = []
    for _ in range(args.repeats):
        begin = time.perf_counter()
        score(model, ids)
        rates.append(ids.numel() / (time.perf_counter() - begin))
    print(json.dumps({
        "what": "transformers scoring", "transformers": transformers.__version__,
        "torch": torch.__version__, "parameters": sum(p.numel() for p in model.parameters()),
        "batch": args.batch, "length": args.length, "tokens_per_second": statistics.median(rates),
        "range": [min(rates), max(rates)],
    }))


if __name__ == "__main__":
    main()
