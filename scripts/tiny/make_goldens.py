#!/usr/bin/env python3
"""Write small random checkpoints and the fp32 logits transformers computes from them.

usage: make_goldens.py OUTPUT_FOLDER [CASE ...]

Every case becomes a folder with config.json, model.safetensors (the weights) and
golden.safetensors (token ids and logits of a few sequences, one greedy continuation).
The weights are rounded to BF16 first and then upcast, so a reader that computes in
fp32 must land on the same logits.

Mamba 2 layers are computed by a plain recurrence in double precision (oracle_scan), with
dt bounded by the config's time_step_limit: transformers 5.24 bounds it by time_step_min
when it works in chunks and not at all when it steps. Both of its forms must agree with the
recurrence where those bounds do not matter, or the case is refused.
"""
import json
import pathlib
import re
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron_module

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


ROUTED = dict(hidden_size=32, num_hidden_layers=4, head_dim=16, vocab_size=64, num_experts=6,
              num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24)
GEMMA = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, global_head_dim=32, vocab_size=64,
             max_position_embeddings=512, sliding_window=8, hidden_size_per_layer_input=0,
             layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
             rope_parameters=dict(
                 sliding_attention=dict(rope_type="default", rope_theta=100.0),
                 full_attention=dict(rope_type="proportional", rope_theta=1000.0, partial_rotary_factor=0.25)),
             bos_token_id=0, eos_token_id=1)
NEMOTRON = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                vocab_size=96, max_position_embeddings=512, ssm_state_size=16, mamba_num_heads=4,
                mamba_head_dim=8, n_groups=2, chunk_size=16, n_routed_experts=8, num_experts_per_tok=3,
                moe_intermediate_size=24, moe_shared_expert_intermediate_size=40, moe_latent_size=16,
                routed_scaling_factor=2.5, bos_token_id=0, eos_token_id=1)


def routed(**changes):
    settings = {k: v for k, v in HYBRID.items() if k != "intermediate_size"} | ROUTED | changes
    return transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**settings))


def routed_nested(**changes):
    settings = {k: v for k, v in HYBRID.items() if k != "intermediate_size"} | ROUTED | changes
    config = transformers.Qwen3_5MoeConfig(
        text_config=settings, vision_config={**VISION, "out_hidden_size": settings["hidden_size"]},
        image_token_id=2, video_token_id=3, vision_start_token_id=4, vision_end_token_id=5)
    return transformers.Qwen3_5MoeForConditionalGeneration(config)


def gemma(**changes):
    return transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**{**GEMMA, **changes}))


def gemma_nested(**changes):
    config = transformers.Gemma4Config(text_config={**GEMMA, **changes})
    return transformers.Gemma4ForConditionalGeneration(config)


def nemotron(pattern, **changes):
    settings = {**NEMOTRON, **changes, "hybrid_override_pattern": pattern}
    return transformers.NemotronHForCausalLM(transformers.NemotronHConfig(**settings))


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
    "qwen3_5_moe": (lambda: routed(tie_word_embeddings=True), SHORT),
    # two layers, every expert's matrices in tensors of their own
    "qwen3_5_moe_multimodal": (lambda: routed_nested(num_hidden_layers=2, num_experts=5, num_experts_per_tok=3,
                                                     layer_types=["linear_attention", "full_attention"]), SHORT),
    "gemma4_moe": (lambda: gemma(enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=16,
                                 attention_k_eq_v=True, num_global_key_value_heads=1,
                                 final_logit_softcapping=3.0), SHORT),
    "gemma4_multimodal": (lambda: gemma_nested(), SHORT),
    "nemotron_h": (lambda: nemotron("MEM*E-"), SHORT),
    # groups of experts, no latent width, weights not normalized, dt bounded on both sides, a wrapper's names
    "nemotron_h_multimodal": (lambda: nemotron("*MEM", n_group=4, topk_group=2, num_experts_per_tok=2,
                                               moe_latent_size=None, norm_topk_prob=False, use_bias=True,
                                               time_step_limit=(0.2, 0.4), n_groups=1), SHORT),
}


@torch.no_grad()
def randomise(model, generator):
    """Give every parameter a scale at which no part of the model is negligible."""
    learned = [(n, b) for n, b in model.named_buffers() if n.endswith(("layer_scalar", "e_score_correction_bias"))]
    for name, p in [*model.named_parameters(), *learned]:
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("A_log"):
            value = torch.rand(p.shape, generator=generator).mul(8).add(0.05).log()
        elif name.endswith("dt_bias"):
            value = noise - 1.5
        elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale", "mixer.D")):
            value = 1 + noise * 0.2
        elif name.endswith("e_score_correction_bias"):
            value = noise * 0.1
        elif name.endswith("router.proj.weight"):  # its input is small: norm times hidden^-0.5
            value = noise * 1.2
        elif p.ndim == 3 and "experts" in name:
            value = noise * (1.2 / p.shape[-1] ** 0.5)
        elif "conv1d" in name:
            value = noise * 0.5
        elif "embed_tokens" in name or "embeddings" in name:
            value = noise * 0.3
        elif p.ndim == 1 and "norm" in name and ("linear_attn" in name or "qwen3_5" not in model.config.model_type):
            value = 1 + noise * 0.2
        elif p.ndim == 1:
            value = noise * 0.2
        else:
            value = noise * (1.2 / p[0].numel() ** 0.5)
        p.copy_(value.to(torch.bfloat16).float())


