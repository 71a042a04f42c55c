"""Tests of the installed package against hydrantd. Run by python_client_test.py, in the package's environment."""
import asyncio
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.rpc import error_details_pb2, status_pb2

import hydrant
from cutting_proxy import CuttingProxy
from daemon import ROOT, Daemon
from hydrant import AsyncClient, Client, HydrantError
from hydrant.channel import is_on_this_machine
from hydrant.request import build
from hydrant.retry import GenerateRetry, Retry
from hydrant.v1 import hydrant_pb2 as pb
from hydrant.v1 import hydrant_pb2_grpc

EXAMPLES = ROOT / "client" / "python" / "examples"
TINY = ROOT / "models" / "hydrant-tiny.gguf"
PROMPT = (ROOT / "client" / "examples" / "continue.txt").read_text(encoding="utf-8")
SAMPLED = {"max_tokens": 48, "temperature": 0.9, "seed": 11, "cache_policy": "h2o", "cache_ratio": 0.3, "min_cache_tokens": 16}
LATER = """
name: "later.proto" package: "later" syntax: "proto3"
message_type { name: "Request"
  field { name: "text" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "sampling" number: 2 type: TYPE_MESSAGE type_name: ".later.Sampling" label: LABEL_OPTIONAL }
  field { name: "guide" number: 3 type: TYPE_MESSAGE type_name: ".later.Guide" label: LABEL_OPTIONAL } }
message_type { name: "Sampling"
  field { name: "logprobs" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL }
  field { name: "logit_bias" number: 2 type: TYPE_MESSAGE type_name: ".later.Sampling.LogitBiasEntry" label: LABEL_REPEATED }
  nested_type { name: "LogitBiasEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_FLOAT label: LABEL_OPTIONAL } } }
message_type { name: "Guide" oneof_decl { name: "constraint" }
  field { name: "json_schema" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "choice" number: 2 type: TYPE_MESSAGE type_name: ".later.Choice" label: LABEL_OPTIONAL oneof_index: 0 } }
message_type { name: "Choice" field { name: "values" number: 1 type: TYPE_STRING label: LABEL_REPEATED } }
"""
TEMPLATE = (
    "{% for tool in tools %}tool {{ tool.function.name }}\n{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function.name }}({{ call.function.arguments.city }}){% endfor %};\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}")


def raw_answer(address, request):
    """With the generated stub only, on its own connection."""
    with grpc.insecure_channel(address) as channel:
        deltas = [response.delta for response in hydrant_pb2_grpc.HydrantStub(channel).Generate(request) if response.HasField("delta")]
    return "".join(delta.text for delta in deltas), [token for delta in deltas for token in delta.token_ids]


