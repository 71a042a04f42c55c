#!/usr/bin/env python3
"""The last hidden states of the tiny models in tests/data/engine, by transformers: the basis of
embeddings.

tests/data/engine/embeddings.json: {made_with, ids, models: {folder: {last, mean}}}
  last    of the last token, after the model's last norm
  mean    the mean over all tokens

  .venv/bin/pip install torch transformers safetensors
  .venv/bin/python tests/goldens/embeddings.py
"""

import json
import pathlib
import random

import torch
import transformers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "engine"
FOLDERS = ["tiny_gemma3", "tiny_granite", "tiny_mha", "tiny_neox", "tiny_olmo2", "tiny_opt", "tiny_qwen3"]


@torch.no_grad()
def main():
    rng = random.Random(9)
    ids = [rng.randrange(1, 250) for _ in range(130)]
    models = {}
    for folder in FOLDERS:
        model = transformers.AutoModel.from_pretrained(OUT / folder, dtype=torch.float32, attn_implementation="eager")
        hidden = model.eval()(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0].double()
        models[folder] = {"last": [float(f"{v:.7g}") for v in hidden[-1]],
                          "mean": [float(f"{v:.7g}") for v in hidden.mean(0)]}
    goldens = {"made_with": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
               "ids": ids, "models": models}
    (OUT / "embeddings.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")


main()
