#!/usr/bin/env python3
"""Measures generation of Hugging Face transformers on the workload of throughput_benchmark; prints JSON lines.

See scripts/gpu-check. A model of the same shape with random weights, requests of equal length with
random prompts, greedy, full cache, no end of text. Three ways to run them:

  static      generate() on one batch after the other; SDPA. Equal lengths suit it: no padding, no idle row
  compiled    the same with a static cache and torch.compile, which takes minutes at first use; not in the default
  continuous  continuous batching; with flash attention where it is installed, paged SDPA where not

Every way is warmed up first and, with --seconds, cut off: tokens until then count (continuous:
those of finished requests). Unavailable ways are printed as {"what": "skipped", ..., "reason":
...}.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pathlib
import random
import sys
import time

WHO = "transformers"


def report(what: str, **fields: object) -> None:
    print(json.dumps({"what": what, "who": WHO, **fields}), flush=True)


def skipped(name: str, reason: object) -> None:
    text = (str(reason).strip() or type(reason).__name__).splitlines()[0]
    report("skipped", name=name, reason=text)
    print(f"peer_transformers: {name}: skipped: {text}", file=sys.stderr)


try:
    import torch
    import transformers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
except ImportError as import_error:
    skipped("all", import_error)
    sys.exit(0)

Prompts = list[list[int]]


class Result:
    """Result and duration of a workload."""

    def __init__(self, tokens: int, finished: int, seconds: float) -> None:
        self.tokens, self.finished, self.seconds = tokens, finished, seconds


def make_model(args: argparse.Namespace) -> LlamaForCausalLM:
    shape = json.loads(pathlib.Path(args.shape).read_text())
    for name in ("architectures", "model_type", "torch_dtype", "dtype"):
        shape.pop(name, None)
    config = LlamaConfig(**{**shape, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0})
    config._attn_implementation = "sdpa"
    torch.manual_seed(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))
    with torch.device(args.device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def draw_prompts(args: argparse.Namespace, vocab: int) -> Prompts:
    rng = random.Random(args.seed)
    return [[rng.randrange(vocab) for _ in range(args.prompt_tokens)] for _ in range(args.requests)]


def run_static(model: LlamaForCausalLM, prompts: Prompts, args: argparse.Namespace, compiled: bool) -> Result:
    """One batch after the other."""

    def generate(batch: Prompts, new_tokens: int, seconds: float) -> int:
        config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0,
                                  max_time=seconds if seconds < float("inf") else None,
                                  cache_implementation="static" if compiled else None)
        ids = torch.tensor(batch, device=model.device)
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return output[:, ids.shape[1]:].cpu().shape[1]  # the copy waits for the device

    generate(prompts[:args.batch], args.new_tokens if compiled else min(args.new_tokens, 8), float("inf"))
    limit = args.seconds or float("inf")
    tokens = finished = 0
    start = time.perf_counter()
    while finished < len(prompts) and time.perf_counter() - start < limit:
        batch = prompts[finished:finished + args.batch]
        new = generate(batch, args.new_tokens, limit - (time.perf_counter() - start))
        tokens += new * len(batch)
        if new < args.new_tokens:
            break
        finished += len(batch)
    return Result(tokens, finished, time.perf_counter() - start)


def run_continuous(model: LlamaForCausalLM, prompts: Prompts, args: argparse.Namespace) -> Result:
    from transformers import ContinuousBatchingConfig

    # Random prompts share no prefix. The library chooses all sizes but the batch.
    wanted = {"allow_block_sharing": False, "max_requests_per_batch": args.batch}
    known = inspect.signature(ContinuousBatchingConfig).parameters
    batching = ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})
    config = GenerationConfig(max_new_tokens=args.new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    with model.continuous_batching_context_manager(generation_config=config, continuous_batching_config=batching,
                                                   block=True, timeout=30) as manager:
        def drain(batch: Prompts, new_tokens: int, seconds: float) -> Result:
            start = time.perf_counter()
            manager.add_requests(inputs=batch, max_new_tokens=new_tokens)
            tokens = finished = 0
            while finished < len(batch) and time.perf_counter() - start < seconds:
                output = manager.get_result(timeout=0.2)
                if output is None:
                    if not manager.is_running():
                        raise RuntimeError("the generation thread ended early")
                    continue
                if output.error:
                    raise RuntimeError(output.error)
                if output.is_finished():
                    finished += 1
                    tokens += len(output.generated_tokens)
            return Result(tokens, finished, time.perf_counter() - start)

        drain(prompts[:args.batch], min(args.new_tokens, 8), args.seconds or float("inf"))
        result = drain(prompts, args.new_tokens, args.seconds or float("inf"))
        if result.finished < len(prompts):
            manager.stop(block=True, timeout=30, hard_stop=True)
    return result


def measure(mode: str, model: LlamaForCausalLM, prompts: Prompts, args: argparse.Namespace) -> None:
    if mode == "continuous":
        result = run_continuous(model, prompts, args)
    else:
        result = run_static(model, prompts, args, compiled=mode == "compiled")
    if result.finished == len(prompts) and result.tokens != len(prompts) * args.new_tokens:
        raise RuntimeError(f"{result.tokens} tokens came, {len(prompts) * args.new_tokens} were asked for")
    if result.tokens == 0:
        raise RuntimeError(f"no request finished in {args.seconds:.0f} s")
    report("throughput", variant=f"{mode}, {model.config._attn_implementation}", model=pathlib.Path(args.shape).stem,
           batch=args.batch, requests=args.requests, finished=result.finished, prompt_tokens=args.prompt_tokens,
           new_tokens=args.new_tokens, tokens_per_s=result.tokens / result.seconds, seconds=result.seconds)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help="a Llama model's config.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--modes", default="static,continuous", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="most sequences at once")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=0, help="cut every mode off after so long; 0: to the end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few small requests, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.batch, args.requests, args.prompt_tokens, args.new_tokens = 2, 4, 24, 12
    return args


def main() -> None:
    args = parse_arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        return skipped("all", "PyTorch sees no CUDA device")
    transformers.logging.set_verbosity_error()
    torch.set_grad_enabled(False)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    report("device", program="peer_transformers",
           description=f"{name}, transformers {transformers.__version__}, PyTorch {torch.__version__}")
    model = make_model(args)
    prompts = draw_prompts(args, model.config.vocab_size)
    for mode in args.modes.split(","):
        try:
            torch.cuda.empty_cache()  # continuous batching sizes its cache by free memory
            measure(mode, model, prompts, args)
        except Exception as error:  # noqa: BLE001  a peer may fail in any way
            skipped(mode, error)


if __name__ == "__main__":
    main()