class Requests(unittest.TestCase):
    """Without a daemon: conversion of keyword arguments."""

    def test_keywords_are_the_fields_of_the_messages_in_a_request(self):
        request = build(pb.GenerateRequest, "text", {
            "temperature": 0, "max_tokens": 5, "stop": "end", "cache_policy": "h2o", "cache_ratio": 0.2,
            "params": {"rolling": True, "decode_cap": 7, "kind": "a"}, "reuse": "off", "on_pressure": "ON_PRESSURE_NEVER",
            "ttft_us": 9, "skip_special_tokens": False, "keep": True, "resume_token_ids": [3, 4], "seed": None})
        self.assertEqual(request, pb.GenerateRequest(
            text="text", keep=True, resume_token_ids=[3, 4], sampling=pb.Sampling(temperature=0),
            stopping=pb.Stopping(max_tokens=5, stop=["end"]),
            cache=pb.Cache(cache_policy="h2o", cache_ratio=0.2, reuse=pb.REUSE_OFF,
                           params={"rolling": "true", "decode_cap": "7", "kind": "a"}),
            output=pb.Output(skip_special_tokens=False),
            scheduling=pb.Scheduling(on_pressure=pb.ON_PRESSURE_NEVER, slo=pb.Slo(ttft_us=9))))

    def test_a_message_may_be_a_dict(self):
        request = build(pb.GenerateRequest, "a", {"cache": {"sink_tokens": 4}, "cache_ratio": 0.5, "slo": {"tpot_us": 2}, "ttft_us": 1})
        self.assertEqual(request, pb.GenerateRequest(text="a", cache=pb.Cache(sink_tokens=4, cache_ratio=0.5),
                                                     scheduling=pb.Scheduling(slo=pb.Slo(ttft_us=1, tpot_us=2))))

    def test_what_a_later_contract_may_add(self):
        """With a contract defined here: mutually exclusive constraints, a map of numbers, lists in messages."""
        file = descriptor_pb2.FileDescriptorProto()
        text_format.Parse(LATER, file)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        later = message_factory.GetMessageClass(pool.FindMessageTypeByName("later.Request"))
        request = build(later, "a", {"logit_bias": {5: -1.5}, "choice": ["yes", "no"], "logprobs": 3})
        self.assertEqual((dict(request.sampling.logit_bias), request.sampling.logprobs, list(request.guide.choice.values)),
                         ({5: -1.5}, 3, ["yes", "no"]))
        self.assertEqual(json.loads(build(later, "a", {"json_schema": {"type": "object"}}).guide.json_schema), {"type": "object"})
        with self.assertRaisesRegex(TypeError, "'json_schema' and 'choice' exclude each other"):
            build(later, "a", {"choice": ["a"], "json_schema": {}})

    def test_prompts(self):
        self.assertEqual(build(pb.GenerateRequest, [1, 2], {}), pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2])))
        self.assertEqual(build(pb.DetokenizeRequest, [1, 2], {}), pb.DetokenizeRequest(token_ids=[1, 2]))
        chat = pb.Chat(messages=[
            pb.ChatMessage(role="user", content="weather?"),
            pb.ChatMessage(role="assistant", reasoning="hm", tool_calls=[
                pb.ToolCall(id="1", name="f", arguments_json='{"a": 1}'), pb.ToolCall(name="g", arguments_json="{}")])],
            tools_json='[{"type": "function"}]', continues_context=True)
        self.assertEqual(build(pb.GenerateRequest, [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"name": "g", "arguments": {}}]},
        ], {"tools": [{"type": "function"}], "continues_context": True}), pb.GenerateRequest(chat=chat))
        self.assertEqual(build(pb.GenerateRequest, list(chat.messages), {}).chat.messages, chat.messages)

    def test_wrong_arguments_are_named(self):
        for fields, words in [({"max_token": 5}, "did you mean 'max_tokens'"), ({"tempratur": 1}, "did you mean 'temperature'"),
                              ({"zzz": 1}, "GenerateRequest has no 'zzz'"), ({"max_tokens": "five"}, "max_tokens: "),
                              ({"tools": []}, "'tools' goes with the messages of a chat"), ({"top_k": 1.5}, "top_k: ")]:
            with self.assertRaisesRegex(TypeError, words, msg=fields):
                build(pb.GenerateRequest, "text", fields)
        with self.assertRaisesRegex(ValueError, "on_pressure: 'evacuate' is none of preempt, evict, never"):
            build(pb.GenerateRequest, "text", {"on_pressure": "evacuate"})
        with self.assertRaisesRegex(ValueError, "max_tokens: "):
            build(pb.GenerateRequest, "text", {"max_tokens": -1})
        with self.assertRaisesRegex(TypeError, "EmbedRequest takes no chat"):
            build(pb.EmbedRequest, [{"role": "user", "content": ""}], {})
        with self.assertRaisesRegex(TypeError, "TokenizeRequest takes no token ids"):
            build(pb.TokenizeRequest, [1, 2], {})
        for prompt in ([1, "a"], [{"role": "user"}, 1], ["text"]):
            with self.assertRaisesRegex(TypeError, "a prompt is"):
                build(pb.GenerateRequest, prompt, {})
        with self.assertRaisesRegex(TypeError, "ChatMessage has no 'contents'; did you mean 'content'"):
            build(pb.GenerateRequest, [{"role": "user", "contents": "a"}], {})


