"""The settings: what the layers say together, and how a mistake is told."""

from pathlib import Path

import pytest

from ingestor.config.settings import Settings, load
from ingestor.errors import ConfigError

MINIMAL = "source: {paths: [shards]}\n"


@pytest.fixture
def config(tmp_path):
    """Writes a configuration and reads it."""

    def read(text: str, *overrides: str, **environ: str) -> Settings:
        path = tmp_path / "a.yaml"
        path.write_text(text, "utf-8")
        return load(path, overrides, environ)

    return read


@pytest.fixture
def complaint(config):
    """Writes a configuration that is wrong, and gives what is said about it."""

    def read(text: str, *overrides: str, **environ: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            config(text, *overrides, **environ)
        return str(caught.value).splitlines()

    return read


def test_defaults(config):
    settings = config(MINIMAL)
    assert settings.source.paths == ("shards",)
    assert settings.source.max_line_bytes == 64 << 20
    assert settings.encoder.model == "sentence-transformers/all-MiniLM-L6-v2"
    assert (settings.qdrant.url, settings.qdrant.path) == (None, ".ingestor/qdrant")
    assert settings.state == ".ingestor/wiki.sqlite3"


def test_state_is_named_after_the_collection(config):
    assert config(MINIMAL + "qdrant: {collection: news}").state == ".ingestor/news.sqlite3"
    assert config(MINIMAL + "state: s.db", "qdrant.collection=news").state == "s.db"


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=str)
def test_shipped_configurations_are_valid(path):
    load(path, environ={})


@pytest.mark.parametrize(
    ("written", "meant"), [("64MiB", 64 << 20), ("1 MB", 1_000_000), ("512", 512), ("2kib", 2048)]
)
def test_sizes(config, written, meant):
    assert config(f"source: {{paths: x, max_line_bytes: {written}}}").source.max_line_bytes == meant


def test_scalars_are_what_the_schema_says(config):
    settings = config(
        "source: {paths: x, id_field: no, text_field: [title, 12]}\n"
        "encoder: {revision: 0123456, compile: on, normalize: yes}\n"
        "qdrant: {collection: 2024, hnsw: {m: 16, on_disk: true}, timeout_s: 7}\n"
    )
    assert settings.source.id_field == "no"
    assert settings.source.text_field == ("title", "12")
    assert settings.encoder.revision == "0123456"
    assert settings.encoder.compile == "on"
    assert settings.encoder.normalize is True
    assert settings.qdrant.collection == "2024"
    assert settings.qdrant.hnsw.model_dump(exclude_none=True) == {"m": 16, "on_disk": True}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("hnsw: {ef_construc: 8}", "known setting; did you mean qdrant.hnsw.ef_construct?"),
        ("hnsw: {m: many}", "qdrant.hnsw.m should be a whole number, not 'many'"),
        ("quantization: {scaler: {}}", "did you mean qdrant.quantization.scalar?"),
        ("quantization: {scalar: {quantil: 0.9}}", "did you mean qdrant.quantization.scalar.quantile?"),
        ("quantization: {product: {compression: x5}}", "qdrant.quantization.product.compression should be"),
        ("quantization: {}", "qdrant.quantization should have one of scalar, product or binary"),
        ("quantization: {scalar: {}, binary: {}}", "qdrant.quantization should have one of scalar"),
    ],
)
def test_index_settings_are_known(complaint, written, said):
    [line] = complaint(f"{MINIMAL}qdrant: {{{written}}}\n")
    assert said in line


@pytest.mark.parametrize(
    ("written", "kind", "options"),
    [
        ("scalar: {quantile: 0.99}", "scalar", {"type": "int8", "quantile": 0.99}),
        ("product: {}", "product", {"compression": "x16"}),
        ("binary: {encoding: two_bits}", "binary", {"encoding": "two_bits"}),
    ],
)
def test_quantization(config, written, kind, options):
    found = config(f"{MINIMAL}qdrant: {{quantization: {{{written}}}}}").qdrant.quantization
    assert found.model_dump(exclude_none=True) == {kind: options}


