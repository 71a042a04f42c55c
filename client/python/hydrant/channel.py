"""Connection settings of a daemon: addresses, TLS, tokens, load balancing."""
from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, TypedDict, Union

import grpc

_PathLike = Union[str, Path]

# If a name has several addresses, calls alternate between them; a single connection would use one
# replica only.
_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


class TargetOptions(TypedDict, total=False):
    """The fields of Target as keyword arguments of the clients."""

    token: Optional[str]
    tls: bool
    tls_ca: Optional[_PathLike]
    tls_certificate: Optional[_PathLike]
    tls_key: Optional[_PathLike]
    options: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Target:
    """An address and its credentials. Files are read when a channel is opened.

    token             sent as `authorization: Bearer TOKEN`. Without TLS it can be read on the network
    tls               with the system's certificate authorities; implied by the following options
    tls_ca            a PEM file of certificate authorities instead
    tls_certificate   with tls_key: a PEM file with the client's certificate
    options           gRPC channel options
    """

    address: str
    token: Optional[str] = None
    tls: bool = False
    tls_ca: Optional[_PathLike] = None
    tls_certificate: Optional[_PathLike] = None
    tls_key: Optional[_PathLike] = None
    options: Sequence[tuple[str, Any]] = ()

    def __post_init__(self) -> None:
        if self.address.startswith(("http://", "https://")):
            raise ValueError(f"address: {self.address} is a URL; gRPC takes HOST:PORT, and tls=True for TLS")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token is not None else ()

    def channel_options(self) -> list[tuple[str, Any]]:
        # A server on this machine is reached directly; for others gRPC uses http_proxy and
        # no_proxy.
        proxy = [("grpc.enable_http_proxy", 0)] if is_on_this_machine(self.address) else []
        return [
            *proxy,
            ("grpc.max_receive_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5000),
            ("grpc.service_config", _ROUND_ROBIN),
            *self.options,
        ]

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None: without TLS."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if not (self.tls or self.tls_ca or self.tls_certificate):
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.tls_ca), private_key=_read(self.tls_key),
            certificate_chain=_read(self.tls_certificate))


_THIS_MACHINE = re.compile(r"unix(-abstract)?:|((ipv4|ipv6|dns):)?(//[^/]*/)?(localhost|127\.[0-9.]+|\[::1\]|::1)(:[0-9]+)?$", re.IGNORECASE)


def is_on_this_machine(address: str) -> bool:
    return _THIS_MACHINE.match(address) is not None


def _read(path: _PathLike | None) -> bytes | None:
    return Path(path).read_bytes() if path is not None else None
