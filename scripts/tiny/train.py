#!/usr/bin/env python3
"""Train the tiny hybrid on one GPU within a wall-clock limit and write a Hugging Face checkpoint.

usage: train.py CHECKPOINT_FOLDER BOOK --seconds 380 [--out FOLDER] [--workers 12] [--batch 128]

Worker processes generate text while the model trains; a batch is drawn from what exists so far.
The learning rate warms up, stays, and falls to zero linearly over the last part of the time.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from model import CONFIG, TinyHybrid

HERE = pathlib.Path(__file__).parent
WARM_UP, FALL_FROM = 0.015, 0.40  # as parts of the whole time
END = CONFIG["eos_token_id"]


class Rows:
    """The rows generated so far, on the training device."""

    def __init__(self, folder, device):
        self.folder, self.device, self.seen, self.shards = folder, device, set(), []

    def refresh(self):
        for path in sorted(self.folder.glob("shard-*.npy")):
            if path not in self.seen:
                self.seen.add(path)
                self.shards.append(torch.from_numpy(np.load(path).astype(np.int16)).to(self.device))
                path.unlink()

    def wait(self):
        while not self.shards:
            time.sleep(0.2)
            self.refresh()

    def batch(self, size):
        shard = self.shards[np.random.randint(len(self.shards))]
        return shard[torch.randint(len(shard), (size,), device=self.device)].long()


def head_loss(hidden, embedding, labels):
    logits = F.linear(hidden, embedding).float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def backward(model, rows, head, device):
    ids, labels = rows[:, :-1], rows[:, 1:]
    labels = labels.masked_fill((ids == END) & (labels == END), -100)  # the filling at the end of a row
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = head(model.hidden(ids), model.model.embed_tokens.weight, labels)
    loss.backward()
    return loss


def learning_rate(progress, peak):
    return peak * min(progress / WARM_UP, 1, max(0, (1 - progress) / (1 - FALL_FROM)))


def optimizer_of(model, device):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    return torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)],
                             betas=(0.9, 0.95), fused=device == "cuda")


def save(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    generation = {"do_sample": False, "eos_token_id": END, "pad_token_id": END}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def train(model, rows, head, options, device, started):
    optimizer, step, tokens = optimizer_of(model, device), 0, 0
    backward(model, rows.batch(options.batch), head, device)  # compiles; its gradient is dropped
    optimizer.zero_grad(set_to_none=True)
    began = saved = time.time()
    print(f"compiled after {began - started:.0f} s", flush=True)
    span = max(1.0, started + options.seconds - began)
    while (progress := (time.time() - began) / span) < 1:
        if step % 20 == 0:
            rows.refresh()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, options.rate)
        batch = rows.batch(options.batch)
        loss = backward(model, batch, head, device)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + batch.numel()
        if step % 100 == 0:
            print(f"{time.time() - started:6.1f} s  step {step}  loss {loss.item():.4f}  {tokens / 1e6:.0f} M tokens  "
                  f"{len(rows.shards)} shards", flush=True)
        if time.time() - saved > 90:
            save(model, options.out)
            saved = time.time()
    save(model, options.out)
    print(f"end: {step} steps, {tokens / 1e6:.0f} M tokens, last loss {loss.item():.4f}, {time.time() - started:.0f} s", flush=True)


def main():
    started = time.time()
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("book")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=380)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--shards", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    options.out = options.out or options.checkpoint
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as scratch:
        workers = [subprocess.Popen([sys.executable, HERE / "corpus.py", options.checkpoint, options.book, scratch,
                                     str(i), str(options.shards)]) for i in range(options.workers)]
        try:
            torch.manual_seed(1)
            np.random.seed(1)
            model = TinyHybrid().to(device)
            head = head_loss
            if not options.eager:  # layers of one kind share one compilation
                head = torch.compile(head_loss, dynamic=False)
                for layer in model.model.layers:
                    layer.compile(dynamic=False)
            rows = Rows(pathlib.Path(scratch), device)
            rows.wait()
            train(model, rows, head, options, device, started)
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


if __name__ == "__main__":
    main()
