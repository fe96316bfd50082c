"""Attention and rotary embedding as networks write them, one module for each spelling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.exports.modules import Case, H, Net, X, tokens

D = X // H


def _projections(**extra: Any) -> dict[str, Any]:
    return {**{k: nn.Linear(X, X) for k in "qkvo"}, **extra}


def _split(x: Any, heads: int = H) -> Any:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _join(m: Any, y: Any) -> Any:
    y = y.transpose(1, 2)
    return m.o(y.reshape(y.shape[0], y.shape[1], X))


def _qkv(m: Any, x: Any, y: Any | None = None) -> tuple[Any, Any, Any]:
    y = x if y is None else y
    return _split(m.q(x)), _split(m.k(y)), _split(m.v(y))


def eager(kind: str) -> Case:
    """Scores, scale, mask, softmax and values spelled out."""
    causal = torch.tril(torch.ones(8, 8, dtype=torch.bool))

    def fn(m: Any, x: Any, mask: Any = None) -> Any:
        q, k, v = _qkv(m, x)
        if kind == "scale_q":
            s = (q * D**-0.5) @ k.transpose(-1, -2)
        elif kind == "sqrt_both":
            s = (q / math.sqrt(math.sqrt(D))) @ (k / math.sqrt(math.sqrt(D))).transpose(-1, -2)
        elif kind == "mul":
            s = torch.matmul(q, k.transpose(2, 3)) * D**-0.5
        elif kind == "einsum":
            s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(D)
        elif kind == "bmm":
            b, n = x.shape[0], x.shape[1]
            q, k, v = (t.reshape(b * H, n, D) for t in (q, k, v))
            s = torch.bmm(q, k.transpose(1, 2)) * D**-0.5
        else:
            s = q @ k.transpose(-1, -2) / math.sqrt(D)
        if kind == "bool":
            s = s.masked_fill(mask == 0, float("-inf"))
        elif kind == "finfo":
            s = s.masked_fill(~mask[:, None, None, :], torch.finfo(s.dtype).min)
        elif kind == "extended":
            s = s + (1.0 - mask[:, None, None, :].float()) * -10000.0
        elif kind == "causal_buffer":  # nanoGPT
            n = x.shape[1]
            s = s.masked_fill(~m.causal[None, None, :n, :n], float("-inf"))
        elif kind == "causal_where":  # GPT-2
            n = x.shape[1]
            s = torch.where(
                m.causal[:n, :n], s, torch.full([], torch.finfo(s.dtype).min, dtype=s.dtype)
            )
        elif kind == "alibi":
            s = s + m.slopes * torch.arange(x.shape[1], dtype=s.dtype)[None, None, None, :]
        elif mask is not None:
            s = s + mask
        p = torch.softmax(s, dim=-1)
        y = torch.einsum("bhqk,bhkd->bhqd", p, v) if kind == "einsum" else p @ v
        return _join(m, y.view(x.shape[0], H, x.shape[1], D) if kind == "bmm" else y)

    extra: dict[str, Any] = (
        {"causal": causal}
        if kind.startswith("causal")
        else {"slopes": torch.rand(1, H, 1, 1)}
        if kind == "alibi"
        else {}
    )
    x = tokens()
    masks = {
        "mask": torch.randn(2, 1, 1, 6), "bool": torch.ones(2, 1, 6, 6),
        "finfo": torch.ones(2, 6, dtype=torch.bool),
        "extended": torch.ones(2, 6, dtype=torch.int64),
    }  # fmt: skip
    inputs = (x, masks[kind]) if kind in masks else (x,)
    return Case(Net(fn, **_projections(**extra)), inputs, batch=tuple(range(len(inputs))))


def sdpa(kind: str) -> Case:
    """torch's scaled_dot_product_attention."""

    def fn(m: Any, x: Any, mask: Any = None) -> Any:
        return _join(
            m,
            F.scaled_dot_product_attention(*_qkv(m, x), attn_mask=mask, is_causal=kind == "causal"),
        )

    masks = {"mask": torch.randn(2, 1, 6, 6), "bool": torch.ones(2, 1, 6, 6, dtype=torch.bool)}
    inputs = (tokens(), masks[kind]) if kind in masks else (tokens(),)
    return Case(Net(fn, **_projections()), inputs, batch=tuple(range(len(inputs))))


