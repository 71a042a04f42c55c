#!/usr/bin/env python3
"""Makes tests/data/engine/smollm2_*.json: fp32 results of transformers with the demonstration
model.

The GGUF is loaded with gguf_file=, so its weights are the dequantised ones. Three files, chosen by name:

  greedy      20 prompts, plain text and chat: prompt ids, 128 greedy tokens (end-of-text is not obeyed), and the two
              highest logits of each step, so that a step with a small margin can be told from a mistake
  logits      12 rows of logits: the 50 highest and 200 others, with their ids
  perplexity  negative log-likelihood (natural log) of the first 16 x 2,048 tokens of a text, one number a window.
              Every window starts from an empty cache, there is no BOS; nll_all sums the 2,047 tokens that have a
              predecessor in the window, nll_second_half those at positions 1,024..2,047. The text (wiki.test.raw of
              WikiText-2, CC BY-SA) is an argument and is not in the repository: its checksum is, and that of the ids
              (as little-endian uint32).

  .venv/bin/pip install torch transformers accelerate gguf numpy
  .venv/bin/python tests/goldens/smollm2.py greedy logits
  .venv/bin/python tests/goldens/smollm2.py perplexity --text wiki.test.raw
"""

import argparse
import hashlib
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "data" / "engine"
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
STEPS = 128
WINDOW, WINDOWS = 2048, 16

TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village between two rivers, there lived",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "The first ten prime numbers are 2, 3, 5, 7,",
    "A hydrant is a valve on a water main to which firefighters connect their hoses. In cold countries the valve sits"
    " below the depth of frost, and the barrel above it is drained after each use so that",
    "In 1854 the physician John Snow marked the deaths from cholera on a map of Soho and found that they clustered"
    " around the pump in Broad Street. He persuaded the parish to",
    "Water boils at 100 degrees Celsius at sea level. On a mountain of 3,000 metres it boils at about 90 degrees,"
    " because",
    "Ingredients: 500 g flour, 10 g salt, 7 g dry yeast, 320 ml warm water.\n\nMethod:\n1.",
    "Die Hauptstadt von Deutschland ist Berlin, und die Hauptstadt von Österreich ist",
    "The three laws of thermodynamics can be put in plain words. The first says that energy is neither made nor"
    " destroyed. The second says that",
]
CHATS = [
    [("user", "What is the capital of France?")],
    [("user", "Name three animals that live in the sea.")],
    [("user", "Write one sentence about the moon.")],
    [("user", "What is 17 plus 25?")],
    [("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")],
    [("user", "Translate to French: Good morning, my friend.")],
    [("user", "Explain to a child of six what a bridge is for.")],
    [("user", "My name is Ada."), ("assistant", "Hello Ada, how can I help you today?"),
     ("user", "What is my name?")],
    [("system", "You are a careful editor."),
     ("user", "Correct the spelling: The quik brown fox jumpd over the lasy dog.")],
    [("user", "Summarise in one sentence: Cast iron pipes were laid under the streets of the town in 1820. Wooden"
              " plugs were driven into the mains at intervals, and firemen drew a plug to fill a pit with water."
              " Later the plugs gave way to valves with a cap and a standpipe, the first hydrants in today's sense.")],
]


def load(path):
    kwargs = dict(gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **kwargs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **kwargs)
    # The file's pre-tokenizer is "smollm": single digits, then GPT-2's expression.
    assert len(tokenizer.encode("1234567", add_special_tokens=False)) == 7, "digits are not split"
    return model.eval(), tokenizer


def prompts(tokenizer):
    for i, text in enumerate(TEXTS):
        yield {"name": f"text_{i}", "text": text}, tokenizer.encode(text, add_special_tokens=False)
    for i, chat in enumerate(CHATS):
        messages = [{"role": role, "content": content} for role, content in chat]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        yield ({"name": f"chat_{i}", "messages": messages, "text": text},
               tokenizer.encode(text, add_special_tokens=False))


def numbers(values):
    return [float(f"{v:.7g}") for v in values]