class Retries(unittest.TestCase):
    """Without a daemon: which errors are retried, and when."""

    def test_delays(self):
        unavailable = HydrantError(grpc.StatusCode.UNAVAILABLE, "")
        retry = Retry(3, None)
        delays = [retry.delay_after(unavailable) for _ in range(3)]
        for delay, middle in zip(delays, (0.2, 0.4, 0.8)):
            self.assertTrue(middle * 0.5 <= delay <= middle * 1.5, delays)
        with self.assertRaises(HydrantError):
            retry.delay_after(unavailable)
        full = HydrantError(grpc.StatusCode.RESOURCE_EXHAUSTED, "", reason="QUEUE_FULL", retry_after=7.5)
        self.assertEqual(Retry(1, None).delay_after(full), 7.5)
        with self.assertRaises(HydrantError):  # the deadline passes first
            Retry(1, 5).delay_after(full)

    def test_which_errors(self):
        lost = HydrantError(grpc.StatusCode.INTERNAL, "")
        fault = HydrantError(grpc.StatusCode.INTERNAL, "", reason="ENGINE_FAULT")
        wrong = HydrantError(grpc.StatusCode.INVALID_ARGUMENT, "", reason="INVALID")
        accepted = pb.GenerateResponse(accepted=pb.Accepted(seed=5))
        for error in (lost, fault, wrong):
            with self.assertRaises(HydrantError):
                Retry(1, None).delay_after(error)
        single = GenerateRetry(pb.GenerateRequest(text="a", request_id="r"), 9, None)
        with self.assertRaises(HydrantError):  # nothing has begun: a proxy's error is final
            single.delay_after(lost)
        self.assertIsNotNone(single.note(accepted))
        single.note(pb.GenerateResponse(delta=pb.Delta(token_ids=[1, 2])))
        single.delay_after(lost)
        self.assertIsNone(single.note(accepted))
        single.note(pb.GenerateResponse(delta=pb.Delta(token_ids=[3])))
        self.assertEqual(single.request,
                         pb.GenerateRequest(text="a", sampling=pb.Sampling(seed=5), resume_token_ids=[1, 2, 3]))
        with self.assertRaises(HydrantError):
            single.delay_after(fault)
        self.assertFalse(single.ended(lost))
        single.note(pb.GenerateResponse(finished=pb.Finished()))
        self.assertTrue(single.ended(lost))
        self.assertFalse(single.ended(fault))
        several = GenerateRetry(pb.GenerateRequest(text="a", sampling=pb.Sampling(n=2)), 9, None)
        several.delay_after(HydrantError(grpc.StatusCode.UNAVAILABLE, ""))
        several.note(accepted)
        with self.assertRaises(HydrantError):
            several.delay_after(lost)


    def test_logprobs_of_the_prompt_come_once(self):
        def came(first, ids):
            tokens = [pb.TokenLogprobs(token_id=token) for token in ids]
            event = retry.note(pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(first_position=first, tokens=tokens)))
            return event and (event.first_position, [token.token_id for token in event.tokens])

        retry = GenerateRetry(pb.GenerateRequest(text="a", sampling=pb.Sampling(prompt_logprobs=1)), 9, None)
        self.assertEqual(came(1, [11, 12]), (1, [11, 12]))
        self.assertEqual(came(3, [13]), (3, [13]))
        # after a loss here, the prompt is prefilled again
        self.assertTrue(retry.request.sampling.HasField("prompt_logprobs"))
        self.assertIsNone(came(1, [11]))
        self.assertEqual(came(2, [12, 13, 14]), (4, [14]))
        self.assertEqual(came(5, [15]), (5, [15]))
        retry.note(pb.GenerateResponse(delta=pb.Delta(token_ids=[1])))
        self.assertFalse(retry.request.sampling.HasField("prompt_logprobs"))


    def test_kept_entries_come_once(self):
        def came(first, texts, heads=()):
            entries = pb.KeptEntries(first_token=first, token_texts=texts, heads=[pb.KeptByHead(layer=1, head=head) for head in heads])
            event = retry.note(pb.GenerateResponse(kept_entries=entries))
            return event and (event.first_token, list(event.token_texts), [head.head for head in event.heads])

        retry = GenerateRetry(pb.GenerateRequest(text="a", output=pb.Output(kept_entries=True)), 9, None)
        self.assertEqual(came(0, [b"a", b"b"]), (0, [b"a", b"b"], []))
        self.assertEqual(came(2, [b"c"], [0]), (2, [b"c"], [0]))
        # after a loss here
        self.assertTrue(retry.request.output.kept_entries)
        self.assertIsNone(came(0, [b"a"]))
        self.assertEqual(came(1, [b"b", b"c", b"d"], [0, 1]), (3, [b"d"], [1]))
        self.assertEqual(came(0, [], [2]), (0, [], [2]))
        retry.note(pb.GenerateResponse(delta=pb.Delta(token_ids=[1])))
        self.assertFalse(retry.request.output.kept_entries)


