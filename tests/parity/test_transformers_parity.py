"""Logits of a small random Llama equal transformers', however a prompt is cut and batched."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import LlamaConfig, LlamaForCausalLM

from engine.backends.attention import PagedAttention
from engine.batch import Batch
from engine.models.config import ModelConfig
from engine.models.gguf import load_weights, read_config
from engine.models.llama import Inputs, KVCache, forward, rope_table
from tests.engine.backends.batches import Work, make_batch
from tests.engine.models.tiny_llama import CONFIG, Tensors, random_tensors, write_gguf

BLOCKS = 24
PROMPT = np.random.default_rng(0).integers(0, CONFIG.vocab, 70).tolist()
OTHERS = [
    np.random.default_rng(i).integers(0, CONFIG.vocab, n).tolist() for i, n in ((1, 5), (2, 33))
]

HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Engine:
    """The decoder over a NaN-filled cache whose blocks are handed out in random order."""

    def __init__(self, path: Path) -> None:
        self._config = read_config(path)
        self._weights = load_weights(path, self._config)
        shape = (self._config.layers, BLOCKS, 16, self._config.kv_heads, self._config.head_dim)
        self._cache = KVCache(*(torch.full(shape, torch.nan) for _ in range(2)))
        self._blocks = random.Random(0).sample(range(BLOCKS), BLOCKS)

    def table(self, tokens: int) -> list[int]:
        return [self._blocks.pop() for _ in range(-(-tokens // 16))]

    def logits(self, batch: Batch) -> np.ndarray:
        """Logits of every token of the batch, [tokens, vocab]."""
        inputs = Inputs(
            tokens=torch.from_numpy(batch.token_ids).long(),
            positions=torch.from_numpy(batch.positions).long(),
            slots=torch.from_numpy(batch.slots).long(),
            logit_rows=torch.arange(batch.tokens),
        )
        rope = rope_table(self._config)
        attention = PagedAttention(batch)
        return forward(self._weights, self._config, rope, self._cache, inputs, attention).numpy()


def transformers_logits(config: ModelConfig, tensors: Tensors, prompt: list[int]) -> np.ndarray:
    """What transformers computes from the same weights, [tokens, vocab]."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.norm_eps,
            rope_theta=config.rope_base,
            tie_word_embeddings=config.tied_head,
        )
    )
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for i in range(config.layers):
        names |= {f"blk.{i}.{ours}": f"model.layers.{i}.{hf}" for ours, hf in HF_NAMES.items()}
    state = {
        f"{names[name.removesuffix('.weight')]}.weight": torch.from_numpy(values.copy())
        for name, values in tensors.items()
    }
    if config.tied_head:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    with torch.inference_mode():
        return model.eval()(torch.tensor([prompt])).logits[0].numpy()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A model file and transformers' logits of PROMPT."""
    path = tmp_path_factory.mktemp("parity") / "tiny.gguf"
    return path, transformers_logits(CONFIG, write_gguf(path, random_tensors()), PROMPT)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_a_whole_prompt_in_every_weight_type(tmp_path: Path, kind: str):
    path = tmp_path / "tiny.gguf"
    stored = write_gguf(path, random_tensors(), kind=GGMLQuantizationType[kind])
    engine = Engine(path)
    batch = make_batch([Work(engine.table(70), 0, PROMPT)])
    assert_close(engine.logits(batch), transformers_logits(CONFIG, stored, PROMPT))


@pytest.mark.parametrize(
    "change",
    [
        {"tied_head": False},
        {"kv_heads": 4},
        {"kv_heads": 1},
        {"head_dim": 32},
        {"rope_base": 100_000.0, "norm_eps": 1e-2},
    ],
    ids=str,
)
def test_other_shapes_of_model(tmp_path: Path, change: dict[str, float]):
    config = ModelConfig(**{f: getattr(CONFIG, f) for f in ModelConfig.__slots__} | change)
    path = tmp_path / "tiny.gguf"
    fields = {"llama.attention.key_length": config.head_dim}
    stored = write_gguf(path, random_tensors(config), config=config, fields=fields)
    engine = Engine(path)
    batch = make_batch([Work(engine.table(70), 0, PROMPT)])
    assert_close(engine.logits(batch), transformers_logits(config, stored, PROMPT))


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_a_prompt_in_chunks(tiny: tuple[Path, np.ndarray], chunk: int):
    path, expected = tiny
    engine = Engine(path)
    table = engine.table(70)
    found = [
        engine.logits(make_batch([Work(table, start, PROMPT[start : start + chunk])]))
        for start in range(0, 70, chunk)
    ]
    assert_close(np.concatenate(found), expected)


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_a_prompt_in_chunks_beside_other_rows(tiny: tuple[Path, np.ndarray], chunk: int):
    path, expected = tiny
    engine = Engine(path)
    table, *tables = (engine.table(length) for length in (70, 128, 128))
    found = []
    for step, start in enumerate(range(0, 70, chunk)):
        mine = Work(table, start, PROMPT[start : start + chunk])
        before, after = (  # a whole prompt, then one token a step
            Work(t, len(other) + step - 1, [step]) if step else Work(t, 0, other)
            for t, other in zip(tables, OTHERS, strict=True)
        )
        logits = engine.logits(make_batch([before, mine, after]))
        found.append(logits[len(before.tokens) :][: len(mine.tokens)])
    assert_close(np.concatenate(found), expected)
