"""Requests in protobuf's text format, encoded by protoc: no generated code is needed."""
import subprocess

from daemon import ROOT

GENERATE = "/hydrant.v1.Hydrant/Generate"


def encode(message, text):
    """Bytes of hydrant.v1.`message`."""
    return subprocess.run(["protoc", "-I", ROOT / "proto", f"--encode=hydrant.v1.{message}", "hydrant/v1/hydrant.proto"],
                          input=text.encode(), check=True, capture_output=True).stdout


def generate(text="", prompt="Call me Ishmael.", max_tokens=64, greedy=True):
    sampling = "sampling { temperature: 0 }" if greedy else ""
    return encode("GenerateRequest", f'text: "{prompt}" {sampling} stopping {{ max_tokens: {max_tokens} ignore_eos: true }} {text}')


# Typical requests of a client, by kind.
KINDS = {
    "samples": 'output {{}} sampling {{ n: 3 seed: {i} }} text: "The whale {i}" stopping {{ max_tokens: 24 }}',
    "eviction": 'text: "{long}" sampling {{ temperature: 0 }} cache {{ cache_policy: "h2o" cache_ratio: 0.3 min_cache_tokens: 16 }} '
                'stopping {{ max_tokens: 32 }}',
    "kept": 'text: "Chapter {i}. {long}" keep: true stopping {{ max_tokens: 8 }}',
    "schema": 'text: "{i}" stopping {{ max_tokens: 48 }} structured_output {{ json_schema: "{{\\"type\\":\\"object\\",\\"properties\\":'
              '{{\\"a\\":{{\\"type\\":\\"integer\\"}}}},\\"required\\":[\\"a\\"]}}" }}',
    "regex": 'text: "{i}" stopping {{ max_tokens: 24 }} structured_output {{ regex: "[a-z]{{3,8}}( [a-z]+){{1,2}}" }}',
    "logprobs": 'text: "It was {i}" sampling {{ logprobs: 5 prompt_logprobs: 3 }} stopping {{ max_tokens: 16 }}',
}
LONG = "It is a way I have of driving off the spleen and regulating the circulation. " * 4


def of_kind(kind, i):
    return encode("GenerateRequest", KINDS[kind].format(i=i, long=LONG))