def packed(kind: str) -> Case:
    def fn(m: Any, x: Any) -> Any:
        b, n, _ = x.shape
        if kind == "chunk":
            q, k, v = (_split(t) for t in m.qkv(x).chunk(3, dim=-1))
        elif kind == "slice":
            y = m.qkv(x)
            q, k, v = (_split(y[..., i * X : (i + 1) * X]) for i in range(3))
        elif kind == "per_head":  # GPT-NeoX: every head holds its q, k and v
            q, k, v = m.qkv(x).view(b, n, H, 3 * D).transpose(1, 2).chunk(3, dim=-1)
        else:
            q, k, v = m.qkv(x).reshape(b, n, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
        y = (
            F.scaled_dot_product_attention(q, k, v)
            if kind == "timm"
            else ((q * D**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        )
        return m.o(y.transpose(1, 2).reshape(b, n, X))

    return Case(Net(fn, qkv=nn.Linear(X, 3 * X), o=nn.Linear(X, X)), (tokens(),))


def multihead(kind: str) -> Case:
    mha = nn.MultiheadAttention(X, H, batch_first=kind != "sequence_first")
    if kind == "cross":
        return Case(
            Net(lambda m, x, y: m.mha(x, y, y, need_weights=False)[0], mha=mha),
            (tokens(5), tokens(7)),
            batch=(0, 1),
        )
    if kind == "padding":
        fn = lambda m, x, p: m.mha(x, x, x, key_padding_mask=p, need_weights=False)[0]  # noqa: E731
        return Case(Net(fn, mha=mha), (tokens(), torch.zeros(2, 6, dtype=torch.bool)), batch=(0, 1))
    if kind == "sequence_first":
        return Case(
            Net(lambda m, x: m.mha(x, x, x, need_weights=False)[0], mha=mha),
            (torch.randn(6, 2, X),),
            batch=(),
        )
    if kind == "layer":
        layer = nn.TransformerEncoderLayer(
            X, H, 24, dropout=0.0, batch_first=True, activation="gelu"
        )
        layer.self_attn.in_proj_bias.data.normal_()
        return Case(Net(lambda m, x: m.layer(x) * 1.0, layer=layer), (tokens(),))
    return Case(Net(lambda m, x: m.mha(x, x, x, need_weights=False)[0], mha=mha), (tokens(),))


def cross(kind: str) -> Case:
    def fn(m: Any, x: Any, y: Any) -> Any:
        q, k, v = _qkv(m, x, y)
        if kind == "sdpa":
            return _join(m, F.scaled_dot_product_attention(q, k, v))
        return _join(m, torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D), -1) @ v)

    return Case(Net(fn, **_projections()), (tokens(5), tokens(7)), batch=(0, 1))


def grouped(kind: str) -> Case:
    """Grouped-query attention: four query heads on two key heads."""

    def repeat(t: Any) -> Any:
        b, h, n, d = t.shape
        return t[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)

    def fn(m: Any, x: Any) -> Any:
        q, k, v = _split(m.q(x), 4), _split(m.k(x), 2), _split(m.v(x), 2)
        if kind == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        elif kind == "interleave":
            k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = torch.softmax((q @ repeat(k).transpose(2, 3) * 0.5).float(), dim=-1).to(
                q.dtype
            ) @ repeat(v)
        return _join(m, y)

    return Case(
        Net(
            fn,
            q=nn.Linear(X, X, bias=False),
            k=nn.Linear(X, X // 2, bias=False),
            v=nn.Linear(X, X // 2, bias=False),
            o=nn.Linear(X, X),
        ),
        (tokens(),),
    )


def cached(kind: str) -> Case:
    """Keys and values of earlier steps come in, all of them go out."""

    def fn(m: Any, x: Any, past_k: Any, past_v: Any) -> Any:
        q, k, v = _qkv(m, x)
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        if kind == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D), -1) @ v
        return _join(m, y), k, v

    return Case(
        Net(fn, **_projections()),
        (tokens(1), torch.randn(2, H, 4, D), torch.randn(2, H, 4, D)),
        batch=(0, 1, 2),
    )


def biased(kind: str) -> Case:
    """A learned bias per pair of positions: T5's buckets, Swin's windows with a shift mask,
    DeBERTa's gathered products.
    """

    def t5(m: Any, x: Any) -> Any:
        n = x.shape[1]
        distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        bias = m.table(distance.abs().clamp(max=7)).permute(2, 0, 1).unsqueeze(0)
        q, k, v = _qkv(m, x)
        return _join(
            m, torch.softmax((q @ k.transpose(3, 2) + bias).float(), dim=-1).type_as(q) @ v
        )

    def swin(m: Any, x: Any, mask: Any = None) -> Any:
        q, k, v = _qkv(m, x)
        s = (q * D**-0.5) @ k.transpose(-2, -1)
        bias = m.table.weight[m.index.view(-1)].view(4, 4, -1).permute(2, 0, 1).contiguous()
        s = s + bias.unsqueeze(0)
        if mask is not None:
            windows = mask.shape[0]
            s = s.view(x.shape[0] // windows, windows, H, 4, 4) + mask.unsqueeze(1).unsqueeze(0)
            s = s.view(-1, H, 4, 4)
        return _join(m, torch.softmax(s, -1) @ v)

    def deberta(m: Any, x: Any) -> Any:
        q, k, v = _qkv(m, x)
        s = q @ k.transpose(-1, -2) / math.sqrt(3 * D)
        r = _split(m.k(m.table.weight[None]))
        n = x.shape[1]
        at = (torch.arange(n)[:, None] - torch.arange(n)[None, :] + 4).clamp(0, 7)
        c2p = torch.gather(q @ r.transpose(-1, -2), -1, at.expand(x.shape[0], H, n, n))
        return _join(m, torch.softmax(s + c2p / math.sqrt(3 * D), -1) @ v)

    if kind.startswith("swin"):
        index = (torch.arange(4)[:, None] - torch.arange(4)[None, :]) + 3
        x = torch.randn(4, 4, X)
        inputs = (x, torch.randn(2, 4, 4)) if kind == "swin_shifted" else (x,)
        return Case(
            Net(swin, table=nn.Embedding(7, H), index=index, **_projections()), inputs, batch=(0,)
        )
    table = nn.Embedding(8, H if kind == "t5" else X)
    return Case(Net(t5 if kind == "t5" else deberta, table=table, **_projections()), (tokens(),))


# --- rotary embedding -----------------------------------------------------------------------------
def _rotate_half(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _rotate_pairs(x: Any) -> Any:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def rope(kind: str) -> Case:
    q = torch.randn(2, H, 6, D)
    if kind in ("apply", "pairs"):
        turn = _rotate_half if kind == "apply" else _rotate_pairs
        table = torch.randn(2, 1, 6, D)
        if kind == "pairs":
            table = table[..., : D // 2].repeat_interleave(2, dim=-1)
        return Case(
            Net(lambda m, q, c, s: q * c + turn(q) * s), (q, table, table.clone()), batch=(0, 1, 2)
        )
    if kind == "halves":

        def fn(m: Any, q: Any, c: Any, s: Any) -> Any:
            a, b = q.chunk(2, dim=-1)
            return torch.cat((a * c - b * s, b * c + a * s), dim=-1)

        return Case(
            Net(fn),
            (q, torch.randn(2, 1, 6, D // 2), torch.randn(2, 1, 6, D // 2)),
            batch=(0, 1, 2),
        )
    if kind == "partial":

        def part(m: Any, q: Any, c: Any, s: Any) -> Any:
            a, b = q[..., :4], q[..., 4:]
            return torch.cat((a * c + _rotate_half(a) * s, b), dim=-1)

        return Case(
            Net(part), (q, torch.randn(2, 1, 6, 4), torch.randn(2, 1, 6, 4)), batch=(0, 1, 2)
        )
    if kind == "gptj":  # tables of half width repeated in the graph, positions gathered

        def gptj(m: Any, q: Any, position: Any) -> Any:
            angles = m.table[position]
            sin, cos = (t.repeat_interleave(2, dim=-1)[:, None] for t in angles.chunk(2, dim=-1))
            return q * cos + _rotate_pairs(q) * sin

        return Case(
            Net(gptj, table=torch.randn(12, D)),
            (q, torch.arange(6).expand(2, 6).contiguous()),
            batch=(0, 1),
        )

    def full(m: Any, q: Any, position: Any) -> Any:
        angles = (
            m.inv[None, :, None].float().expand(position.shape[0], -1, 1)
            @ position[:, None, :].float()
        ).transpose(1, 2)
        table = torch.cat((angles, angles), dim=-1)
        c, s = table.cos().unsqueeze(1), table.sin().unsqueeze(1)
        return q * c + _rotate_half(q) * s

    inv = 1.0 / (10000.0 ** (torch.arange(0, D, 2).float() / D))
    return Case(Net(full, inv=inv), (q, torch.arange(6).expand(2, 6).contiguous()), batch=(0, 1))
