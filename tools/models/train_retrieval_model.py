#!/usr/bin/env python3
"""Trains models/hydrant-retrieval.gguf, the small model for hydrant-eval's retrieval tasks.

It is trained for look-ups and little else: a Llama-architecture model of 1.1 million parameters (4
layers, hidden 128, 8 query and 4 KV heads of 32, byte-level BPE of 1,024 tokens with every digit
its own, tied embeddings), stored as BF16.
Its rows are built as tools/eval/tasks.cc builds its cases, piece by piece through the tokenizer,
with many answers a row: several questions at the end instead of one, lists repeated in another
order, and at first plain copies. Rows grow once the lines of the present length are answered.
Training begins with an induction head initialised by hand (Llama.plant): with it numbers in a text
are found after two hundred steps; earlier runs without it, which also had another RoPE base, found
hardly any after a thousand.

Source and licence: trained from random weights, but for that head, on the templates of tools/eval/tasks.cc hidden in the
text of Herman Melville's "Moby-Dick" (1851), which is in the public domain; the text is an argument and is not in the
repository. The weights are this project's own (Apache-2.0).

  python3 -m venv .venv && .venv/bin/pip install torch transformers tokenizers gguf numpy
  .venv/bin/python tools/models/train_retrieval_model.py moby_dick.txt models/hydrant-retrieval.gguf

Everything is seeded; the same versions on the same machine give the same file (floating-point sums differ between
machines). It takes about half an hour on one core with AMX and --compile. A stopped run resumes
from --checkpoint, as the published weights' run did: its stages are those below.
"""

import argparse
import json
import math
import pathlib
import re
import time

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F

from train_tiny_model import END_OF_TEXT, interleave_rope, read_paragraphs

VOCAB, CONTEXT = 1024, 2304  # twice the longest row: `reconstruct` reads a context twice
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 4, 128, 8, 4, 32, 384
EPSILON, ROPE_BASE = 1e-5, 1e6  # half of a head's pairs rotate little within a thousand tokens
SHORT = 400  # rows up to this length compute attention explicitly
BACK = [1, 2, 3, 4, 7, 9]  # tokens that the planted heads of the first layer look back

# The words of tools/eval/tasks.cc.
FIRST = ["brave", "quiet", "green", "proud", "swift", "tired", "happy", "odd"]
SECOND = ["otter", "maple", "stone", "cloud", "tiger", "lemon", "piano", "wheel"]
PLACES = ["lighthouse", "harbour", "museum", "station"]
NAMES = ["ALPHA", "BRAVO", "DELTA", "GAMMA"]
GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
SECRET = ("\n The secret number of the {name} is {value}. \n",
          "\n\n Question: What is the secret number of the {name}?\n Answer: The secret number of the {name} is")
LINE = ("line {name}: REGISTER_CONTENT is <{value}>\n",
        "\nQuestion: What is the REGISTER_CONTENT in line {name}?\nAnswer: The REGISTER_CONTENT in line {name} is <")
PASS_KEY = (" The pass key is {value}. Remember it. {value} is the pass key.\n",
            "\nWhat is the pass key? The pass key is")
VALUES = ("\n A secret number of the lighthouse is {value}. \n",
          "\n\n Question: What are the three secret numbers of the lighthouse?\n Answer: The three secret numbers of "
          "the lighthouse are")
VARIABLE = ("\n VAR {name} = {value}. \n",
            "\n\n Question: What is the value of VAR {name}?\n Answer: The value of VAR {name} is")

