"""Small models with random weights, saved as their authors would save them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer
from torch import nn
from transformers import AutoModel, PreTrainedTokenizerFast, models

from ingestor.device import DeviceBatch, open_device
from ingestor.records import Batch
from tests.fakes import token_batch

TEXTS = (
    "A kernel is what remains.",
    "Streams flow one way, and what flows is a block.",
    "x",
    "The quick brown fox jumps over the lazy dog. " * 5,
    "Bytes, then tokens; then vectors, and then nothing at all.",
    "Seventeen slots were free, so the eighteenth had to wait until one was released again.",
    "Grüße aus Köln: naïve café déjà vu",
)

_SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "vocab_size": 400,
    "pad_token_id": 1,
    "initializer_range": 0.4,  # large enough that a wrong position shows
}

families: Any = models  # some take options that their signatures do not name
_CONFIGS: dict[str, Any] = {
    "bert": lambda: families.BertConfig(**_SMALL),
    "roberta": lambda: families.RobertaConfig(**_SMALL, max_position_embeddings=130),
    "xlm-roberta": lambda: families.XLMRobertaConfig(**_SMALL, max_position_embeddings=130),
    "mpnet": lambda: families.MPNetConfig(**_SMALL, max_position_embeddings=130),
    "distilbert": lambda: families.DistilBertConfig(
        dim=48, hidden_dim=96, n_layers=3, n_heads=3, vocab_size=400, pad_token_id=1, initializer_range=0.4
    ),
    "modernbert": lambda: families.ModernBertConfig(
        **_SMALL, local_attention=8, global_attn_every_n_layers=2, bos_token_id=2, eos_token_id=3,
        cls_token_id=2, sep_token_id=3, initializer_cutoff_factor=2.0,
    ),
    "nomic_bert": lambda: families.NomicBertConfig(**_SMALL, max_position_embeddings=130),
    "qwen3": lambda: families.Qwen3Config(
        **_SMALL, num_key_value_heads=1, head_dim=16, bos_token_id=2, eos_token_id=3
    ),
    "gemma3_text": lambda: families.Gemma3TextConfig(
        **_SMALL, num_key_value_heads=1, head_dim=16, bos_token_id=2, eos_token_id=3, sliding_window=8,
        sliding_window_pattern=2, query_pre_attn_scalar=16, use_bidirectional_attention=True,
    ),
}  # fmt: skip


def save_model(
    folder: Path,
    family: str,
    *,
    pooling: str = "mean",
    layers: Sequence[nn.Module] = (),
    normalize: bool = True,
    gentle: bool = False,
    **saved: Any,
) -> SentenceTransformer:
    """Make a model, save it under `folder`, and return sentence-transformers' reading of it.

    `layers` come between the pooling and a last Normalize. `gentle` gives weights as small as trained ones,
    for tests of precision.
    """
    bare, whole = folder / "bare", folder / "model"
    torch.manual_seed(7)
    config = _CONFIGS[family]()
    if gentle:
        config.initializer_range = 0.1
    AutoModel.from_config(config).save_pretrained(bare)
    _tokenizer(append_only=family == "qwen3").save_pretrained(bare)
    parts = [modules.Transformer(str(bare)), modules.Pooling(48, pooling), *layers]
    if normalize:
        parts.append(modules.Normalize())
    model = SentenceTransformer(modules=parts, device="cpu", **saved)
    model.save_pretrained(str(whole), create_model_card=False)
    return model


def _tokenizer(*, append_only: bool) -> PreTrainedTokenizerFast:
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(TEXTS, WordPieceTrainer(vocab_size=400, special_tokens=special))
    template = "$A [SEP]" if append_only else "[CLS] $A [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=128,
    )  # fmt: skip


def tokenize(folder: str, texts: list[str], max_tokens: int) -> Batch:
    """The texts as one batch, with the tokens that sentence-transformers would give them."""
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return token_batch([encoding.ids for encoding in tokenizer.encode_batch(texts)])


def on_cpu(batch: Batch) -> DeviceBatch:
    """The batch as the encoder gets it."""
    device = open_device("cpu", threads=1)
    return device.upload(batch)