class Errors(unittest.TestCase):
    def test_details_are_decoded(self):
        class Ended:
            def code(self):
                return grpc.StatusCode.RESOURCE_EXHAUSTED

            def details(self):
                return "full"

            def trailing_metadata(self):
                rich = status_pb2.Status()
                rich.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="hydrant"))
                retry = error_details_pb2.RetryInfo()
                retry.retry_delay.FromMilliseconds(1250)
                rich.details.add().Pack(retry)
                return (("x", "y"), ("grpc-status-details-bin", rich.SerializeToString()),
                        ("hydrant-usage-bin", pb.Usage(prompt_tokens=3).SerializeToString()))

        error = HydrantError.of(Ended())
        self.assertEqual((error.code, error.reason, error.retry_after, error.field, error.usage.prompt_tokens),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 1.25, None, 3))
        self.assertEqual(str(error), "RESOURCE_EXHAUSTED [QUEUE_FULL]: full")


class Reaching(unittest.TestCase):
    """TLS and tokens, against a Python server that reports what it received."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which("openssl"):
            raise unittest.SkipTest("openssl is not installed")
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for name, signed_by in (("ca", None), ("server", "ca"), ("client", "ca"), ("stranger", None)):
            cls.certify(name, signed_by)

    @classmethod
    def certify(cls, name, signed_by):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj",
                   f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        if signed_by:
            command += ["-CA", f"{signed_by}.pem", "-CAkey", f"{signed_by}.key", "-addext", "basicConstraints=critical,CA:FALSE"]
        subprocess.run(command, cwd=cls.folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def read(self, name):
        return (self.folder / name).read_bytes()

    def serve(self, credentials):
        class Tokens(hydrant_pb2_grpc.HydrantServicer):
            def GetModelInfo(self, request, context):
                return pb.GetModelInfoResponse(name=dict(context.invocation_metadata()).get("authorization", "none"))

        server = grpc.server(futures.ThreadPoolExecutor(2))
        hydrant_pb2_grpc.add_HydrantServicer_to_server(Tokens(), server)
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        self.addCleanup(server.stop, None)
        return f"127.0.0.1:{port}"

    def test_a_token(self):
        address = self.serve(None)
        with Client(address, token="secret") as client, Client(address) as nobody:
            self.assertEqual(client.model_info().name, "Bearer secret")
            self.assertEqual(nobody.model_info().name, "none")

    def test_tls(self):
        own = [(self.read("server.key"), self.read("server.pem"))]
        address = self.serve(grpc.ssl_server_credentials(own))
        with Client(address, tls_ca=self.folder / "ca.pem", token="secret") as client:
            self.assertEqual(client.model_info().name, "Bearer secret")
        for wrong in ({}, {"tls": True}, {"tls_ca": self.folder / "stranger.pem"}):
            with Client(address, retries=0, **wrong) as client, self.assertRaises(HydrantError, msg=wrong) as raised:
                client.model_info(timeout=20)
            self.assertEqual(raised.exception.code, grpc.StatusCode.UNAVAILABLE)

    def test_a_certificate_of_the_clients_own(self):
        own = [(self.read("server.key"), self.read("server.pem"))]
        address = self.serve(grpc.ssl_server_credentials(own, self.read("ca.pem"), require_client_auth=True))
        ca = {"tls_ca": self.folder / "ca.pem"}

        def certificate(name):
            return {"tls_certificate": self.folder / f"{name}.pem", "tls_key": self.folder / f"{name}.key"}

        with Client(address, **ca, **certificate("client")) as client:
            self.assertEqual(client.model_info().name, "none")
        for wrong in ({}, certificate("stranger")):
            with Client(address, retries=0, **ca, **wrong) as client, self.assertRaises(HydrantError, msg=wrong):
                client.model_info(timeout=20)
        with self.assertRaisesRegex(ValueError, "go together"):
            Client(address, tls_key="me.key")


    def test_the_daemon_itself(self):
        if "--auth-tokens" not in subprocess.run([os.environ["HYDRANTD"], "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout:
            self.skipTest("this daemon has neither TLS nor tokens")
        tokens = self.folder / "tokens.yaml"
        tokens.write_text(f"tokens:\n  - tenant: acme\n    sha256: {hashlib.sha256(b'secret').hexdigest()}\n", encoding="utf-8")
        with Daemon(TINY, "--tls-certificate", self.folder / "server.pem", "--tls-key", self.folder / "server.key", "--tls-client-ca",
                    self.folder / "ca.pem", "--auth-tokens", tokens) as daemon:
            tls = {"tls_ca": self.folder / "ca.pem", "tls_certificate": self.folder / "client.pem", "tls_key": self.folder / "client.key"}
            with Client(daemon.address, token="secret", **tls) as client:
                self.assertEqual(client.generate("Once", max_tokens=3).finish_reason, "length")
            with Client(daemon.address, token="guessed", **tls) as client, self.assertRaises(HydrantError) as raised:
                client.generate("Once", max_tokens=3)
            self.assertEqual(raised.exception.code, grpc.StatusCode.UNAUTHENTICATED)


class AgainstTheDaemon(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(Daemon(TINY, "--batch-invariant", "--max-num-seqs", "4"))
        cls.client = cls.enterClassContext(Client(cls.daemon.address))
        request = build(pb.GenerateRequest, PROMPT, SAMPLED)
        cls.text, cls.token_ids = raw_answer(cls.daemon.address, request)
        assert len(cls.token_ids) > 20, cls.token_ids

    def test_the_text_is_the_raw_stubs(self):
        answer = self.client.generate(PROMPT, **SAMPLED)
        self.assertEqual((answer.text, answer.token_ids), (self.text, self.token_ids))
        self.assertEqual(answer.usage.completion_tokens, len(self.token_ids))
        self.assertGreater(answer.usage.kv_tokens_evicted, 0)
        self.assertEqual((answer.seed, answer.finish_reason), (11, "length"))
        stream = self.client.stream(PROMPT, **SAMPLED)
        kinds = [type(event).__name__ for event in stream]
        self.assertEqual((kinds[0], kinds[-2:], stream.answer.text), ("Accepted", ["Finished", "Usage"], self.text))
        self.assertEqual("".join(self.client.stream(PROMPT, **SAMPLED).texts()), self.text)

    def test_token_ids_are_a_prompt_too(self):
        ids = self.client.tokenize(PROMPT).token_ids
        self.assertEqual(self.client.generate(ids, **SAMPLED).token_ids, self.token_ids)
        self.assertEqual(self.client.detokenize(self.token_ids), self.text)

    def test_logprobs(self):
        answer = self.client.generate(PROMPT, max_tokens=5, temperature=0, logprobs=2, prompt_logprobs=0)
        self.assertEqual([token.token_id for token in answer.logprobs], answer.token_ids)
        self.assertEqual({(token.rank, len(token.top_token_ids)) for token in answer.logprobs}, {(1, 2)})  # greedy
        self.assertEqual([token.token_id for token in answer.prompt_logprobs], list(self.client.tokenize(PROMPT).token_ids)[1:])
        self.assertEqual(self.client.generate(PROMPT, max_tokens=1, temperature=0, allowed_token_ids=[300]).token_ids, [300])
        self.assertEqual(self.client.generate(PROMPT, max_tokens=1, temperature=0, logit_bias={301: 100}).token_ids, [301])

    def test_kept_entries(self):
        answer = self.client.generate(PROMPT, kept_entries=True, **SAMPLED)
        texts = [text for text, _ in answer.kept_shares()]
        self.assertIn(b"".join(texts).decode().strip(), (PROMPT.strip(), "<s> " + PROMPT.strip()))
        heads = answer.kept_entries.heads
        self.assertEqual(sum(head.tokens[i >> 3] >> (i & 7) & 1 for head in heads for i in range(len(texts))),
                         answer.usage.kv_entries_of_prompt)
        self.assertEqual(self.client.generate(PROMPT, **SAMPLED).kept_entries, pb.KeptEntries())

    def cut(self, cut_after=()):
        proxy = CuttingProxy(self.daemon.address, cut_after)
        self.addCleanup(proxy.close)
        return proxy

    def test_a_lost_stream_is_taken_up_where_it_ended(self):
        whole = self.cut()
        with Client(whole.address) as client:
            client.generate(PROMPT, **SAMPLED)
        # Within the server's HTTP/2 greeting, in its first events, and later in the stream, once
        # and twice.
        for cuts in ([20], [whole.relayed // 4], [whole.relayed // 2], [whole.relayed * 3 // 4], [whole.relayed // 2, whole.relayed // 3]):
            with self.subTest(cuts=cuts):
                proxy = self.cut(cuts)
                with Client(proxy.address) as client:
                    stream = client.stream(PROMPT, request_id=f"cut-{cuts}", **SAMPLED)
                    kinds = [type(event).__name__ for event in stream]
                # On a busy machine a stream has fewer, longer messages, and may end before the
                # later positions.
                if cuts[0] <= whole.relayed // 4:
                    self.assertEqual(proxy.cuts, len(cuts))
                self.assertEqual((stream.answer.text, stream.answer.token_ids), (self.text, self.token_ids))
                self.assertEqual((kinds.count("Accepted"), kinds.count("Usage")), (1, 1))

    def test_one_that_is_lost_too_often_is_an_error(self):
        proxy = self.cut([1000] * 9)
        with Client(proxy.address, retries=0) as client, self.assertRaises(HydrantError) as raised:
            client.generate(PROMPT, **SAMPLED)
        self.assertTrue(raised.exception.lost, raised.exception)
        self.assertEqual(proxy.cuts, 1)

    def test_asyncio(self):
        async def ask():
            proxy = self.cut([1000])
            async with AsyncClient(proxy.address) as client, AsyncClient(self.daemon.address) as direct:
                stream = client.stream(PROMPT, **SAMPLED)
                pieces = [piece async for piece in stream.texts()]
                self.assertEqual(("".join(pieces), stream.answer.token_ids, proxy.cuts), (self.text, self.token_ids, 1))
                answers = await asyncio.gather(*(direct.generate(PROMPT, **SAMPLED) for _ in range(3)))
                self.assertEqual([answer.text for answer in answers], [self.text] * 3)
                self.assertEqual(await direct.detokenize(self.token_ids), self.text)
                self.assertEqual(list((await direct.tokenize(PROMPT)).token_ids), list(self.client.tokenize(PROMPT).token_ids))
                self.assertEqual((await direct.model_info()).name, self.client.model_info().name)
                self.assertEqual((await direct.embed("a whale")).embedding, self.client.embed("a whale").embedding)
                made = await direct.contexts.compress(PROMPT, handle="async")
                self.assertEqual((await direct.contexts.get("async")).tokens, made.context.tokens)
                self.assertIn("async", [each.handle for each in await direct.contexts.list()])
                await direct.contexts.delete("async")
                with self.assertRaises(HydrantError) as raised:
                    await direct.generate(PROMPT, temperature=-1)
                self.assertEqual(raised.exception.field, "sampling.temperature")
        asyncio.run(ask())

    def test_a_batch(self):
        own = pb.GenerateRequest(text="Once", sampling=pb.Sampling(seed=5, n=2), stopping=pb.Stopping(max_tokens=9))
        wrong = pb.GenerateRequest(text="Once", sampling=pb.Sampling(top_p=2))
        results = self.client.generate_batch([PROMPT, own, wrong, "Once"], **SAMPLED)
        self.assertEqual((results[0].text, results[0].token_ids), (self.text, self.token_ids))
        alone = self.client.generate("Once", **{**SAMPLED, "seed": 5, "n": 2, "max_tokens": 9})
        self.assertEqual([sample.text for sample in results[1].samples], [sample.text for sample in alone.samples])
        self.assertEqual((results[2].reason, results[2].field, results[2].code.name),
                         ("INVALID", "requests[2].sampling.top_p", "INVALID_ARGUMENT"))
        self.assertEqual(results[3].text, self.client.generate("Once", **SAMPLED).text)
        self.assertEqual(results[3].usage.completion_tokens, SAMPLED["max_tokens"])
        for prompts, field in ([], "requests"), (["Once"] * 1025, "requests"):
            with self.assertRaises(HydrantError) as raised:
                self.client.generate_batch(prompts)
            self.assertEqual(raised.exception.field, field)

    def test_a_batch_is_taken_up_where_it_was_lost(self):
        prompts = [PROMPT, "Once", "The sea"]
        expected = [self.client.generate(prompt, **SAMPLED).text for prompt in prompts]
        whole = self.cut()
        with Client(whole.address) as client:
            client.generate_batch(prompts, **SAMPLED)
        for cuts in ([20], [whole.relayed // 2], [whole.relayed // 2, whole.relayed // 4]):
            with self.subTest(cuts=cuts):
                proxy = self.cut(cuts)
                with Client(proxy.address) as client:
                    self.assertEqual([answer.text for answer in client.generate_batch(prompts, **SAMPLED)], expected)
                self.assertEqual(proxy.cuts, len(cuts))

        async def ask():
            proxy = self.cut([whole.relayed // 2])
            async with AsyncClient(proxy.address) as client:
                return [answer.text for answer in await client.generate_batch(prompts, **SAMPLED)], proxy.cuts
        self.assertEqual(asyncio.run(ask()), (expected, 1))

    def test_a_batch_that_nobody_answers(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Client(address, retries=1) as client, self.assertRaises(HydrantError) as raised:
            client.generate_batch(["Once", "The sea"], timeout=20)
        self.assertEqual(raised.exception.code, grpc.StatusCode.UNAVAILABLE)

    def test_who_leaves_early_ends_the_request(self):
        with self.client.stream("Once", max_tokens=100_000, ignore_eos=True, cache_policy="streaming", max_cache_tokens=64,
                                params={"rolling": True}) as stream:
            for event in stream:
                if isinstance(event, hydrant.Delta):
                    break
            self.assertEqual(self.client.server_info().load.running, 1)
        deadline = time.monotonic() + 30
        while self.client.server_info().load.running > 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_errors_are_decoded(self):
        for call, code, reason, field in [
                (lambda: self.client.generate(PROMPT, top_p=2), "INVALID_ARGUMENT", "INVALID", "sampling.top_p"),
                (lambda: self.client.generate(PROMPT, model="other"), "NOT_FOUND", "UNKNOWN_MODEL", None),
                (lambda: self.client.generate(PROMPT, context="none"), "NOT_FOUND", "UNKNOWN_CONTEXT", None),
                (lambda: self.client.generate([{"role": "user", "content": "a"}]), "FAILED_PRECONDITION", "NO_CHAT_TEMPLATE", None),
                (lambda: self.client.contexts.get("none"), "NOT_FOUND", "UNKNOWN_CONTEXT", None),
                (lambda: self.client.contexts.save("none"), "UNIMPLEMENTED", "NO_CONTEXTS", None)]:
            with self.assertRaises(HydrantError) as raised:
                call()
            error = raised.exception
            self.assertEqual((error.code.name, error.reason, error.field), (code, reason, field), error)

    def test_a_deadline_ends_a_request_with_its_usage(self):
        with self.assertRaises(HydrantError) as raised:
            self.client.generate("Once", timeout=1, max_tokens=1_000_000, ignore_eos=True, cache_policy="streaming",
                                 max_cache_tokens=64, params={"rolling": True})
        self.assertEqual(raised.exception.code, grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Client(address, retries=1) as client, self.assertRaises(HydrantError) as raised:
            client.model_info(timeout=20)
        self.assertEqual((raised.exception.code, raised.exception.lost), (grpc.StatusCode.UNAVAILABLE, True))

    def test_a_full_queue_is_waited_for(self):
        endless = {"max_tokens": 1_000_000, "ignore_eos": True, "cache_policy": "streaming", "max_cache_tokens": 64,
                   "params": {"rolling": True}}
        with Daemon(TINY, "--max-num-seqs", "1", "--max-num-queued-reqs", "1") as small, Client(small.address, retries=9) as client:
            running, waiting = client.stream("Once", **endless), client.stream("Once", **endless)
            next(running)
            while client.server_info().load.running == 0:
                time.sleep(0.05)
            next(waiting)
            with Client(small.address, retries=0) as hasty, self.assertRaises(HydrantError) as raised:
                hasty.generate("Once", max_tokens=3)
            self.assertEqual(raised.exception.reason, "QUEUE_FULL")
            self.assertGreater(raised.exception.retry_after, 0)
            hurried = Client(small.address, retries=0)
            self.addCleanup(hurried.close)
            self.assertEqual([error.reason for error in hurried.generate_batch(["Once"] * 3, max_tokens=3)], ["QUEUE_FULL"] * 3)
            leaving = threading.Timer(0.5, lambda: (running.close(), waiting.close()))
            leaving.start()
            self.assertEqual(client.generate("Once", max_tokens=3).finish_reason, "length")
            leaving.join()
            # the queue takes one at a time
            patient = client.generate_batch(["Once"] * 3, max_tokens=3)
            self.assertEqual([answer.finish_reason for answer in patient], ["length"] * 3)

    def test_a_server_that_comes_late_is_waited_for(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with Client(f"127.0.0.1:{port}", retries=20) as client:
            answers = []
            asking = threading.Thread(target=lambda: answers.append(client.generate("Once", max_tokens=3)))
            asking.start()
            with Daemon(TINY, listen=f"127.0.0.1:{port}"):
                asking.join(timeout=60)
            self.assertEqual([answer.finish_reason for answer in answers], ["length"])

    def test_this_machine_is_reached_without_a_proxy(self):
        nowhere = {name: "http://127.0.0.1:1" for name in ("http_proxy", "https_proxy", "grpc_proxy")}
        with unittest.mock.patch.dict(os.environ, nowhere), Client(self.daemon.address, retries=0) as client:
            self.assertEqual(client.generate("Once", max_tokens=3).finish_reason, "length")
        for address in ("127.0.0.1:5", "localhost:5", "unix:/run/x.sock", "ipv6:[::1]:5", "dns:///localhost:5", "[::1]:5"):
            self.assertTrue(is_on_this_machine(address), address)
        for address in ("10.0.0.1:5", "127.0.0.1.example.org:5", "localhost.example.org:5", "example.org:127", "dns:///example.org:5"):
            self.assertFalse(is_on_this_machine(address), address)

    def test_a_url_is_no_address(self):
        with self.assertRaisesRegex(ValueError, "http://127.0.0.1:5 is a URL; gRPC takes HOST:PORT"):
            Client("http://127.0.0.1:5")

    def test_usage_has_the_mean_of_the_heads_and_the_memory_of_the_full_cache(self):
        usage = self.client.generate(PROMPT, max_tokens=3, cache_policy="echo", cache_ratio=0.2, min_cache_tokens=1).usage
        self.assertLess(usage.kv_tokens_kept_mean, usage.kv_tokens_kept)
        self.assertAlmostEqual(usage.kv_tokens_kept_mean + usage.kv_tokens_evicted_mean, usage.kv_tokens_kept + usage.kv_tokens_evicted)
        self.assertLess(usage.kv_bytes, 0.6 * usage.kv_bytes_of_full)

    def test_a_model_without_a_template_for_tools_is_one_line(self):
        done = subprocess.run([sys.executable, EXAMPLES / "chat_tools.py", self.daemon.address], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\AThis model's template takes no such chat: .*\n\Z")

    def test_the_examples_run(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "tests" / "data" / "engine" / "tiny_mha", folder, dirs_exist_ok=True)
            pathlib.Path(folder, "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
            with Daemon(folder) as chatting:
                shown = self.run_example("chat_tools.py", chatting.address)
        # The template engine drops a newline after a block.
        self.assertIn("The prompt: tool get_weather\nuser: Is it raining in Paris?;\nassistant: get_weather(Paris);\n"
                      "tool: rain, 12 degrees;\nassistant:\n", shown)
        expected = {"stream.py": " + 40 tokens in ", "samples.py": "2 (seed 9, ", "policies.py": "\nauto ",
                    "contexts.py": "left: []", "conversation.py": "tokens were not read again]", "embed.py": "1.000  The whale",
                    "resume.py": "tokens, then nobody listened", "deadlines.py": "DEADLINE_EXCEEDED",
                    "many_at_once.py": "The old captain", "logprobs.py": ", rank ",
                    "batch.py": "INVALID: requests[3].sampling.top_p"}
        self.assertEqual(set(os.listdir(EXAMPLES)), {"chat_tools.py", "structured.py", *expected})
        if self.has_grammars():
            self.assertRegex(self.run_example("structured.py", self.daemon.address), r"^(yes|no)\n18[0-9]{2}\n\{")
        for name, words in expected.items():
            with self.subTest(name):
                self.assertIn(words, self.run_example(name, self.daemon.address))

    def has_grammars(self):
        """Not every build has the grammar library."""
        try:
            self.client.generate("Once", choice=["a"], max_tokens=1)
        except HydrantError as error:
            self.assertEqual(error.code, grpc.StatusCode.UNIMPLEMENTED)
            return False
        return True

    def run_example(self, name, address):
        done = subprocess.run([sys.executable, EXAMPLES / name, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


if __name__ == "__main__":
    unittest.main(verbosity=2)
