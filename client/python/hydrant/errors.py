"""The error of a failed call."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from hydrant.v1 import hydrant_pb2 as pb

_DETAILS = "grpc-status-details-bin"
_USAGE = "hydrant-usage-bin"


class HydrantError(Exception):
    """A gRPC status with its details. docs/guide/api.md lists the reasons and the remedy for each.

    code          grpc.StatusCode
    message       description of the error
    reason        such as "QUEUE_FULL"; None if the error is not from the server, for example if it could not be reached
    field         the invalid field of the request: "sampling.top_p"
    retry_after   seconds after which a retry may succeed; None: unknown
    usage         usage of an accepted request; else None
    """

    def __init__(self, code: grpc.StatusCode, message: str, *, reason: str | None = None, field: str | None = None,
                 retry_after: float | None = None, usage: pb.Usage | None = None) -> None:
        words = f"{code.name} [{reason}]" if reason else code.name
        super().__init__(f"{words}: {message}")
        self.code = code
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_after = retry_after
        self.usage = usage

    @classmethod
    def of(cls, error: Any) -> HydrantError:
        """From a grpc.RpcError that ended a call of grpc or grpc.aio."""
        trailers = _binary(error.trailing_metadata())
        told = _details(trailers.get(_DETAILS))
        usage = pb.Usage.FromString(trailers[_USAGE]) if _USAGE in trailers else None
        return cls(error.code(), error.details() or "", usage=usage, **told)

    @classmethod
    def of_failure(cls, failure: pb.RequestFailure) -> HydrantError:
        """From the failure of one request of a batch."""
        code = next((code for code in grpc.StatusCode if code.value[0] == failure.code), grpc.StatusCode.UNKNOWN)
        return cls(code, failure.message, reason=failure.reason or None, field=failure.field or None,
                   retry_after=failure.retry_after_us * 1e-6 if failure.HasField("retry_after_us") else None,
                   usage=failure.usage if failure.HasField("usage") else None)

    @property
    def lost(self) -> bool:
        """Whether the connection was lost, perhaps behind a proxy, rather than the request refused by the server."""
        return self.reason is None and self.code in (
            grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def _binary(metadata: Iterable[Any] | None) -> dict[str, bytes]:
    return {key: value for key, value in metadata or () if isinstance(value, bytes)}


def _details(encoded: bytes | None) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for detail in status_pb2.Status.FromString(encoded or b"").details:
        info, wrong, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            told["reason"] = info.reason
        elif detail.Unpack(wrong) and wrong.field_violations:
            told["field"] = wrong.field_violations[0].field
        elif detail.Unpack(retry):
            told["retry_after"] = retry.retry_delay.seconds + retry.retry_delay.nanos * 1e-9
    return told
