#!/usr/bin/env python3
"""Convert a llama2.c checkpoint and its tokenizer to a Hugging Face Llama checkpoint.

usage: convert_stories.py stories260K.bin tok512.bin golden.json OUTPUT_FOLDER

golden.json holds greedy texts of llama2.c's run.c; the converted model must repeat them.
"""
import json
import pathlib
import shutil
import struct
import sys

import numpy as np
import torch
from safetensors.torch import save_file

BOS, EOS, SPACE = "<s>", "</s>", "\u2581"


def read_model(path):
    """-> (config values, HF state dict). The file is seven ints, then fp32 arrays in a fixed order."""
    raw = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, length = struct.unpack("7i", raw[:28])
    assert vocab > 0, "an unshared output matrix is not handled"
    data, at = np.frombuffer(raw, np.float32, offset=28), 0

    def take(*shape):
        nonlocal at
        n = int(np.prod(shape))
        at += n
        return torch.from_numpy(data[at - n:at].reshape(shape).copy())

    head = dim // heads
    state = {"model.embed_tokens.weight": take(vocab, dim)}
    arrays = [("input_layernorm", (dim,)), ("self_attn.q_proj", (dim, dim)),
              ("self_attn.k_proj", (kv_heads * head, dim)), ("self_attn.v_proj", (kv_heads * head, dim)),
              ("self_attn.o_proj", (dim, dim)), ("post_attention_layernorm", (dim,)),
              ("mlp.gate_proj", (hidden, dim)), ("mlp.down_proj", (dim, hidden)),
              ("mlp.up_proj", (hidden, dim))]
    for name, shape in arrays:
        for i, w in enumerate(take(layers, *shape)):
            if name.endswith(("q_proj", "k_proj")):
                w = halves_from_pairs(w, head)
            state[f"model.layers.{i}.{name}.weight"] = w.contiguous()
    state["model.norm.weight"] = take(dim)
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=dim,
                  intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                  num_key_value_heads=kv_heads, head_dim=head, vocab_size=vocab,
                  max_position_embeddings=length, rms_norm_eps=1e-5, rope_theta=10000.0,
                  rope_scaling=None, hidden_act="silu", attention_bias=False, mlp_bias=False,
                  tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, torch_dtype="float32")
    return config, state


def halves_from_pairs(w, head):
    """llama2.c rotates neighbours (0,1),(2,3),..; HF rotates (i, i + head/2)."""
    return w.view(-1, head // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


def read_pieces(path):
    """-> [(piece, score)], spaces written as in SentencePiece."""
    raw, at, pieces = path.read_bytes(), 4, []
    while at < len(raw):
        score, n = struct.unpack("fi", raw[at:at + 8])
        pieces.append((raw[at + 8:at + 8 + n].decode("utf-8").replace(" ", SPACE), score))
        at += 8 + n
    pieces[1], pieces[2] = (BOS, 0.0), (EOS, 0.0)
    return pieces


def merges_of(pieces):
    """SentencePiece joins the best-scoring pair first; as ranked merges, that is by falling score."""
    vocab = {p: i for i, (p, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces[259:]:
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        splits = [s for s in splits if s[0] in vocab and s[1] in vocab]
        merges += [(-score, vocab[a], vocab[b], [a, b]) for a, b in splits]
    return [m[3] for m in sorted(merges)]


def tokenizer_json(pieces):
    def special(token, i):
        return dict(id=i, content=token, single_word=False, lstrip=False, rstrip=False,
                    normalized=False, special=True)

    def template(*pairs):
        return [{"SpecialToken": {"id": BOS, "type_id": 0}}] + [
            {"Sequence": {"id": name, "type_id": type_id}} for name, type_id in pairs]

    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special("<unk>", 0), special(BOS, 1), special(EOS, 2)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing", "single": template(("A", 0)), "pair": template(("A", 0), ("B", 0)),
            "special_tokens": {BOS: {"id": BOS, "ids": [1], "tokens": [BOS]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>",
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": True, "ignore_merges": False,
                  "vocab": {p: i for i, (p, _) in enumerate(pieces)}, "merges": merges_of(pieces)},
    }


def dump(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@torch.no_grad()
def check(folder, golden):
    """Greedy text must equal run.c's, which prints one newline after the last token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for run in golden["runs"]:
        ids = tokenizer(run["prompt"], return_tensors="pt").input_ids
        while ids.shape[1] < run["steps"] + 1:
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        text = tokenizer.decode(ids[0], skip_special_tokens=True)
        assert text + "\n" == run["text"], (text, run["text"])
        print(f"equal: {run['prompt']!r}")


def main():
    model, tokens, golden, out = (pathlib.Path(a) for a in sys.argv[1:5])
    out.mkdir(parents=True, exist_ok=True)
    config, state = read_model(model)
    dump(out / "config.json", config)
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    dump(out / "tokenizer.json", tokenizer_json(read_pieces(tokens)))
    dump(out / "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=BOS, eos_token=EOS, unk_token="<unk>",
        add_bos_token=True, clean_up_tokenization_spaces=False, model_max_length=config["max_position_embeddings"]))
    shutil.copyfile(golden, out / "golden.json")
    check(out, json.loads(golden.read_text()))


if __name__ == "__main__":
    main()