# Tokens per row, rows per step, minimum steps, maximum steps; shares: of rows that are copies, of
# lists of lines that are repeated, of those named by any words, of those with names of few words,
# so that both words are needed. The next stage begins when the lines are answered; the last one
# mixes in rows of the two before it.
STAGES = [(192, 10, 1400, 1400, 0.3, 0.5, 0.25, 0.0), (192, 10, 400, 400, 0.1, 0.2, 0.25, 0.0),
          (192, 10, 600, 600, 0.0, 0.2, 0.25, 0.7), (192, 10, 200, 4000, 0.0, 0.1, 0.05, 0.5),
          (320, 7, 200, 3000, 0.0, 0.1, 0.05, 0.3), (576, 5, 200, 1500, 0.0, 0.1, 0.05, 0.0),
          (1152, 4, 800, 800, 0.0, 0.1, 0.05, 0.0)]
ANSWERED = 0.9


def train_tokenizer(paragraphs):
    """Every word of the templates becomes one token, every digit stays alone (tokenizer.ggml.pre "smollm")."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[END_OF_TEXT], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    names = {LINE: [f"{a}-{b}" for a in FIRST for b in SECOND], SECRET: PLACES, VARIABLE: NAMES,
             PASS_KEY: [""], VALUES: [""], (GRASS,): [""]}
    facts = [t.format(name=name, value=1) for templates in names for name in names[templates] for t in templates]
    tokenizer.train_from_iterator(["\n\n".join(paragraphs)] + facts * 400, trainer)
    assert tokenizer.get_vocab_size() == VOCAB, "the text is too short for the vocabulary"
    return tokenizer


class Rows:
    """Rows of tokens with their training targets: answers, and the kind of each."""

    def __init__(self, tokenizer, text, paragraphs, seed):
        self.tokenizer, self.rng = tokenizer, np.random.default_rng(seed)
        self.pieces = {}
        self.digits = [self.encode(str(d))[0] for d in range(10)]
        # As lines of a file, and with one paragraph per line.
        self.books = [np.array(tokenizer.encode(t).ids) for t in (text, "\n\n".join(paragraphs))]
        words = sorted({t for t in tokenizer.get_vocab() if re.fullmatch("Ġ[a-z]{4,}", t)})
        self.words = [t[1:] for t in words]
        names = [f" {a}-{b}" for a, b in zip(FIRST, SECOND)] + [f" {name}" for name in PLACES + NAMES + self.words]
        self.named = sorted({token for name in names for token in self.encode(name)} | set(self.digits))

    def encode(self, piece):
        if piece not in self.pieces:
            self.pieces[piece] = self.tokenizer.encode(piece).ids
        return self.pieces[piece]

    def number(self):
        return [self.digits[int(d)] for d in str(self.rng.integers(10000, 100000))]

    def fact(self, template, name, value):
        """A sentence's tokens; those of the value are inserted, as each digit is a token."""
        first, *rest = template.format(name=name, value="\0").split("\0")
        row = list(self.encode(first))
        for piece in rest:
            row += value + self.encode(piece)
        return row

    def haystack(self, length):
        """A piece of the book; sometimes with other numbers, with other tokens, or shuffled."""
        book = self.books[self.rng.integers(2)]
        start = self.rng.integers(0, len(book) - length)
        hay = book[start:start + length].copy()
        kind = self.rng.random()
        if kind < 0.3:
            for _ in range(1 + length // 60):
                at, size = self.rng.integers(0, max(1, length - 4)), self.rng.integers(1, 5)
                hay[at:at + size] = self.rng.choice(self.digits, len(hay[at:at + size]))
        elif kind < 0.5:
            others = self.rng.random(length) < 0.3
            hay[others] = self.rng.integers(1, VOCAB, others.sum())
        elif kind < 0.6:
            self.rng.shuffle(hay)
        return hay.tolist()

    def hide(self, haystack, facts):
        room = max(0, len(haystack) - sum(map(len, facts)))
        row, used = [], 0
        for until, fact in zip(np.sort(self.rng.integers(0, room + 1, len(facts))), facts):
            row += haystack[used:until] + fact
            used = until
        return row + haystack[used:room]

    def names(self, count, any_words, crossed):
        """Lines as in tools/eval/tasks.cc, or with any words."""
        first, second = FIRST, SECOND
        if self.rng.random() < any_words:
            first, second = (list(self.rng.choice(self.words, 8, replace=False)) for _ in range(2))
        if crossed > 0 and self.rng.random() < crossed:
            first, second = (list(self.rng.permutation(words)[:self.rng.integers(2, 5)]) for words in (first, second))
        chosen = self.rng.permutation(len(first) * len(second))[:count]
        return [f"{first[c // len(second)]}-{second[c % len(second)]}" for c in chosen]

    def lines(self, length, repeat, any_words, crossed):
        """Ends with questions, or with the same lines repeated, each time in another order."""
        share = self.rng.uniform(0.1, 0.6)
        ask = max(1, int(length * share) // 40)
        room = length * share if repeat else length - 44 * ask
        row, known = [], []
        for name in self.names(64, any_words, crossed):
            value = self.number()
            line = self.fact(LINE[0], name, value)
            if len(row) + len(line) > room and len(known) >= 2:
                break
            known.append((name, value))
            row += line
        before, after = LINE[0 if repeat else 1], self.encode(">\n")
        answers = []
        while len(row) < length:
            self.rng.shuffle(known)
            for name, value in known if repeat else known[:ask]:
                row += self.encode(before.format(name=name, value="\0").split("\0")[0])
                answers.append(len(row))
                row += value + after
        return row, answers

    def secrets(self, length):
        """needle and multikey: the four places, sometimes with any other words; some are asked for."""
        count = max(1, min(int(self.rng.choice([1, 2, 4, 4, 6, 8, 12])), length // 60))
        names = list(self.rng.permutation(PLACES))
        if count > len(names) or self.rng.random() < 0.4:
            names = list(self.rng.permutation(names + list(self.rng.choice(self.words, 12, replace=False))))
        if count == 1:
            names = ["lighthouse"]
        known = [(name, self.number()) for name in names[:count]]
        ask = max(1, min(length // 96, 6))
        row = self.hide(self.haystack(length - 52 * ask), [self.fact(SECRET[0], *fact) for fact in known])
        self.rng.shuffle(known)
        answers = []
        for name, value in (known * ask)[:ask]:
            row += self.encode(SECRET[1].format(name=name) + " ")
            answers.append(len(row))
            row += value + self.encode(". \n")
        return row, answers

    def one_question(self, length):
        """passkey, multivalue or variables."""
        kind = self.rng.integers(3)
        values = [self.number()]
        if kind == 0:
            question = PASS_KEY[1]
            filler = (self.encode(GRASS) * (length // 20))[:length - 40]
            row = self.hide(filler, [self.fact(PASS_KEY[0], "", values[0])])
        elif kind == 1:
            question = VALUES[1]
            values += [self.number(), self.number()]
            row = self.hide(self.haystack(length - 70), [self.fact(VALUES[0], "", value) for value in values])
        else:
            names = NAMES if self.rng.random() < 0.7 else list(self.rng.permutation(NAMES))
            question = VARIABLE[1].format(name=names[self.rng.choice([3, 3, 3, 2, 1])])
            facts = [self.fact(VARIABLE[0], names[0], values[0])]
            facts += [self.encode(VARIABLE[0].format(name=b, value=f"VAR {a}")) for a, b in zip(names, names[1:])]
            row = self.hide(self.haystack(length - 50), facts)
        row = row + self.encode(question)
        answers = []
        for value in values:
            row += self.encode(" ")
            answers.append(len(row))
            row += value
        return row + self.encode(".\n"), answers

    def copies(self, length):
        """Random tokens, of few or many kinds, repeated: the basis of look-ups."""
        alphabet = self.rng.choice(self.named, int(self.rng.choice([8, 16, 40, len(self.named)])), replace=False)
        piece = self.rng.choice(alphabet, self.rng.integers(6, length // 2)).tolist()
        return (piece * length)[:length + 1], len(piece) + 1

    def batch(self, rows, length, copied, repeated, any_words, crossed):
        """tokens [rows, length + 1]; start of the copy in each row; each answer's row, first
        digit's place, kind."""
        tokens = np.zeros((rows, length + 1), np.int64)
        copied_from = np.full(rows, length + 1)
        answers = []
        for r in range(rows):
            draw = self.rng.random()
            if r < round(rows * copied):
                tokens[r], copied_from[r] = self.copies(length)
                continue
            if draw < 0.6:
                kind = int(self.rng.random() < repeated)
                row, places = self.lines(length, kind == 1, any_words, crossed)
            elif draw < 0.86:
                kind, (row, places) = 2, self.secrets(length)
            else:
                kind, (row, places) = 3, self.one_question(length)
            row = row[:length + 1]
            tokens[r, :len(row)] = row
            answers += [(r, p, kind) for p in places if p + 6 <= len(row)]
        return torch.from_numpy(tokens), torch.from_numpy(copied_from), torch.tensor(answers)


KINDS = ["lines", "repeated", "secrets", "others"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        group = HEADS // KV_HEADS

        def heads(y, count):
            return y.view(rows, length, count, HEAD_DIM).transpose(1, 2)

        def turn(y):
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat((-b, a), -1) * sin

        q, k = turn(heads(self.q_proj(x), HEADS)), turn(heads(self.k_proj(x), KV_HEADS))
        v = heads(self.v_proj(x), KV_HEADS)
        if length > SHORT:
            k, v = (y.repeat_interleave(group, 1) for y in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))
        # Explicit: for short rows the fused backward pass takes most of a step's time on a CPU.
        q = q.reshape(rows, KV_HEADS, group * length, HEAD_DIM)
        scores = (q @ k.transpose(2, 3)).view(rows, KV_HEADS, group, length, length) * HEAD_DIM ** -0.5
        unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.float().masked_fill(unseen, -1e9).softmax(-1).to(v.dtype)
        y = weights.view(rows, KV_HEADS, group * length, length) @ v
        return self.o_proj(y.view(rows, HEADS, length, HEAD_DIM).transpose(1, 2).reshape(rows, length, -1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.gate_proj, self.up_proj = (nn.Linear(HIDDEN, FEED_FORWARD, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)
        self.input_norm, self.feed_norm = (nn.RMSNorm(HIDDEN, EPSILON) for _ in range(2))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_norm(x), cos, sin)
        y = self.feed_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPSILON)
        angles = torch.arange(CONTEXT)[:, None] * ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.006 if "o_proj" in name or "down_proj" in name else 0.03)
        self.plant()

    @torch.no_grad()
    def plant(self):
        """Initialises induction heads (arXiv 2209.11895), which take longest to learn. The heads of
        the first layer look BACK tokens back, the distance from a line's number to its name: a
        constant in all embeddings, rotated by RoPE, is largest if the query was rotated back by
        as many positions. The first head passes the token it sees on in a subspace of its own,
        where the first head of the second layer compares it with the present token, and predicts
        the token it finds."""
        constant, looking, comparing, passing = 0.2, 1.5, 2.5, 0.1
        half = HEAD_DIM // 2
        spaces = torch.linalg.qr(torch.randn(HIDDEN - 1, 3 * HEAD_DIM))[0].T.reshape(3, HEAD_DIM, HIDDEN - 1)
        token, before, told = F.pad(spaces, (1, 0))
        self.embedding.weight[:, 0] = constant
        frequencies = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        quick = (torch.arange(half) < 5).float()
        first, second = self.layers[0].attention, self.layers[1].attention
        for head, back in enumerate(BACK):
            query = first.q_proj.weight[head * HEAD_DIM:][:HEAD_DIM].zero_()
            turn = back * frequencies
            query[:half, 0], query[half:, 0] = looking * quick * turn.cos(), -looking * quick * turn.sin()
        for head in range(len(BACK) * KV_HEADS // HEADS):
            first.k_proj.weight[head * HEAD_DIM:][:HEAD_DIM].zero_()[:half, 0] = looking * quick
        first.v_proj.weight[:HEAD_DIM] = token
        first.o_proj.weight[:, :HEAD_DIM] = passing * before.T
        steady = 1 - quick.repeat(2)[:, None]
        second.q_proj.weight[:HEAD_DIM] = comparing * steady * token
        second.k_proj.weight[:HEAD_DIM] = comparing * steady * before
        second.v_proj.weight[:HEAD_DIM] = told
        second.o_proj.weight[:, :HEAD_DIM] = passing * told.T

    def forward(self, tokens):
        x = self.embedding(tokens)
        cos, sin = (t[:tokens.shape[1]].to(torch.bfloat16) for t in (self.cos, self.sin))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embedding.weight)


def learning_rate(step, decay_from, steps, peak):
    if step < 100:
        return peak * (step + 1) / 100
    done = max(0.0, (step - decay_from) / max(1, steps - decay_from))
    return peak * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))


def loss_and_accuracy(model, tokens, copied_from, answers, of_text):
    """Answers and copies have weight one, text `of_text`. Also returns, for each digit of an
    answer, whether it is right."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    targets = tokens[:, 1:]
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    digits = answers[:, 1, None] - 1 + torch.arange(5)
    rows = answers[:, :1].expand(-1, 5)
    right = logits.detach()[rows, digits].argmax(-1) == targets[rows, digits]
    copy = torch.arange(targets.shape[1]) >= copied_from[:, None] - 1
    text = (targets != 0) & (copied_from[:, None] > targets.shape[1])
    of = [(losses * chosen).sum() / chosen.sum().clamp(min=1) for chosen in (copy, text)]
    return losses[rows, digits].mean() + of[0] + of_text * of[1], right, [x.item() for x in of]


class Run:
    """The contents of a checkpoint."""

    def __init__(self, rows, args):
        self.rows, self.args = rows, args
        self.model = Llama()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.peak, betas=(0.9, 0.98), weight_decay=0.01,
                                           fused=True)
        self.forward = torch.compile(self.model, dynamic=False) if args.compile else self.model
        self.step, self.stage, self.stage_from = 0, 0, 0
        self.first, self.whole = np.zeros(len(KINDS)), np.zeros(len(KINDS))  # running means: first digit, all digits
        self.seconds = 0.0

    def save(self, path):
        state = {k: getattr(self, k) for k in ("step", "stage", "stage_from", "first", "whole", "seconds")}
        torch.save({"run": state, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "rng": self.rows.rng.bit_generator.state}, path)

    def load(self, path):
        state = torch.load(path, weights_only=False)
        for key, value in state["run"].items():
            setattr(self, key, value)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rows.rng.bit_generator.state = state["rng"]

    def note(self, answers, right):
        for kind in answers[:, 2].unique().tolist():
            of_kind = right[answers[:, 2] == kind].float()
            self.first[kind] += 0.03 * (of_kind[:, 0].mean().item() - self.first[kind])
            self.whole[kind] += 0.03 * (of_kind.prod(1).mean().item() - self.whole[kind])

    def go(self):
        while self.stage < len(STAGES):
            began = time.time()
            length, count, least, most, *shares = STAGES[self.stage]
            done = self.step - self.stage_from
            if (done >= least and self.whole[0] > ANSWERED) or done >= most:
                if done >= most or self.stage + 1 < len(STAGES):
                    self.stage, self.stage_from = self.stage + 1, self.step
                    continue
            is_last = self.stage + 1 == len(STAGES)
            if is_last and self.rows.rng.random() < 0.4:  # to not forget the shorter ones
                length, count = STAGES[-1 - self.rows.rng.integers(1, 3)][:2]
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.step, self.stage_from if is_last else self.step + 1,
                                            self.stage_from + most if is_last else self.step + 2, self.args.peak)
            tokens, copied_from, answers = self.rows.batch(count, length, *shares)
            loss, right, others = loss_and_accuracy(self.forward, tokens, copied_from, answers, self.args.of_text)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.note(answers, right)
            self.step += 1
            self.seconds += time.time() - began
            if self.step % 25 == 0:
                means = "  ".join(f"{k} {a:.2f}/{b:.2f}" for k, a, b in zip(KINDS, self.first, self.whole))
                others = "/".join(f"{x:.2f}" for x in others)
                print(f"step {self.step:5d} length {length:4d} loss {loss.item():.3f} copies, text {others}  {means}  "
                      f"{self.seconds:.0f} s", flush=True)
            if self.args.checkpoint and self.step % 200 == 0:
                self.save(self.args.checkpoint)
        return self.model


def write_gguf(model, tokenizer, path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("hydrant-retrieval")
    writer.add_description("A 1.1M-parameter Llama trained from scratch to look things up")
    writer.add_license("apache-2.0")
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)

    parsed = json.loads(tokenizer.to_str())
    vocab = sorted(parsed["model"]["vocab"].items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([gguf.TokenType.CONTROL if token == END_OF_TEXT else gguf.TokenType.NORMAL
                            for token, _ in vocab])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in parsed["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)

    def add(name, tensor, heads=None):
        data = tensor.detach().float().numpy()
        if heads:
            data = interleave_rope(data, heads)
        data = np.ascontiguousarray(data)
        if data.ndim == 1:
            writer.add_tensor(name, data)
            return
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    add("token_embd.weight", model.embedding.weight)
    for i, layer in enumerate(model.layers):
        attention = layer.attention
        add(f"blk.{i}.attn_norm.weight", layer.input_norm.weight)
        add(f"blk.{i}.attn_q.weight", attention.q_proj.weight, HEADS)
        add(f"blk.{i}.attn_k.weight", attention.k_proj.weight, KV_HEADS)
        add(f"blk.{i}.attn_v.weight", attention.v_proj.weight)
        add(f"blk.{i}.attn_output.weight", attention.o_proj.weight)
        add(f"blk.{i}.ffn_norm.weight", layer.feed_norm.weight)
        add(f"blk.{i}.ffn_gate.weight", layer.gate_proj.weight)
        add(f"blk.{i}.ffn_up.weight", layer.up_proj.weight)
        add(f"blk.{i}.ffn_down.weight", layer.down_proj.weight)
    add("output_norm.weight", model.norm.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description="Trains the small model that looks things up.")
    parser.add_argument("text", help="plain text of a public-domain book, UTF-8")
    parser.add_argument("out", help="the GGUF file to write")
    parser.add_argument("--seed", type=int, default=1851)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--compile", action="store_true", help="twice as fast where a C++ compiler is at hand")
    parser.add_argument("--of-text", type=float, default=0.1, help="weight of all that is no answer")
    parser.add_argument("--checkpoint", help="kept here every 200 steps; where there is one, it is gone on from")
    parser.add_argument("--export", action="store_true", help="write the checkpoint as it is")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    paragraphs = read_paragraphs(args.text)
    tokenizer = train_tokenizer(paragraphs)
    rows = Rows(tokenizer, pathlib.Path(args.text).read_text(encoding="utf-8"), paragraphs, args.seed)
    run = Run(rows, args)
    if args.checkpoint and pathlib.Path(args.checkpoint).exists():
        run.load(args.checkpoint)
    print(f"{sum(p.numel() for p in run.model.parameters()) / 1e6:.2f} M parameters", flush=True)
    if not args.export:
        run.go()
    write_gguf(run.model, tokenizer, args.out)
    print(f"wrote {args.out}: {pathlib.Path(args.out).stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
