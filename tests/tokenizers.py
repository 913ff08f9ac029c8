"""Tokenizers that tests of several modules share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from ingestor.encoding.model import ModelSpec, resolve


@cache
def byte_level() -> Tokenizer:
    """A byte-level BPE tokenizer, as GPT-2 and RoBERTa have one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(topics.values())[:20], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.encode_special_tokens = True
    return tokenizer


def spec_of(tokenizer: Tokenizer, folder: Path) -> ModelSpec:
    """A model in `folder` that has this tokenizer, and nothing else."""
    tokenizer.save(str(folder / "tokenizer.json"))
    return replace(resolve("hash:8"), name="made", folder=str(folder), architecture="bert")
