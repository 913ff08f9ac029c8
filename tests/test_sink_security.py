"""Keys and certificates: TLS as people deploy it, and an API key that is seen nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import trustme

from ingestor.errors import ConfigError, SinkError
from ingestor.sink import Target
from ingestor.sink.server import ServerSink
from tests.running import Workplace, documents, eventually
from tests.servers import QdrantServer
from tests.sinks import make, points_of, served, stored, vectors_of

pytestmark = pytest.mark.whole

KEY = "sesame-49f3a7-open"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[Target]:
    """A collection on a server that speaks TLS alone, with a certificate of a company's own authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    arguments = ("--certificate", str(folder / "server.pem"), "--api-key", KEY)
    with QdrantServer(folder / "server", *arguments) as server:
        url, ca_file = "https://localhost:6333", str(folder / "ca.pem")
        yield served(server, url=url, ca_file=ca_file, api_key=KEY)


def test_points_go_over_tls(secure: Target) -> None:
    make(secure)
    sink = ServerSink(secure)
    assert sink.upsert(vectors_of(20), points_of(secure, 20)) == []
    sink.close()
    assert len(stored(secure)) == 20


def test_the_systems_certificates_are_trusted(secure: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.ca_file))
    make(replace(secure, ca_file=None))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ca_file": None}, "certificate is not trusted; set qdrant.ca_file"),
        ({"url": "https://127.0.0.1:6333"}, "its certificate is for other names"),
        ({"url": "http://localhost:6333"}, "https://"),
    ],
)
def test_what_is_wrong_with_tls_is_told(secure: Target, change: dict, says: str) -> None:
    with pytest.raises((ConfigError, SinkError), match=says):
        make(replace(secure, **change))


@pytest.mark.parametrize("content", ["", "not a certificate"])
def test_a_file_without_certificates_is_named(secure: Target, tmp_path: Path, content: str) -> None:
    (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(ConfigError, match=r"qdrant.ca_file: .*ca.pem: holds no certificate"):
        make(replace(secure, ca_file=str(tmp_path / "ca.pem")))


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}\r", f"{KEY}ü"])
def test_a_key_that_cannot_be_sent_is_not_shown(secure: Target, key: str) -> None:
    with pytest.raises(ConfigError, match=r"qdrant.api_key: has a line end") as caught:
        make(replace(secure, api_key=key))
    assert KEY not in str(caught.value)


def seen_of(process: psutil.Process) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that the system shows of a process."""
    return process.cmdline(), process.environ()


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_key_is_seen_nowhere(tmp_path: Path, log_format: str) -> None:
    """Not in output, report, state, other files, or what the system shows of the run's processes."""
    with QdrantServer(tmp_path / "server", "--api-key", KEY) as server:
        place = Workplace(
            tmp_path / "place", qdrant={"path": None, "url": server.url, "grpc_port": server.port}
        )
        place.write("a.jsonl", documents(50))
        place.environment["QDRANT_API_KEY"] = KEY
        server.fault(code="UNAVAILABLE")
        server.fault(code="INTERNAL", detail="something with details")
        server.fault(delay=3.0)
        run = place.start_run("--log-format", log_format)
        eventually(lambda: server.calls() >= 3)
        family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        shown = [seen_of(process) for process in family]
        ended = [place.end(run)]
        assert ended[0].code == 0
        place.environment["QDRANT_API_KEY"] = f"{KEY}-wrong"
        (place.shards / "a.jsonl").write_text("")
        place.write("b.jsonl", documents(60))
        ended += [place.run("--log-format", log_format, code=2), place.ask("check", code=2)]
        ended += [place.ask("search", "anything", code=2), place.ask("status", code=0)]
    assert len(family) >= 3
    for arguments, environment in shown:
        assert KEY not in " ".join(arguments)
        assert [name for name, value in environment.items() if KEY in value] == ["QDRANT_API_KEY"]
    for command in ended:
        assert KEY not in command.out + command.err + str(command.report)
    for path in place.folder.rglob("*"):
        assert not path.is_file() or os.fsencode(KEY) not in path.read_bytes(), path