def test_an_alias_needs_a_server(config, complaint):
    [line] = complaint(f"{MINIMAL}qdrant: {{alias: live}}\n")
    assert "qdrant has an alias, which only servers know: set url, or leave alias out" in line
    assert (
        config(f"{MINIMAL}qdrant: {{alias: live, url: 'http://h:6333'}}").qdrant.named
        == "wiki__... behind alias live"
    )


def test_null_and_empty_sections(config):
    settings = config("source: {paths: x, id_field: null, root: ~}\nchunk:\nqdrant: {hnsw: {}}\n")
    assert settings.source.id_field is None
    assert settings.chunk.overlap_tokens == 32


def test_one_path_and_all_fields(config):
    source = config('source: {paths: a.jsonl, metadata_fields: "*"}').source
    assert (source.paths, source.metadata_fields) == (("a.jsonl",), "*")
    assert config("source: {paths: a, metadata_fields: title}").source.metadata_fields == ("title",)


class TestVariables:
    def test_are_filled_in(self, config):
        text = 'source: {paths: ["${DATA}/a", "${NONE:-b}", "$${DATA}"]}\nqdrant: {grpc_port: "${PORT}"}'
        settings = config(text, DATA="/d", PORT="7000")
        assert settings.source.paths == ("/d/a", "b", "${DATA}")
        assert settings.qdrant.grpc_port == 7000

    def test_nothing_is_null(self, config):
        assert config(MINIMAL + 'qdrant: {alias: "${A:-}"}').qdrant.alias is None
        assert config(MINIMAL + 'encoder: {prompt: ""}').encoder.prompt == ""

    def test_not_set(self, complaint):
        [said] = complaint("source:\n  paths:\n    - ${DATA}/a\n")
        assert "a.yaml, line 3: the environment variable DATA is not set; set it" in said

    @pytest.mark.parametrize("written", ["${A-b}", "${A:?no}", "${1}", "${A"])
    def test_misspelt(self, complaint, written):
        [said] = complaint(f"source: {{paths: ['{written}']}}", A="a")
        assert f"cannot read {written!r}" in said


