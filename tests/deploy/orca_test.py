#!/usr/bin/env python3
"""Reads hydrantd's load as balancers do, with the published stubs of ORCA: the stream of reports while requests run, and the trailer.

xds-protos, grpcio and grpcio-tools come from PyPI into OUT, a virtual environment.
Exit status: 0 passed, 1 failed, 77 skipped: they cannot be had.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ["xds-protos==1.85.0", "grpcio==1.85.*", "grpcio-tools==1.85.*"]
SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    out = args.out.resolve()
    python = out / "bin" / "python"
    stubs = out / "stubs"
    subprocess.run([sys.executable, "-m", "venv", out], check=True)
    if subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=False).returncode != 0:
        print("skipped: the published stubs cannot be had: is a package index reachable?")
        return SKIPPED
    stubs.mkdir(exist_ok=True)
    subprocess.run([python, "-m", "grpc_tools.protoc", "-I", ROOT / "proto", f"--python_out={stubs}", f"--grpc_python_out={stubs}",
                    "hydrant/v1/hydrant.proto"], check=True)
    environment = {**os.environ, "HYDRANTD": str(args.daemon.resolve()), "GRPC_VERBOSITY": "ERROR",
                   "PYTHONPATH": os.pathsep.join([str(stubs), str(ROOT / "tests" / "client")])}
    return subprocess.run([python, "-m", "unittest", "-v", pathlib.Path(__file__).stem], cwd=pathlib.Path(__file__).parent,
                          env=environment, check=False).returncode


class Orca(unittest.TestCase):
    def check(self, report: "object") -> None:
        for share in (report.mem_utilization, report.named_metrics["kv_cache_usage_perc"]):
            self.assertGreaterEqual(share, 0)
            self.assertLessEqual(share, 1)
        for amount in (report.cpu_utilization, report.application_utilization, report.rps_fractional, report.eps):
            self.assertGreaterEqual(amount, 0)
        self.assertEqual(set(report.named_metrics), {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"})

    def test_reports_and_trailer(self) -> None:
        # pylint: disable=import-outside-toplevel
        import grpc
        from google.protobuf import duration_pb2
        from xds.data.orca.v3 import orca_load_report_pb2
        from xds.service.orca.v3 import orca_pb2

        from daemon import Daemon
        from hydrant.v1 import hydrant_pb2 as pb
        from hydrant.v1 import hydrant_pb2_grpc

        request = pb.GenerateRequest(text="Once upon a time", sampling=pb.Sampling(temperature=0, n=6),
                                     stopping=pb.Stopping(max_tokens=400, ignore_eos=True))
        tiny = ROOT / "models" / "hydrant-tiny.gguf"
        with Daemon(tiny, "--max-num-seqs", "4") as daemon, grpc.insecure_channel(daemon.address) as channel:
            stream = channel.unary_stream("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
                                          request_serializer=orca_pb2.OrcaLoadReportRequest.SerializeToString,
                                          response_deserializer=orca_load_report_pb2.OrcaLoadReport.FromString)
            reports = stream(orca_pb2.OrcaLoadReportRequest(report_interval=duration_pb2.Duration(nanos=100_000_000)), timeout=120)
            idle = next(reports)
            self.check(idle)
            self.assertEqual(idle.application_utilization, 0)

            stub = hydrant_pb2_grpc.HydrantStub(channel)
            # Calls follow each other until a report has fallen into one.
            for report in reports:
                self.check(report)
                if report.named_metrics["num_requests_running"] > 0:
                    break
                answer = stub.Generate(request, timeout=120)
                next(answer)
            self.assertGreater(report.application_utilization, 0)
            self.assertGreater(report.mem_utilization, 0)

            for _ in answer:
                pass
            trailers = dict(answer.trailing_metadata())
            trailer = orca_load_report_pb2.OrcaLoadReport.FromString(trailers["endpoint-load-metrics-bin"])
            self.check(trailer)
            # What has just ended still counts.
            self.assertGreaterEqual(trailer.application_utilization, 1)
            self.assertGreater(trailer.rps_fractional, 0)
            self.assertEqual(trailer.eps, 0)
            reports.cancel()


if __name__ == "__main__":
    sys.exit(main())