@torch.no_grad()
def make_greedy(model, tokenizer):
    out = []
    for entry, ids in prompts(tokenizer):
        cache, feed, outputs, second, top1, top2 = None, ids, [], [], [], []
        for _ in range(STEPS):
            result = model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            best = torch.topk(result.logits[0, -1], 2)
            outputs.append(int(best.indices[0]))
            second.append(int(best.indices[1]))
            top1.append(best.values[0].item())
            top2.append(best.values[1].item())
            feed = [outputs[-1]]
        out.append({**entry, "prompt_ids": ids, "output_ids": outputs, "second_ids": second,
                    "top1": numbers(top1), "top2": numbers(top2), "output_text": tokenizer.decode(outputs)})
        margin = min(a - b for a, b in zip(top1, top2))
        print(f"{entry['name']}: {len(ids)} tokens, least margin {margin:.5f}: "
              f"{out[-1]['output_text'][:80]!r}", flush=True)
    return {"prompts": out}


@torch.no_grad()
def make_logits(model, tokenizer):
    """The last position of twelve prompts of different length; the longest joins several of the
    texts."""
    all_prompts = [(e["name"], ids) for e, ids in prompts(tokenizer)]
    chosen = [all_prompts[i] for i in (0, 1, 3, 4, 5, 8, 10, 13, 14, 17, 19)]
    chosen.append(("long", tokenizer.encode("\n\n".join(TEXTS), add_special_tokens=False)))
    generator = np.random.default_rng(135)
    rows = []
    for name, ids in chosen:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]
        best = torch.topk(logits, 50).indices.tolist()
        rest = np.setdiff1d(np.arange(logits.numel()), best)
        picked = best + sorted(generator.choice(rest, 200, replace=False).tolist())
        rows.append({"name": name, "prompt_ids": ids, "ids": picked, "logits": numbers(logits[picked].tolist()),
                     "log_sum_exp": float(f"{torch.logsumexp(logits.double(), 0).item():.9g}")})
    return {"rows": rows}


@torch.no_grad()
def make_perplexity(model, tokenizer, text_path):
    raw = pathlib.Path(text_path).read_bytes()
    ids = tokenizer.encode(raw.decode("utf-8"), add_special_tokens=False)[:WINDOW * WINDOWS]
    assert len(ids) == WINDOW * WINDOWS, "the text is too short"
    windows = []
    for w in range(WINDOWS):
        part = torch.tensor(ids[w * WINDOW:(w + 1) * WINDOW])
        hidden = model.model(input_ids=part[None], use_cache=False).last_hidden_state[0]
        losses = torch.cat([
            torch.nn.functional.cross_entropy(model.lm_head(hidden[b:min(b + 256, WINDOW - 1)]).double(),
                                              part[b + 1:min(b + 256, WINDOW - 1) + 1], reduction="none")
            for b in range(0, WINDOW - 1, 256)])
        assert losses.numel() == WINDOW - 1
        windows.append({"nll_all": losses.sum().item(), "nll_second_half": losses[WINDOW // 2 - 1:].sum().item()})
        print(f"window {w}: perplexity {np.exp(windows[-1]['nll_all'] / (WINDOW - 1)):.3f}", flush=True)
    total = sum(w["nll_all"] for w in windows)
    return {"text_sha256": hashlib.sha256(raw).hexdigest(),
            "ids_sha256": hashlib.sha256(np.asarray(ids, "<u4").tobytes()).hexdigest(),
            "window": WINDOW, "windows": windows, "tokens_scored": WINDOWS * (WINDOW - 1),
            "tokens_scored_second_half": WINDOWS * (WINDOW // 2),
            "nll_all": total, "perplexity_all": float(np.exp(total / (WINDOWS * (WINDOW - 1)))),
            "perplexity_second_half": float(np.exp(sum(w["nll_second_half"] for w in windows)
                                                   / (WINDOWS * (WINDOW // 2))))}


def main():
    parser = argparse.ArgumentParser(description="Makes the golden files of the demonstration model.")
    parser.add_argument("what", nargs="+", choices=["greedy", "logits", "perplexity"])
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--text", help="for perplexity: wiki.test.raw")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if "perplexity" in args.what and not args.text:
        sys.exit("perplexity needs --text")
    torch.set_num_threads(args.threads)
    head = {"model": {"file": args.model.name, "sha256": hashlib.sha256(args.model.read_bytes()).hexdigest()},
            "made_with": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
                          "dtype": "float32"}}
    model, tokenizer = load(args.model)
    for what in args.what:
        body = (make_perplexity(model, tokenizer, args.text) if what == "perplexity" else
                {"greedy": make_greedy, "logits": make_logits}[what](model, tokenizer))
        (OUT / f"smollm2_{what}.json").write_text(
            json.dumps({**head, **body}, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
