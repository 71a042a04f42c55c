#!/usr/bin/env python3
"""Probes hydrantd with published clients: gRPC's for its health service, Triton's and KServe's for
the Open Inference Protocol.

They come from PyPI into OUT, a virtual environment. KServe's brings 60 packages (Kubernetes'
client, pandas, a web server) and cannot be loaded beside Triton's: --kserve uses it instead.
Exit status: 0 passed, 1 failed, 77 skipped: they are unavailable.
"""
import argparse
import asyncio
import importlib.util
import pathlib
import sys
import unittest

from package_index import ROOT, SKIPPED, environment, run_tests

try:
    import grpc
    from daemon import Daemon
    from grpc_health.v1 import health_pb2_grpc
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
except ImportError:
    pass  # outside of the environment that main() makes

HEALTH, TRITON, KSERVE = "grpcio-health-checking==1.81.*", "tritonclient[grpc]==2.73.0", "kserve==0.21.0"
MODEL = ROOT / "models" / "hydrant-tiny.gguf"
# Long enough for the calls made meanwhile; a second SIGTERM cuts it short.
DRAIN = ("--drain-delay", "20")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--kserve", action="store_true")
    args = parser.parse_args()
    python = environment(args.out.resolve(), [HEALTH, KSERVE if args.kserve else TRITON])
    return SKIPPED if python is None else run_tests(python, __file__, HYDRANTD=str(args.daemon.resolve()))


class Health(unittest.TestCase):
    SERVICES = ("", "hydrant.v1.Hydrant", "vllm.grpc.engine.VllmEngine", "inference.GRPCInferenceService")

    def test_is_watched_until_the_server_drains(self) -> None:
        with Daemon(MODEL, *DRAIN) as daemon, grpc.insecure_channel(daemon.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watches = {name: stub.Watch(HealthCheckRequest(service=name), timeout=60) for name in self.SERVICES}
            for name, watch in watches.items():
                self.assertEqual(stub.Check(HealthCheckRequest(service=name), timeout=60).status, HealthCheckResponse.SERVING, name)
                self.assertEqual(next(watch).status, HealthCheckResponse.SERVING, name)
            daemon.terminate()
            for name, watch in watches.items():
                self.assertEqual(next(watch).status, HealthCheckResponse.NOT_SERVING, name)
                self.assertEqual(stub.Check(HealthCheckRequest(service=name), timeout=60).status, HealthCheckResponse.NOT_SERVING, name)

    def test_knows_no_other_service(self) -> None:
        with Daemon(MODEL) as daemon, grpc.insecure_channel(daemon.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            with self.assertRaises(grpc.RpcError) as refused:
                stub.Check(HealthCheckRequest(service="another"), timeout=60)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.NOT_FOUND)
            self.assertEqual(next(stub.Watch(HealthCheckRequest(service="another"), timeout=60)).status, HealthCheckResponse.SERVICE_UNKNOWN)


class OpenInference(unittest.TestCase):
    def setUp(self) -> None:
        self.daemon = self.enterContext(Daemon(MODEL, "--served-model-name", "tiny", *DRAIN))

    @unittest.skipUnless(importlib.util.find_spec("tritonclient"), "Triton's client is not here")
    def test_triton(self) -> None:
        import tritonclient.grpc
        from tritonclient.utils import InferenceServerException

        with tritonclient.grpc.InferenceServerClient(self.daemon.address) as client:
            self.assertTrue(client.is_server_live())
            self.assertTrue(client.is_server_ready())
            self.assertTrue(client.is_model_ready("tiny"))
            self.assertTrue(client.is_model_ready("tiny", "1"))
            self.assertEqual(client.get_server_metadata().name, "hydrant")
            model = client.get_model_metadata("tiny", as_json=True)
            self.assertEqual((model["name"], model["versions"], model["platform"]), ("tiny", ["1"], "hydrant"))
            self.assertEqual([tensor["datatype"] for tensor in model["inputs"] + model["outputs"]], ["BYTES", "BYTES"])
            for call, code in ((lambda: client.is_model_ready("other"), "NOT_FOUND"),
                               (lambda: client.get_model_metadata("tiny", "2"), "NOT_FOUND"),
                               (lambda: client.infer("tiny", []), "UNIMPLEMENTED")):
                with self.assertRaises(InferenceServerException) as refused:
                    call()
                self.assertEqual(refused.exception.status(), f"StatusCode.{code}")
            self.daemon.terminate()
            while client.is_server_ready():  # at the latest until the server ends, which raises
                pass
            self.assertTrue(client.is_server_live())
            self.assertFalse(client.is_model_ready("tiny"))

    @unittest.skipUnless(importlib.util.find_spec("kserve"), "--kserve brings KServe's client")
    def test_kserve(self) -> None:
        from kserve import InferenceGRPCClient

        async def ask() -> None:
            async with InferenceGRPCClient(self.daemon.address) as client:
                self.assertTrue(await client.is_server_live())
                self.assertTrue(await client.is_server_ready())
                self.assertTrue(await client.is_model_ready("tiny"))
                with self.assertRaises(grpc.RpcError) as refused:
                    await client.is_model_ready("other")
                self.assertEqual(refused.exception.code(), grpc.StatusCode.NOT_FOUND)
                self.daemon.terminate()
                while await client.is_server_ready():  # at the latest until the server ends, which raises
                    pass
                self.assertTrue(await client.is_server_live())

        asyncio.run(ask())


if __name__ == "__main__":
    sys.exit(main())
