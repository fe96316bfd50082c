"""Whole networks of the transformers library with random weights, two layers deep and as narrow as
they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers as t
from torch import nn

from tests.exports.modules import Case

_TEXT = {0: "batch", 1: "sequence"}
_SMALL = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 32,
}  # fmt: skip
_IMAGE = {
    "image_size": 16,
    "patch_size": 8,
    "num_channels": 3,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


class First(nn.Module):
    """The first result of a network (a tuple, or a value with `last_hidden_state`), called with
    keyword arguments.
    """

    def __init__(self, net: Any, *names: str, **fixed: Any) -> None:
        super().__init__()
        self.net, self.names, self.fixed = net, names, fixed

    def forward(self, a: Any, b: Any = None, c: Any = None) -> Any:
        given = dict(zip(self.names, [v for v in (a, b, c) if v is not None], strict=True))
        return self.net(**given, **self.fixed, return_dict=False)[0]


class Cached(nn.Module):
    """A causal language model with the keys and values of earlier steps: (ids, k0, v0, k1, v1) ->
    (logits, k0, v0, k1, v1).
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Any, k0: Any, v0: Any, k1: Any, v1: Any) -> Any:
        cache = t.DynamicCache()
        cache.update(k0, v0, 0)
        cache.update(k1, v1, 1)
        out = self.net(input_ids=ids, past_key_values=cache, use_cache=True)
        layers = out.past_key_values.layers
        return out.logits, layers[0].keys, layers[0].values, layers[1].keys, layers[1].values


def ids(length: int = 6) -> Any:
    return torch.randint(3, 30, (2, length))


def mask(length: int = 6) -> Any:
    return torch.ones(2, length, dtype=torch.int64)


def _text(model: Any, config: Any, how: str, *, masked: bool = True, **fixed: Any) -> Case:
    config._attn_implementation = how
    names = ("input_ids", "attention_mask") if masked else ("input_ids",)
    inputs = (ids(), mask()) if masked else (ids(),)
    return Case(First(model(config), *names, **fixed), inputs, axes=(_TEXT,) * len(inputs))


def _vision(model: Any, config: Any, how: str, *, size: int = 16, masked: bool = False) -> Case:
    config._attn_implementation = how
    return Case(
        First(model(config), "pixel_values"), (torch.randn(2, 3, size, size),), axes=({0: "batch"},)
    )


def _gpt2() -> Any:
    return t.GPT2Config(
        vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )


def _llama(**more: Any) -> Any:
    return t.LlamaConfig(
        **{**_SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False, **more}
    )


def _opt() -> Any:
    return t.OPTConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, ffn_dim=24, num_attention_heads=2,
        max_position_embeddings=32, word_embed_proj_dim=16,
        use_cache=False,
    )  # fmt: skip


def _whisper() -> Any:
    return t.WhisperConfig(
        vocab_size=32, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=10, max_target_positions=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, use_cache=False,
    )  # fmt: skip


