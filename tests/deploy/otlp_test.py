#!/usr/bin/env python3
"""Receives hydrantd's traces like a collector, with the published stubs of OTLP, and compares the
contracts in proto/ with them.

opentelemetry-proto, grpcio, grpcio-tools and protobuf come from PyPI into OUT, a virtual environment.
Exit status: 0 passed, 1 failed, 77 skipped: they are unavailable.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import subprocess
import sys
import unittest

from package_index import ROOT, SKIPPED, environment, run_tests

try:
    import grpc
    from daemon import Daemon
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc
    from hydrant.v1 import hydrant_pb2 as pb
    from hydrant.v1 import hydrant_pb2_grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
    from opentelemetry.proto.common.v1 import common_pb2
    from opentelemetry.proto.resource.v1 import resource_pb2
    from opentelemetry.proto.trace.v1 import trace_pb2
except ImportError:
    pass  # outside of the environment that main() makes

PACKAGES = ["opentelemetry-proto==1.45.*", "grpcio==1.75.*", "grpcio-tools==1.75.*"]
STUBS = ["hydrant/v1/hydrant.proto"]
OURS = ["common/v1/common", "resource/v1/resource", "trace/v1/trace", "collector/trace/v1/trace_service"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    out = args.out.resolve()
    stubs = out / "stubs"
    python = environment(out, PACKAGES)
    if python is None:
        return SKIPPED
    stubs.mkdir(exist_ok=True)
    subprocess.run([python, "-m", "grpc_tools.protoc", "-I", ROOT / "proto", f"--python_out={stubs}", f"--grpc_python_out={stubs}",
                    *STUBS], check=True)
    return run_tests(python, __file__, [stubs], HYDRANTD=str(args.daemon.resolve()), OUT=str(out))


class Contract(unittest.TestCase):
    """Every field, value and method of ours is in the published contract, with name, number and
    type."""

    def fields(self, message: "object", prefix: str = "") -> "dict[str, tuple]":
        name = f"{prefix}{message.name}"
        found = {f"{name}.{field.name}": (field.number, field.type, field.label, field.type_name, field.HasField("oneof_index"))
                 for field in message.field}
        found |= {f"{name}.{value.name}": value.number for enum in message.enum_type for value in enum.value}
        for nested in message.nested_type:
            found |= self.fields(nested, f"{name}.")
        return found

    def contents(self, file: "descriptor_pb2.FileDescriptorProto") -> "dict[str, object]":
        found = {value.name: value.number for enum in file.enum_type for value in enum.value}
        for message in file.message_type:
            found |= self.fields(message)
        for service in file.service:
            for method in service.method:
                found[f"{file.package}.{service.name}/{method.name}"] = (method.input_type, method.output_type,
                                                                        method.client_streaming, method.server_streaming)
        return found

    def test_is_the_published_one(self) -> None:
        descriptors = pathlib.Path(os.environ["OUT"]) / "ours.binpb"
        files = [f"opentelemetry/proto/{name}.proto" for name in OURS]
        self.assertEqual(protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={descriptors}", *files]), 0)
        ours = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
        self.assertEqual(len(ours.file), 4)
        theirs = {module.DESCRIPTOR.name: module.DESCRIPTOR
                  for module in (common_pb2, resource_pb2, trace_pb2, trace_service_pb2)}
        compared = 0
        for file in ours.file:
            published = descriptor_pb2.FileDescriptorProto()
            theirs[file.name].CopyToProto(published)
            self.assertEqual(file.package, published.package)
            published = self.contents(published)
            for name, ours_is in self.contents(file).items():
                self.assertEqual(ours_is, published.get(name), name)
                compared += 1
        self.assertGreater(compared, 50)


class Traces(unittest.TestCase):
    def test_are_taken_by_a_collector(self) -> None:
        taken = queue.Queue()

        class Collector(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: "object", context: "object") -> "object":  # noqa: N802: the contract's name
                taken.put(request)
                return trace_service_pb2.ExportTraceServiceResponse()

        server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        with Daemon(ROOT / "models" / "hydrant-tiny.gguf", "--otlp-traces-endpoint", f"http://127.0.0.1:{port}") as daemon:
            with grpc.insecure_channel(daemon.address) as channel:
                request = pb.GenerateRequest(text="Once upon a time", stopping=pb.Stopping(max_tokens=4, ignore_eos=True))
                metadata = [("traceparent", f"00-{trace_id}-{parent_id}-01"), ("tracestate", "vendor=1")]
                answer = list(hydrant_pb2_grpc.HydrantStub(channel).Generate(request, metadata=metadata, timeout=120))
        usage = answer[-1].usage
        self.assertEqual(usage.completion_tokens, 4)
        export = taken.get(timeout=60)  # at the latest when the daemon ends
        server.stop(None)
        self.assertEqual(export.SerializeToString(), trace_service_pb2.ExportTraceServiceRequest.FromString(
            export.SerializeToString()).SerializeToString())
        self.assertNoUnknownFields(export)

        [resource_spans] = export.resource_spans
        resource = {attribute.key: attribute.value.string_value for attribute in resource_spans.resource.attributes}
        self.assertEqual(resource["service.name"], "hydrantd")
        [scope_spans] = resource_spans.scope_spans
        spans = {span.name: span for span in scope_spans.spans}
        self.assertEqual(set(spans), {"hydrant.v1.Hydrant/Generate", "queue", "prefill", "decode"})
        call = spans.pop("hydrant.v1.Hydrant/Generate")
        self.assertEqual(call.trace_id.hex(), trace_id)
        self.assertEqual(call.parent_span_id.hex(), parent_id)
        self.assertEqual(call.trace_state, "vendor=1")
        self.assertEqual(call.kind, trace_pb2.Span.SPAN_KIND_SERVER)
        self.assertEqual([event.name for event in call.events], ["first_token"])
        for name, span in spans.items():
            self.assertEqual((span.trace_id, span.parent_span_id), (call.trace_id, call.span_id), name)
            self.assertEqual(span.end_time_unix_nano - span.start_time_unix_nano, getattr(usage, f"{name}_us") * 1000, name)
        attributes = {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in call.attributes}
        self.assertEqual(attributes["gen_ai.usage.prompt_tokens"], usage.prompt_tokens)
        self.assertEqual(attributes["gen_ai.usage.completion_tokens"], usage.completion_tokens)
        self.assertEqual(attributes["rpc.grpc.status_code"], 0)
        self.assertAlmostEqual(attributes["gen_ai.latency.time_in_queue"], usage.queue_us * 1e-6)

    def assertNoUnknownFields(self, message: "object") -> None:  # noqa: N802: as unittest's own
        from google.protobuf import unknown_fields
        self.assertEqual(len(unknown_fields.UnknownFieldSet(message)), 0)
        for field, value in message.ListFields():
            if field.message_type is not None:
                for one in value if field.is_repeated else [value]:
                    self.assertNoUnknownFields(one)


if __name__ == "__main__":
    sys.exit(main())
