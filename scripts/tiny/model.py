"""The tiny hybrid in plain PyTorch, fast enough to train: parameters carry the names of transformers' Qwen3.5.

Three of four layers mix tokens by the gated delta rule, worked in chunks of 64 positions; every fourth is
full attention with a gated output and partial rotary embedding.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = dict(
    architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", vocab_size=4096, hidden_size=256,
    intermediate_size=512, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=32, linear_value_head_dim=32,
    linear_conv_kernel_dim=4, full_attention_interval=4,
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False, attention_dropout=0.0,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25,
                         mrope_interleaved=True, mrope_section=[4, 2, 2]),
    max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.02, use_cache=True,
    bos_token_id=None, eos_token_id=4095, pad_token_id=None, dtype="bfloat16")
CHUNK = 64


class Norm(nn.Module):
    """RMS norm whose weight is stored minus one."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class GatedNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x, gate):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight * F.silu(gate.float())


def invert_unit_lower(a):
    """(I + a)^-1 for strictly lower a of width 64: a series on blocks of 16, then merging neighbours."""
    n = 16
    blocks = a.unflatten(-2, (-1, n)).unflatten(-1, (-1, n)).transpose(-3, -2)  # [.., row block, column block, n, n]
    power = -torch.stack([blocks[..., i, i, :, :] for i in range(CHUNK // n)], -3)
    eye = torch.eye(n, device=a.device, dtype=a.dtype)
    inverse = eye + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    while n < CHUNK:
        upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = torch.stack([a[..., i + n:i + 2 * n, i:i + n] for i in range(0, CHUNK, 2 * n)], -3)
        below = -(lower @ corner @ upper)
        inverse = torch.cat([torch.cat([upper, torch.zeros_like(upper)], -1), torch.cat([below, lower], -1)], -2)
        n *= 2
    return inverse.squeeze(-3)


class UnitLowerInverse(torch.autograd.Function):
    """The gradient of an inverse needs only the inverse."""

    @staticmethod
    def forward(ctx, a):
        with torch.autocast(a.device.type, enabled=False):
            inverse = invert_unit_lower(a.float())
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        inverse, = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad.float() @ transposed).tril(-1)


def gated_delta_rule(q, k, v, g, beta):
    """q, k [B, H, T, Dk] (normalised), v [B, H, T, Dv], g (log decay) and beta [B, H, T]; T a multiple of 64."""
    q, k, v = (x.unflatten(2, (-1, CHUNK)) for x in (q, k, v))
    g, beta = g.unflatten(2, (-1, CHUNK)).cumsum(-1), beta.unflatten(2, (-1, CHUNK)).unsqueeze(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    inverse = UnitLowerInverse.apply(((k * beta) @ kt * decay).float().tril(-1))
    u = inverse @ (v * beta)
    w = inverse @ (k * (beta * g.exp().unsqueeze(-1)))
    inside = (q @ kt) * decay
    k_out = (k * (g[..., -1:] - g).exp().unsqueeze(-1)).transpose(-1, -2)
    chunk_decay = g[..., -1].exp()[..., None, None]
    state, states, news = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=torch.float32), [], []
    for i in range(q.shape[2]):
        new = u[:, :, i] - w[:, :, i] @ state
        states.append(state)
        news.append(new)
        state = state * chunk_decay[:, :, i] + k_out[:, :, i] @ new
    out = (q * g.exp().unsqueeze(-1)) @ torch.stack(states, 2) + inside @ torch.stack(news, 2)
    return out.flatten(2, 3)


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.key_heads, self.value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.dk, self.dv, kernel = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"]
        self.key_width, value_width, hidden = self.key_heads * self.dk, self.value_heads * self.dv, c["hidden_size"]
        mixed = 2 * self.key_width + value_width
        self.in_proj_qkv = nn.Linear(hidden, mixed, bias=False)
        self.in_proj_z = nn.Linear(hidden, value_width, bias=False)
        self.in_proj_b = nn.Linear(hidden, self.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, self.value_heads, bias=False)
        self.conv1d = nn.Conv1d(mixed, mixed, kernel, groups=mixed, bias=False)
        dt = torch.empty(self.value_heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, 16).log())
        self.norm = GatedNorm(self.dv, c["rms_norm_eps"])
        self.out_proj = nn.Linear(value_width, hidden, bias=False)

    def convolve(self, x):
        """Causal, depthwise; as shifted products, which fuse better than the library's convolution."""
        weight, length = self.conv1d.weight.squeeze(1), x.shape[1]
        padded = F.pad(x, (0, 0, weight.shape[1] - 1, 0))
        return F.silu(sum(padded[:, j:j + length] * weight[:, j] for j in range(weight.shape[1])))

    def heads(self, x, count):
        x = x.unflatten(-1, (count, -1)).transpose(1, 2)
        return x if count == self.value_heads else x.repeat_interleave(self.value_heads // count, 1)

    def forward(self, x):
        length = x.shape[1]
        q, k, v = self.convolve(self.in_proj_qkv(x)).split([self.key_width, self.key_width, self.dv * self.value_heads], -1)
        q, k, v = self.heads(q, self.key_heads), self.heads(k, self.key_heads), self.heads(v, self.value_heads)
        q = q.float() * torch.rsqrt(q.float().square().sum(-1, keepdim=True) + 1e-6) * self.dk ** -0.5
        k = k.float() * torch.rsqrt(k.float().square().sum(-1, keepdim=True) + 1e-6)
        beta = self.in_proj_b(x).float().sigmoid().transpose(1, 2)
        g = (-self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)).transpose(1, 2)
        pad = -length % CHUNK
        q, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v))
        out = gated_delta_rule(q, k, v, F.pad(g, (0, pad)), F.pad(beta, (0, pad)))[:, :, :length]
        z = self.in_proj_z(x).unflatten(-1, (self.value_heads, -1))
        return self.out_proj(self.norm(out.transpose(1, 2), z).flatten(-2))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden, rope = c["hidden_size"], c["rope_parameters"]
        self.q_proj = nn.Linear(hidden, 2 * self.heads * self.width, bias=False)  # query and gate, head by head
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(self.width, c["rms_norm_eps"]), Norm(self.width, c["rms_norm_eps"])
        self.rotated = int(self.width * rope["partial_rotary_factor"])
        frequency = rope["rope_theta"] ** (-torch.arange(0, self.rotated, 2) / self.rotated)
        self.register_buffer("frequency", frequency, persistent=False)

    def rotate(self, x):
        angle = torch.arange(x.shape[2], device=x.device)[:, None] * self.frequency
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :self.rotated].chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., self.rotated:]], -1)

    def forward(self, x):
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, -1)).chunk(2, -1)
        k, v = (p(x).unflatten(-1, (self.kv_heads, -1)) for p in (self.k_proj, self.v_proj))
        q, k = (self.rotate(t.transpose(1, 2)) for t in (self.q_norm(q), self.k_norm(k)))
        v, share = v.transpose(1, 2), self.heads // self.kv_heads
        k, v = k.to(v.dtype).repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        out = F.scaled_dot_product_attention(q.to(v.dtype), k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(-2) * gate.flatten(-2).sigmoid())


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        if kind == "linear_attention":
            self.linear_attn = GatedDeltaNet(c)
        else:
            self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x):
        mix = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        x = x + mix(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyHybrid(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c, kind) for kind in c["layer_types"])
        self.model.norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 if "embed" in name else 0.04 / (4 if last else 1))

    def hidden(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x)

    def forward(self, ids):
        return F.linear(self.hidden(ids), self.model.embed_tokens.weight)
