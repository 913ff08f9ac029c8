"""What a single setting may be, where a plain type does not say it."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field


class Section(BaseModel):
    """Settings that belong together; refuses those that it does not know."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def as_fields(value: Any) -> Any:
    return value if value == "*" else as_list(value)


def a_collection(name: str) -> str:
    if not 0 < len(name.encode()) <= 255 or name in (".", "..") or re.search(r'[<>:"/\\|?*\x00-\x1f]', name):
        raise ValueError('should be 1 to 255 bytes without any of < > : " / \\ | ? *')
    return name


def a_url(url: str) -> str:
    """Refuse what would fail later, without repeating the URL: it may hold a secret."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of brackets, or of a port
        known = False
    if not known:
        raise ValueError("should be like http://localhost:6333 or https://host:6333")
    if parts.username or parts.password or parts.query:
        raise ValueError("should hold no secret: put the key into QDRANT_API_KEY")
    if parts.path not in ("", "/"):
        raise ValueError(f"should end after the port: gRPC cannot use the prefix {parts.path}")
    return url.rstrip("/")


def a_device(device: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ValueError(f"should be auto, cpu, cuda or cuda:N, not {device!r}")
    return device


def in_64_bits(number: Any) -> Any:
    if number >= 1 << 63:
        raise ValueError("should fit into 64 bits")
    return number


Texts = Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)]
AtLeast0 = Annotated[int, Field(ge=0), AfterValidator(in_64_bits)]
AtLeast1 = Annotated[int, Field(ge=1), AfterValidator(in_64_bits)]
Processes = Annotated[int, Field(ge=1, le=1024)]
"""No machine has use for more, and a slip of the finger would take all of its memory."""
Port = Annotated[int, Field(ge=1, le=65535)]
Size = Annotated[ByteSize, Field(ge=1), AfterValidator(in_64_bits)]
Text = Annotated[str, Field(min_length=1)]
