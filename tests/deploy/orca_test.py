#!/usr/bin/env python3
"""Reads hydrantd's load like a balancer, with the published stubs of ORCA: the stream of reports
while requests run, and the trailer.

xds-protos, grpcio, grpcio-tools and grpclib come from PyPI into OUT, a virtual environment.
Exit status: 0 passed, 1 failed, 77 skipped: they are unavailable.
"""
import argparse
import asyncio
import pathlib
import subprocess
import sys
import unittest

from package_index import ROOT, SKIPPED, environment, run_tests

try:
    import grpc
    import grpclib
    import grpclib.client
    from daemon import Daemon
    from google.protobuf import duration_pb2
    from hydrant.v1 import hydrant_pb2 as pb
    from hydrant.v1 import hydrant_pb2_grpc
    from vllm.grpc.engine import engine_pb2
    from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport
    from xds.service.orca.v3 import orca_pb2
except ImportError:
    pass  # outside of the environment that main() makes

PACKAGES = ["xds-protos==1.85.0", "grpcio==1.85.*", "grpcio-tools==1.85.*", "grpclib==0.4.*"]
STUBS = ["hydrant/v1/hydrant.proto", "vllm/grpc/engine/engine.proto", "smg/grpc/common/common.proto"]


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
    return run_tests(python, __file__, [stubs], HYDRANTD=str(args.daemon.resolve()))


class Orca(unittest.TestCase):
    def check(self, report: "object") -> None:
        for share in (report.mem_utilization, report.named_metrics["kv_cache_usage_perc"]):
            self.assertGreaterEqual(share, 0)
            self.assertLessEqual(share, 1)
        for amount in (report.cpu_utilization, report.application_utilization, report.rps_fractional, report.eps):
            self.assertGreaterEqual(amount, 0)
        self.assertEqual(set(report.named_metrics), {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"})

    def test_reports_while_requests_run(self) -> None:
        reports = self.channel.unary_stream("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
                                            request_serializer=orca_pb2.OrcaLoadReportRequest.SerializeToString,
                                            response_deserializer=OrcaLoadReport.FromString)(
            orca_pb2.OrcaLoadReportRequest(report_interval=duration_pb2.Duration(nanos=100_000_000)), timeout=120)
        stub = hydrant_pb2_grpc.HydrantStub(self.channel)
        request = pb.GenerateRequest(text="Once upon a time", stopping=pb.Stopping(max_tokens=400, ignore_eos=True))
        calls = []  # keeps adding calls until a report covers one
        for report in reports:
            self.check(report)
            if report.named_metrics["num_requests_running"] > 0:
                break
            calls.append(stub.Generate(request, timeout=120))
            next(calls[-1])
        self.assertGreaterEqual(report.application_utilization, 1 / 4)
        self.assertGreater(report.mem_utilization, 0)
        reports.cancel()

    # gRPC's own library consumes this trailer for its balancers: grpclib exposes it.
    def test_trailers_of_calls(self) -> None:
        async def call(method: str, request: object, response: type) -> OrcaLoadReport:
            host, port = self.daemon.address.rsplit(":", 1)
            async with grpclib.client.Channel(host, int(port)) as channel:
                async with grpclib.client.UnaryStreamMethod(channel, method, type(request), response).open(timeout=120) as stream:
                    await stream.send_message(request, end=True)
                    try:
                        async for _ in stream:
                            pass
                        await stream.recv_trailing_metadata()
                    except grpclib.GRPCError:
                        await stream.cancel()
                trailer = stream.trailing_metadata["endpoint-load-metrics-bin"]
                print(method, len(trailer), "bytes")
                return OrcaLoadReport.FromString(trailer)

        ours = pb.GenerateRequest(text="Once", sampling=pb.Sampling(n=3), stopping=pb.Stopping(max_tokens=4))
        theirs = engine_pb2.GenerateRequest(request_id="1", tokenized=engine_pb2.TokenizedInput(input_ids=[5, 6]), stream=True,
                                            sampling_params=engine_pb2.SamplingParams(max_tokens=4, n=3))
        for method, request, response in (("/hydrant.v1.Hydrant/Generate", ours, pb.GenerateResponse),
                                          ("/vllm.grpc.engine.VllmEngine/Generate", theirs, engine_pb2.GenerateResponse)):
            report = asyncio.run(call(method, request, response))
            self.check(report)
            # A call that has just ended still counts.
            self.assertGreaterEqual(report.application_utilization, 3 / 4)
            self.assertGreater(report.rps_fractional, 0)
            self.assertEqual(report.eps, 0)

    def setUp(self) -> None:
        self.daemon = self.enterContext(Daemon(ROOT / "models" / "hydrant-tiny.gguf", "--max-num-seqs", "4"))
        self.channel = self.enterContext(grpc.insecure_channel(self.daemon.address))


if __name__ == "__main__":
    sys.exit(main())