def _bart() -> Any:
    return t.BartConfig(
        vocab_size=32, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip


def _decoder(net: Any, hidden: int, *, states: int = 5) -> Case:
    inputs = (ids(), torch.randn(2, states, hidden))
    return Case(
        First(net, "input_ids", "encoder_hidden_states", use_cache=False),
        inputs,
        axes=(_TEXT, {0: "batch", 1: "states"}),
    )


def _whisper_part(part: str, how: str) -> Case:
    config = _whisper()
    config._attn_implementation = how
    net = t.WhisperModel(config)
    if part == "encoder":
        return Case(
            First(net.encoder, "input_features"), (torch.randn(2, 8, 20),), axes=({0: "batch"},)
        )
    return _decoder(net.decoder, 16)


def _bart_part(part: str, how: str) -> Case:
    config = _bart()
    config._attn_implementation = how
    net = t.BartModel(config)
    if part == "encoder":
        return Case(
            First(net.encoder, "input_ids", "attention_mask"), (ids(), mask()), axes=(_TEXT, _TEXT)
        )
    return _decoder(net.decoder, 16)


def _t5_part(part: str) -> Case:
    config = t.T5Config(
        vocab_size=32,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        use_cache=False,
    )
    if part == "encoder":
        return Case(
            First(t.T5EncoderModel(config), "input_ids", "attention_mask"),
            (ids(), mask()),
            axes=(_TEXT, _TEXT),
        )
    return _decoder(t.T5Model(config).decoder, 16)


def _swin(how: str) -> Case:
    config = t.SwinConfig(
        image_size=16,
        patch_size=2,
        num_channels=3,
        embed_dim=8,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=4,
    )
    return _vision(t.SwinModel, config, how)


def _cached(net: Any, kv_heads: int, head: int) -> Case:
    past = tuple(torch.randn(2, kv_heads, 3, head) for _ in range(4))
    axes: tuple[Mapping[int, str], ...] = (_TEXT, *({0: "batch", 2: "past"} for _ in past))
    return Case(Cached(net), (ids(2), *past), axes=axes)


def _sized(config: Any, how: str) -> Any:
    config._attn_implementation = how
    return config


#: name -> how to build it; the part after the last underscore says which attention implementation
#: it runs.
MODELS: dict[str, Callable[[], Case]] = {
    **{
        f"{name}_{how}": partial(build, how)
        for how in ("eager", "sdpa")
        for name, build in {
            "bert": lambda how: _text(t.BertModel, t.BertConfig(**_SMALL), how),
            "distilbert": lambda how: _text(
                t.DistilBertModel,
                t.DistilBertConfig(
                    vocab_size=32,
                    max_position_embeddings=32,
                    dim=16,
                    n_layers=2,
                    n_heads=2,
                    hidden_dim=24,
                ),
                how,
            ),
            "roberta": lambda how: _text(t.RobertaModel, t.RobertaConfig(**_SMALL), how),
            "albert": lambda how: _text(
                t.AlbertModel, t.AlbertConfig(**_SMALL, embedding_size=8), how
            ),
            "gpt2": lambda how: _text(t.GPT2Model, _gpt2(), how),
            "llama": lambda how: _text(t.LlamaModel, _llama(), how),
            "qwen2": lambda how: _text(
                t.Qwen2Model,
                t.Qwen2Config(**{**_SMALL, "num_key_value_heads": 1, "use_cache": False}),
                how,
            ),
            "gpt_neox": lambda how: _text(
                t.GPTNeoXModel, t.GPTNeoXConfig(**_SMALL, rotary_pct=0.5, use_cache=False), how
            ),
            "opt": lambda how: _text(t.OPTModel, _opt(), how),
            "vit": lambda how: _vision(t.ViTModel, t.ViTConfig(**_IMAGE), how),
            "clip_vision": lambda how: _vision(
                t.CLIPVisionModel, t.CLIPVisionConfig(**_IMAGE), how
            ),
            "clip_text": lambda how: _text(
                t.CLIPTextModel,
                t.CLIPTextConfig(**_SMALL, eos_token_id=31, bos_token_id=30, pad_token_id=0),
                how,
            ),
            "whisper_encoder": lambda how: _whisper_part("encoder", how),
            "whisper_decoder": lambda how: _whisper_part("decoder", how),
            "bart_encoder": lambda how: _bart_part("encoder", how),
            "bart_decoder": lambda how: _bart_part("decoder", how),
        }.items()
    },
    "gemma_eager": lambda: _text(
        t.GemmaModel,
        t.GemmaConfig(**_SMALL, num_key_value_heads=1, head_dim=8, use_cache=False),
        "eager",
    ),
    "gptj_eager": lambda: _text(
        t.GPTJModel,
        t.GPTJConfig(
            vocab_size=32,
            n_positions=32,
            n_embd=16,
            n_layer=2,
            n_head=2,
            rotary_dim=4,
            use_cache=False,
        ),
        "eager",
    ),
    "t5_encoder_eager": lambda: _t5_part("encoder"),
    "t5_decoder_eager": lambda: _t5_part("decoder"),
    "bloom_eager": lambda: _text(
        t.BloomModel,
        t.BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2, use_cache=False),
        "eager",
    ),
    "deberta_eager": lambda: _text(
        t.DebertaV2Model,
        t.DebertaV2Config(
            **_SMALL,
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["c2p", "p2c"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
        "eager",
    ),
    "swin_eager": lambda: _swin("eager"),
    "dinov3_eager": lambda: _vision(t.DINOv3ViTModel, t.DINOv3ViTConfig(**_IMAGE), "eager"),
    "codegen_eager": lambda: _text(
        t.CodeGenModel,
        t.CodeGenConfig(
            vocab_size=32,
            n_positions=32,
            n_embd=16,
            n_layer=2,
            n_head=4,
            rotary_dim=4,
            use_cache=False,
        ),
        "eager",
    ),
    "xglm_eager": lambda: _text(
        t.XGLMModel,
        t.XGLMConfig(
            vocab_size=32,
            max_position_embeddings=32,
            d_model=16,
            ffn_dim=24,
            num_layers=2,
            attention_heads=2,
            use_cache=False,
        ),
        "eager",
    ),
    "xlm_eager": lambda: _text(
        t.XLMModel,
        t.XLMConfig(vocab_size=32, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=32),
        "eager",
    ),
    "opt_cache_eager": lambda: _cached(t.OPTForCausalLM(_sized(_opt(), "eager")), 2, 8),
    "gpt2_cache_sdpa": lambda: _cached(t.GPT2LMHeadModel(_sized(_gpt2(), "sdpa")), 2, 8),
    "llama_cache_eager": lambda: _cached(t.LlamaForCausalLM(_sized(_llama(), "eager")), 2, 4),
    "llama_cache_sdpa": lambda: _cached(t.LlamaForCausalLM(_sized(_llama(), "sdpa")), 2, 4),
}
#: The exporters a whole network goes through.
MODEL_EXPORTERS = ("ts14d", "ts17d", "dynamo18d", "dynamo23d")