def oracle_scan(x, dt, A, B, C, chunk_size, D, dt_bias, dt_limit, **_):
    """y_t = C_t h_t + D x_t with h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, in double precision."""
    share = x.shape[2] // B.shape[2]
    B, C = (m.double().repeat_interleave(share, dim=2) for m in (B, C))
    dt = torch.nn.functional.softplus((dt + dt_bias).double()).clamp(*dt_limit)
    h = torch.zeros(*x.shape[:1], *x.shape[2:], B.shape[-1], dtype=torch.float64)
    out = []
    for t in range(x.shape[1]):
        h = h * (dt[:, t] * A.double())[..., None, None].exp()
        h = h + (dt[:, t, :, None] * x[:, t].double())[..., None] * B[:, t, :, None, :]
        out.append((h * C[:, t, :, None, :]).sum(-1) + D.double()[:, None] * x[:, t].double())
    return torch.stack(out, dim=1).float()


CHUNK_SCAN = nemotron_module.mamba2_chunk_scan


def mamba_layers(model):
    return [m for m in model.modules() if isinstance(m, nemotron_module.NemotronHMamba2Mixer)]


def run(model, ids, scan, limit=None):
    """Logits of all rows, Mamba 2 layers computed by `scan` and bounded by `limit`."""
    for layer in mamba_layers(model):
        layer.time_step_limit = tuple(limit or model.config.time_step_limit)
    nemotron_module.mamba2_chunk_scan = scan
    logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    assert logits.isfinite().all()
    return logits


@torch.no_grad()
def logits_of(model, ids):
    return run(model, ids, oracle_scan)


@torch.no_grad()
def check_mamba(model, ids):
    """The library's own two forms against the recurrence, with bounds under which they agree."""
    if not mamba_layers(model):
        return
    for limit in (None, (0.0, float("inf"))):
        worst = float((run(model, ids, CHUNK_SCAN, limit) - run(model, ids, oracle_scan, limit)).abs().max())
        assert worst < 1e-4, f"chunks differ from the recurrence by {worst}"
    run(model, ids, CHUNK_SCAN, (0.0, float("inf")))  # leaves these two in place
    cache, stepped = None, []
    for id in ids:
        out = model(input_ids=id[None, None], cache=cache, use_cache=True)
        cache = out.cache
        stepped.append(out.logits[0, 0])
    worst = float((torch.stack(stepped) - run(model, ids, oracle_scan, (0.0, float("inf")))).abs().max())
    assert worst < 1e-4, f"steps differ from the recurrence by {worst}"


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
    if model.config.model_type == "nemotron_h":  # names as published
        state = {re.sub("^model", "backbone", k): v for k, v in split_experts(state).items()}
    if model.config.model_type == "qwen3_5_moe":
        state = split_experts(state)
    if model.config.model_type == "qwen3_5":  # the large released checkpoints keep these two in F32
        for name in state:
            if name.endswith(("A_log", "linear_attn.norm.weight")):
                state[name] = state[name].float()
    return state


def split_experts(state):
    """Stacked experts as tensors of their own, the other layout in which checkpoints store them."""
    out = {}
    for name, value in state.items():
        stem, _, part = name.rpartition(".")
        if not stem.endswith(".experts"):
            out[name] = value
            continue
        parts = ["gate_proj", "up_proj"] if part == "gate_up_proj" else [part]
        for expert, matrix in enumerate(value):
            for word, rows in zip(parts, matrix.chunk(len(parts))):
                out[f"{stem}.{expert}.{word}.weight"] = rows.contiguous()
    return out


def config_of(model):
    """config.json with the keys that published checkpoints use."""
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "bfloat16"
    config = model.config.to_diff_dict() | {"model_type": model.config.model_type}
    text = config.get("text_config", config)
    if text["model_type"] == "gemma4_text":
        full = next(iter(text.pop("per_layer_config").values()))
        text["global_head_dim"] = full["head_dim"]
        text["num_global_key_value_heads"] = full.get("num_key_value_heads")
        text["hidden_size_per_layer_input"] = 0
    if text["model_type"] == "nemotron_h":
        text.pop("layers_block_type")
        text["hybrid_override_pattern"] = model.config.hybrid_override_pattern
        text["num_hidden_layers"] = model.config.num_hidden_layers
    return config


def wrap(config, state):
    """A text model as the text part of a multimodal checkpoint, in the published layout."""
    wrapper = {"model_type": "nemotron_h_omni", "architectures": ["NemotronH_Omni_Reasoning_V3"], "llm_config": config}
    return wrapper, {"language_model." + k: v for k, v in state.items()}


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

    check_mamba(model, golden[f"seq{len(lengths) - 1}.ids"].long())

    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder, config_of(model), weights_of(model))
    save_file(golden, folder / "golden.safetensors")
    check_reload(folder, golden)
    if folder.name == "nemotron_h_multimodal":
        write_checkpoint(folder, *wrap(config_of(model), weights_of(model)))
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{folder.name:22} {size / 1024:6.0f} KiB  greedy margin {margin:.3f}  "
          f"logit sd {golden[f'seq{len(lengths) - 1}.logits'].std():.2f}")


def write_checkpoint(folder, config, state):
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


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
        if len(sys.argv) == 2 or name in sys.argv[2:]:
            write_case(root / name, build, lengths, seed)


if __name__ == "__main__":
    main()