class TestPrecedence:
    def test_command_line_environment_file_default(self, config):
        text = MINIMAL + "qdrant: {collection: file}\nchunk: {overlap_tokens: 1}\n"
        environ = {"INGESTOR_QDRANT__COLLECTION": "environment", "INGESTOR_STATE": "env.db"}
        settings = config(text, **environ)
        assert (settings.qdrant.collection, settings.state) == ("environment", "env.db")
        assert config(text, "qdrant.collection=command", **environ).qdrant.collection == "command"
        assert settings.chunk.overlap_tokens == 1

    def test_values_are_yaml(self, config):
        settings = config(
            MINIMAL,
            'source.paths=["a", "b"]',
            "encoder.model=package:m/f",
            "qdrant.hnsw.m=8",
            "chunk.max_chars=null",
        )
        assert settings.source.paths == ("a", "b")
        assert settings.encoder.model == "package:m/f"
        assert settings.qdrant.hnsw.m == 8

    @pytest.mark.parametrize("prompt", ["search: ", "@x", "a #b", "[open", "a=b", "on"])
    def test_what_is_no_yaml_is_text(self, config, prompt):
        assert config(MINIMAL, f"encoder.prompt={prompt}").encoder.prompt == prompt

    def test_quotes_and_null(self, config):
        assert config(MINIMAL, 'encoder.prompt="null"').encoder.prompt == "null"
        assert config(MINIMAL + "encoder: {prompt: a}", "encoder.prompt=null").encoder.prompt is None

    def test_server_from_the_environment(self, config):
        settings = config(MINIMAL, QDRANT_URL="http://localhost:6333/", QDRANT_API_KEY="s3cret")
        assert (settings.qdrant.url, settings.qdrant.path) == ("http://localhost:6333", None)
        assert settings.qdrant.api_key.get_secret_value() == "s3cret"
        assert "s3cret" not in repr(settings) + str(settings.model_dump())

    def test_folder_in_the_file_stays(self, config):
        text = MINIMAL + "qdrant: {path: here}"
        assert config(text, QDRANT_URL="http://h:6333").qdrant.path == "here"
        assert config(text, "qdrant.url=http://h:6333").qdrant.url == "http://h:6333"
        assert config(text, INGESTOR_QDRANT__URL="http://h:6333").qdrant.path is None

    def test_folder_on_the_command_line_covers_a_url(self, config):
        settings = config(
            MINIMAL + "qdrant: {url: 'http://h:6333'}", "qdrant.path=there", QDRANT_URL="http://e:1"
        )
        assert (settings.qdrant.url, settings.qdrant.path) == (None, "there")

    def test_empty_variable_is_none(self, config):
        assert config(MINIMAL, QDRANT_URL="", INGESTOR_STATE="").qdrant.url is None

    def test_variables_of_others_are_left_alone(self, config):
        assert config(MINIMAL, INGESTOR_PORT="tcp://10.0.0.1:80", INGESTOR_SERVICE_HOST="x")


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "source: {paths: x, pats: y}",
                "line 1: source.pats is not a known setting; did you mean source.paths?",
            ),
            (
                MINIMAL + "text_field: x",
                "line 2: text_field is not a known setting; did you mean source.text_field?",
            ),
            (MINIMAL + "qdrnt: {}", "line 2: qdrnt is not a known setting; did you mean qdrant?"),
            (MINIMAL + "chunk: {xyzzy: 1}", "known here: max_tokens, overlap_tokens, max_chars"),
            (
                MINIMAL + "chunk: {max_tokens: many}",
                "line 2: chunk.max_tokens should be a whole number, not 'many'",
            ),
            (MINIMAL + "chunk: {max_tokens: 1.5}", "chunk.max_tokens should be a whole number, not '1.5'"),
            (
                MINIMAL + "chunk: {max_tokens: 0}",
                "chunk.max_tokens should be greater than or equal to 1, not '0'",
            ),
            (MINIMAL + "chunk: [1]", "line 2: chunk should be a section with settings of its own"),
            (MINIMAL + "chunk: {max_tokens: 8, overlap_tokens: 8}", "overlap_tokens (8) should be less than"),
            ("source: {paths: []}", "source.paths should be a list with at least one entry"),
            ("source: {paths: {a: b}}", "source.paths should be a list"),
            ("source: {paths: [x, [y]]}", "source.paths.1 should be text"),
            ("{}", "a.yaml, line 1: source.paths is missing"),
            ("", "a.yaml: source.paths is missing"),
            ("source: {paths: x, max_line_bytes: 5 parsecs}", "should be a size like 64MiB, not '5 parsecs'"),
            ("source: {paths: x, format: xml}", "source.format should be 'auto', 'jsonl', 'csv'"),
            ("source: {paths: x, max_delete_fraction: 2}", "should be less than or equal to 1"),
            (
                MINIMAL + "encoder: {token_budget: lots}",
                "encoder.token_budget should be 'auto' or a whole number",
            ),
            (MINIMAL + "encoder: {normalize: maybe}", "encoder.normalize should be 'auto' or true or false"),
            (
                MINIMAL + "encoder: {device: gpu}",
                "encoder.device should be auto, cpu, cuda or cuda:N, not 'gpu'",
            ),
            (MINIMAL + "qdrant: {distance: cosine}", "should be 'Cosine', 'Dot', 'Euclid' or 'Manhattan'"),
            (MINIMAL + "qdrant: {url: 'http://h', path: p}", "url and path exclude each other"),
            (MINIMAL + "qdrant: {port: 6333}", "qdrant.port is not a known setting; put it into qdrant.url"),
            (MINIMAL + "qdrant: {url: 'h:6333'}", "qdrant.url should be like http://localhost:6333"),
            (MINIMAL + "qdrant: {url: 'http://[::1'}", "qdrant.url should be like http://localhost:6333"),
            (MINIMAL + "qdrant: {url: 'http://h:port'}", "qdrant.url should be like http://localhost:6333"),
            (MINIMAL + f"chunk: {{max_chars: {1 << 63}}}", "chunk.max_chars should fit into 64 bits"),
            ("source: {paths: [s], max_line_bytes: 9999999TiB}", "max_line_bytes should fit into 64 bits"),
            (MINIMAL + "qdrant: {url: 'http://h/prefix'}", "gRPC cannot use the prefix /prefix"),
            (MINIMAL + "qdrant: {collection: a/b}", "qdrant.collection should be 1 to 255 bytes without"),
            (MINIMAL + "qdrant: {keep: 0}", "qdrant.keep should be greater than or equal to 1"),
            (MINIMAL + "qdrant: {timeout_s: .inf}", "qdrant.timeout_s should be a"),
            (
                MINIMAL + "qdrant: {payload_indexes: {lang: words}}",
                "qdrant.payload_indexes.lang should be 'keyword'",
            ),
            ("source: {paths: x}\nsource: {paths: y}", "line 2: 'source' is given twice"),
            ("- a\n- b", "a configuration is a mapping of sections"),
            ("source: {paths: [a}", "line 1: not valid YAML"),
            (
                "source:\n  paths: *.jsonl",
                "line 2: not valid YAML: expected alphabetic or numeric character, but found '.'; text with",
            ),
            ("source:\n  paths: @a", "or one of * & ! % @ at its beginning, needs quotes"),
            ("source:\n\tpaths: a", "that cannot start any token; use blanks in place of the tab"),
            ("a: &a {b: *a}", "nested too deeply"),
            ("? [a]\n: b", "a key must be a plain word"),
        ],
    )
    def test_one_line_names_it(self, complaint, text, said):
        [line] = complaint(text)
        assert said in line

    def test_each_mistake_has_its_line(self, complaint):
        said = complaint("source: {paths: x}\nchunk: {a: 1}\nfailures: {tolerate: -1}\n", "qdrant.kep=2")
        assert "a.yaml, line 2: chunk.a " in said[0]
        assert "a.yaml, line 3: failures.tolerate " in said[2]
        assert "--set qdrant.kep: qdrant.kep is not a known setting" in said[1]
        assert len(said) == 3

    def test_environment_is_named(self, complaint):
        [said] = complaint(MINIMAL, INGESTOR_QDRANT__TIMEOUT_S="soon")
        variable, _, rest = said.partition(": ")
        assert variable == "environment variable INGESTOR_QDRANT__TIMEOUT_S"
        assert rest == "qdrant.timeout_s should be a number, not 'soon'"

    @pytest.mark.parametrize("override", ["qdrant.collection", "=x", "qdrant.=x", ".a=x"])
    def test_override_without_form(self, complaint, override):
        assert complaint(MINIMAL, override) == [f"--set {override}: write --set section.field=value"]

    def test_no_secret_is_repeated(self, complaint):
        said = complaint(MINIMAL + "qdrant: {api_key: [s3cret]}", QDRANT_URL="http://me:s3cret@h")
        assert len(said) == 2
        assert "s3cret" not in " ".join(said)

    def test_missing_file(self, tmp_path):
        with pytest.raises(ConfigError, match=r"no\.yaml: there is no such file"):
            load(tmp_path / "no.yaml", environ={})

    def test_folder(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            load(tmp_path, environ={})

    def test_not_utf8(self, tmp_path):
        (tmp_path / "a.yaml").write_bytes(b"source: \xff")
        with pytest.raises(ConfigError, match="not UTF-8 text at byte 8"):
            load(tmp_path / "a.yaml", environ={})
