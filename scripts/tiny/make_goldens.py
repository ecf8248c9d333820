#!/usr/bin/env python3
"""Write small random checkpoints and the fp32 logits transformers computes from them.

usage: make_goldens.py OUTPUT_FOLDER

Every case becomes a folder with config.json, model.safetensors (the weights) and
golden.safetensors (token ids and logits of a few sequences, one greedy continuation).
The weights are rounded to BF16 first and then upcast, so a reader that computes in
fp32 must land on the same logits.
"""
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

LENGTHS = (1, 2, 3, 63, 64, 65, 130)  # around the chunk of 64 that the delta rule works in
SHORT = (1, 2, 17, 65)
GREEDY_TOKENS = 24

BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, vocab_size=128, max_position_embeddings=512,
            bos_token_id=0, eos_token_id=1)
HYBRID = dict(BASE, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=16, linear_value_head_dim=16,
              rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                   partial_rotary_factor=0.25, mrope_interleaved=True,
                                   mrope_section=[2, 1, 1]))
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=64)
PLAIN_ROPE = dict(rope_type="default", rope_theta=10000.0)
VISION = dict(depth=1, hidden_size=32, intermediate_size=32, num_heads=2, patch_size=2,
              temporal_patch_size=1, spatial_merge_size=1, out_hidden_size=64,
              num_position_embeddings=16, in_channels=3)


def hybrid(**changes):
    return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**{**HYBRID, **changes}))


def nested(**changes):
    config = transformers.Qwen3_5Config(
        text_config={**HYBRID, **changes}, vision_config=VISION, image_token_id=2,
        video_token_id=3, vision_start_token_id=4, vision_end_token_id=5,
        tie_word_embeddings=changes.get("tie_word_embeddings", False))
    return transformers.Qwen3_5ForConditionalGeneration(config)


def llama(**changes):
    settings = {**BASE, "rope_parameters": PLAIN_ROPE, **changes}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))


def qwen3(**changes):
    settings = {**BASE, "head_dim": 32, "rope_parameters": PLAIN_ROPE, **changes}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings))


CASES = {
    "qwen3_5_tied": (lambda: hybrid(tie_word_embeddings=True), LENGTHS),
    "qwen3_5_untied": (lambda: hybrid(tie_word_embeddings=False, rms_norm_eps=1e-5,
                                      linear_num_value_heads=6), LENGTHS),
    # one query group, rectangular delta-net heads, an odd vocabulary, full attention every second layer
    "qwen3_5_shapes": (lambda: hybrid(tie_word_embeddings=True, num_key_value_heads=1, head_dim=16,
                                      linear_num_key_heads=4, linear_key_head_dim=16,
                                      linear_value_head_dim=32, vocab_size=131,
                                      layer_types=["linear_attention", "full_attention"] * 2,
                                      rope_parameters=dict(HYBRID["rope_parameters"],
                                                           partial_rotary_factor=0.5)), LENGTHS),
    "qwen3_5_wide": (lambda: hybrid(tie_word_embeddings=True, hidden_size=128, intermediate_size=64,
                                    linear_num_key_heads=1, linear_num_value_heads=2,
                                    linear_key_head_dim=32, linear_value_head_dim=32,
                                    num_attention_heads=2, num_key_value_heads=1), (3, 64)),
    "qwen3_5_multimodal": (lambda: nested(tie_word_embeddings=False), SHORT),
    "llama_tied": (lambda: llama(tie_word_embeddings=True), SHORT),
    "llama_untied_bias": (lambda: llama(tie_word_embeddings=False, attention_bias=True,
                                        rms_norm_eps=1e-5), SHORT),
    "llama_rope_llama3": (lambda: llama(tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE,
                                        num_key_value_heads=4), (1, 65, 130)),
    "qwen3_dense": (lambda: qwen3(tie_word_embeddings=True), SHORT),
}


@torch.no_grad()
def randomise(model, generator):
    """Give every parameter a scale at which no part of the model is negligible."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("A_log"):
            value = torch.rand(p.shape, generator=generator).mul(8).add(0.05).log()
        elif name.endswith("dt_bias"):
            value = noise - 1.5
        elif "conv1d" in name:
            value = noise * 0.5
        elif "embed_tokens" in name:
            value = noise * 0.3
        elif p.ndim == 1 and "norm" in name and ("linear_attn" in name or "qwen3_5" not in model.config.model_type):
            value = 1 + noise * 0.2
        elif p.ndim == 1:
            value = noise * 0.2
        else:
            value = noise * (1.2 / p[0].numel() ** 0.5)
        p.copy_(value.to(torch.bfloat16).float())


@torch.no_grad()
def logits_of(model, ids):
    logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    assert logits.isfinite().all()
    return logits


def greedy(model, generator, vocab):
    """A continuation whose every step has a clear winner, so that rounding cannot change it."""
    for _ in range(200):
        prompt = torch.randint(6, vocab, (9,), generator=generator)
        ids, margin = prompt, float("inf")
        for _ in range(GREEDY_TOKENS):
            top = logits_of(model, ids)[-1].topk(2)
            margin = min(margin, float(top.values[0] - top.values[1]))
            ids = torch.cat([ids, top.indices[:1]])
        if margin > 0.02:
            return prompt, ids[len(prompt):], margin
    raise RuntimeError("no prompt with a clear greedy continuation")


def weights_of(model):
    """The tensors as released checkpoints store them: BF16, tied head left out."""
    state = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    text = model.config.get_text_config()
    if text.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if model.config.model_type == "qwen3_5":  # the large released checkpoints keep these two in F32
        for name in state:
            if name.endswith(("A_log", "linear_attn.norm.weight")):
                state[name] = state[name].float()
    return state


def write_case(folder, build, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    model = build().float().eval()
    model.set_attn_implementation("eager")
    randomise(model, generator)
    vocab = model.config.get_text_config().vocab_size
    golden = {}
    for i, length in enumerate(lengths):
        ids = torch.randint(6, vocab, (length,), generator=generator)
        golden[f"seq{i}.ids"] = ids.to(torch.int32)
        golden[f"seq{i}.logits"] = logits_of(model, ids).contiguous()
    prompt, continuation, margin = greedy(model, generator, vocab)
    golden["greedy.prompt"], golden["greedy.ids"] = prompt.to(torch.int32), continuation.to(torch.int32)

    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "bfloat16"
    config = model.config.to_diff_dict() | {"model_type": model.config.model_type}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(weights_of(model), folder / "model.safetensors", metadata={"format": "pt"})
    save_file(golden, folder / "golden.safetensors")
    check_reload(folder, golden)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{folder.name:22} {size / 1024:6.0f} KiB  greedy margin {margin:.3f}  "
          f"logit sd {golden[f'seq{len(lengths) - 1}.logits'].std():.2f}")


def check_reload(folder, golden):
    """What was written must give the same logits when transformers loads it from disk."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    worst = max(float((logits_of(model, golden[k].long()) - golden[k[:-3] + "logits"]).abs().max())
                for k in golden if k.startswith("seq") and k.endswith("ids"))
    assert worst < 1e-4, f"{folder}: reloaded logits differ by {worst}"


def main():
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for seed, (name, (build, lengths)) in enumerate(CASES.items(), start=1):
        write_case(root / name, build, lengths, seed)


if __name__ == "__main__":
    main()
