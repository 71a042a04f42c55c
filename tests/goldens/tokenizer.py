#!/usr/bin/env python3
"""Makes tests/data/tokenizer: small tokenizers and Hugging Face's results with them.

Needs tokenizers, transformers, jinja2, sentencepiece and (for the model's file) gguf from PyPI.
Run from the repository root:  tests/goldens/tokenizer.py [--data DIR] [--smollm2 FILE.gguf]
Ids are committed as one 32-bit FNV-1a hash a line; the 10,000 lines are made by the recipe of make_lines(), which
tests/engine/text/tokenizer/golden_lines.cc repeats.
"""
import argparse, io, json, pathlib, shutil, struct, tempfile
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path("tests/data/tokenizer")
NUM_LINES, SEED = 10000, 20240607
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST

FRAGMENTS = [
    "the", " the", " page", " cache", "The", " attention", "We'll", "I'VE", "can't", "it's", "'ſ", "'S", " don't", "'re",
    " for (int i = 0; i < n; ++i) {", "\n", "\r\n", "\n\n", "\t", "    return x;", "def f(x):", " != ", "->", "::", "};",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", " <s>", "http://a.b/c?d=e&f=1", "e-mail@host.org",
    "été", " naïve", "Größe", "straße", " Ελλάδα", " привет", " мир", "你好", "世界", "今日は", "カタカナ", "안녕", "สวัสดี", "नमस्ते",
    "שלום", "مرحبا", "👍", "👨‍👩‍👧", "🏳️‍🌈", " 🙂", "🇫🇷", "e\u0301", "a\u0323\u0302", "a\u0302\u0323", "ﬁ", "½", "²", "Ⅷ", "٣٤", "①",
    "\u00a0", "\u3000", "\u2028", "\u200b", "\u180e", "\ufeff", "\u0085", "\u0000", "\u0004", "\u001b[0m", "\u007f", "\ufffd", "   ", " ", "  ",
    "▁", "_", "__init__", "1234567", "3.14", " 2024", "!!!", "...", "—", "“q”", "#", "\\n", "\U0001e030", "\U000323af", "\U00010d40", "\U00011de1", "\U000e0041",
]
WORDS = ("one page holds the entries of one head of one layer and the pool hands out ids while the model reads a prompt of "
         "many tokens then writes an answer word by word until it is done return value if not found else print list "
         "Größe été naïve привет мир 世界 你好 今日 カタカナ 안녕 123 45 6 2024 3.14 I'll we've don't can't it's").split()


class Random:  # splitmix64
    def __init__(self, seed): self.state = seed
    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return (z ^ (z >> 31)) % n


RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x900, 0x97F),
          (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF),
          (0x20, 0xD7FF), (0x10000, 0x10FFFF)]


def make_lines(fragments):
    random, lines = Random(SEED), []
    for _ in range(NUM_LINES):
        line = ""
        for _ in range(1 + random.below(12)):
            kind = random.below(8)
            if kind < 5:
                line += fragments[random.below(len(fragments))]
            elif kind == 5:
                low, high = RANGES[random.below(len(RANGES))]
                for _ in range(1 + random.below(6)): line += chr(low + random.below(high - low + 1))
            elif kind == 6:
                for _ in range(1 + random.below(9)): line += chr(48 + random.below(10))
            else:
                line += " " * (1 + random.below(5))
        lines.append(line)
    return lines


def fnv(ids):
    h = 0x811C9DC5
    for byte in struct.pack(f"<{len(ids)}I", *ids): h = ((h ^ byte) * 0x01000193) % 2**32
    return h


def write_hashes(name, encode, lines):
    (OUT / f"{name}.hashes").write_bytes(b"".join(struct.pack("<I", fnv(encode(line))) for line in lines))


def write_decodes(name, tokenizer, size, seed):
    random, out = Random(seed), []
    for _ in range(200):
        ids = [random.below(size) for _ in range(1 + random.below(12))]
        out.append([ids, tokenizer.decode(ids, skip_special_tokens=True), tokenizer.decode(ids, skip_special_tokens=False)])
    (OUT / f"{name}.decodes.json").write_text(json.dumps(out, separators=(",", ":")))


def training_text():
    random, lines = Random(7), []
    for _ in range(3000): lines.append(" ".join(WORDS[random.below(len(WORDS))] for _ in range(12)))
    return lines + [f * 3 for f in FRAGMENTS if "<" not in f]


def byte_level(split):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    if split is None: return level
    return pre_tokenizers.Sequence([split, level])


def train_tiny(name):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    split = {"gpt2": None, "smollm": pre_tokenizers.Digits(individual_digits=True),
             "neox": None, "llama3": pre_tokenizers.Split(Regex(LLAMA3), "isolated"), "qwen2": pre_tokenizers.Split(Regex(QWEN2), "isolated")}[name]
    tokenizer.pre_tokenizer = byte_level(split) if name != "smollm" else pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name in ("qwen2", "neox"): tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = [] if name == "smollm" else pre_tokenizers.ByteLevel.alphabet()  # SmolLM2 lacks some bytes, too
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    if name == "llama3":
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])])
    if name == "gpt2":  # every rule of added tokens
        tokenizer.add_tokens([AddedToken("👍", lstrip=True, rstrip=True), AddedToken("the", single_word=True),
                              AddedToken("  ", normalized=True), AddedToken("été", normalized=True)])
    if name == "neox":  # runs of spaces, longest first, as GPT-NeoX has them
        tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    tokenizer.save(str(OUT / f"{name}.tokenizer.json"), pretty=False)
    return tokenizer


# tokenizer_config.json of OPT's folders.
OPT_CONFIG = {"add_bos_token": True, "add_prefix_space": False, "eos_token": "</s>",
              "bos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True,
                            "rstrip": False, "single_word": False},
              "pad_token": "<pad>", "unk_token": "</s>", "tokenizer_class": "GPT2Tokenizer"}


def opt_goldens(name, folder, lines):
    """vocab.json and merges.txt, by transformers. The only intended difference: BOS is not doubled."""
    from transformers import GPT2Tokenizer
    tokenizer = GPT2Tokenizer.from_pretrained(folder)
    def encode(line):
        ids = tokenizer(line)["input_ids"]
        return ids[1:] if ids[:2] == [2, 2] else ids
    write_hashes(name, encode, lines)


def train_opt():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    folder = OUT / "opt"
    folder.mkdir(exist_ok=True)
    tokenizer.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(OPT_CONFIG, indent=1) + "\n")
    return folder


def published_opt(source, lines):
    with tempfile.TemporaryDirectory() as folder:
        for file in ("vocab.json", "merges.txt"): shutil.copy(source / file, folder)
        (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(OPT_CONFIG))
        opt_goldens("data_opt", folder, lines)


def unigram_goldens(lines):
    """A model that only the library encodes: unigram, normalised by NFKC, user-defined symbols."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(l for l in training_text() if "\x00" not in l), model_writer=model, model_type="unigram",
        vocab_size=450, byte_fallback=True, normalization_rule_name="nmt_nfkc", user_defined_symbols=["<sep>", "👍"],
        control_symbols=["<ctl>"], character_coverage=0.9995, minloglevel=2)
    (OUT / "unigram.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    write_hashes("unigram", lambda l: processor.encode(l), lines)
    decodes = [{"ids": ids, "text": processor.decode(ids)} for ids in map(processor.encode, lines[::100])]
    (OUT / "unigram.texts.json").write_text(json.dumps(decodes, separators=(",", ":")))


def llama2_style(processor):
    """The merge form of the SentencePiece model, as in Llama 2's tokenizer.json."""
    size = processor.get_piece_size()
    vocab = {processor.id_to_piece(i): i for i in range(size)}
    merges = []
    for piece, score in sorted(((processor.id_to_piece(i), processor.get_score(i)) for i in range(3 + 256, size)), key=lambda p: -p[1]):
        pairs = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges += sorted(pairs, key=lambda p: (vocab[p[0]], vocab[p[1]]))
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.save(str(OUT / "llama2.tokenizer.json"), pretty=False)
    return tokenizer


def sentencepiece_goldens(lines):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(l for l in training_text() if "\x00" not in l), model_writer=model, model_type="bpe", vocab_size=800,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        character_coverage=0.9995, minloglevel=2)
    (OUT / "spm.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    write_hashes("spm", lambda l: processor.encode(l), lines)  # "<s>" is plain text to the library
    pieces = [[processor.id_to_piece(i), processor.get_score(i),
               3 if processor.is_control(i) else 2 if processor.is_unknown(i) else 6 if processor.is_byte(i) else 1]
              for i in range(processor.get_piece_size())]
    (OUT / "spm.pieces.json").write_text(json.dumps(pieces, separators=(",", ":")))
    tokenizer = llama2_style(processor)
    write_hashes("llama2", lambda l: tokenizer.encode(l).ids, lines)


def templates():
    from transformers.utils.chat_template_utils import render_jinja_template
    cases = []
    talk = [{"role": "user", "content": " Hi é\n"}, {"role": "assistant", "content": "Hello. "}, {"role": "user", "content": "\u3000Why?"}]
    system = [{"role": "system", "content": "Be brief."}]
    for path in sorted((OUT / "templates").glob("*.jinja")):
        source = path.read_text()
        for messages in (talk[:1], talk, system + talk, system + talk[:1], talk[:2], talk[:1] + system, talk[1:], talk[:1] * 2):
            for prompt in (True, False):
                try:
                    text = render_jinja_template([messages], chat_template=source, add_generation_prompt=prompt,
                                                 bos_token="<s>", eos_token="</s>")[0][0]
                except Exception as error:
                    text = None
                cases.append({"template": path.name, "messages": messages, "prompt": prompt, "text": text})
    (OUT / "chat_goldens.json").write_text(json.dumps(cases, separators=(",", ":")))


def from_smollm2(path):
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens, kinds = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    return tokenizer


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--data", default="../shared/data")
    arguments.add_argument("--smollm2", default=".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    arguments = arguments.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "fragments.json").write_text(json.dumps(FRAGMENTS))
    lines = make_lines(FRAGMENTS)
    (OUT / "lines.check").write_text(str(fnv([ord(c) for line in lines for c in line])) + "\n")
    for name in ("gpt2", "llama3", "qwen2", "smollm", "neox"):
        tokenizer = train_tiny(name)
        encode = lambda l: tokenizer.encode(l).ids
        if name == "llama3":  # the one wanted difference: BOS is not doubled
            encode = lambda l: (lambda ids: ids[1:] if ids[:2] == [0, 0] else ids)(tokenizer.encode(l).ids)
        write_hashes(name, encode, lines)
        write_decodes(name, tokenizer, tokenizer.get_vocab_size(), 11)
    opt_goldens("opt", train_opt(), lines)
    sentencepiece_goldens(lines)
    unigram_goldens(lines)
    templates()
    data = pathlib.Path(arguments.data) / "tokenizers"
    for name in ("gpt2", "qwen2_5", "gpt_neox_20b"):
        if (data / name / "tokenizer.json").exists():
            tokenizer = Tokenizer.from_file(str(data / name / "tokenizer.json"))
            write_hashes("data_" + name, lambda l: tokenizer.encode(l).ids, lines)
    if (data / "opt" / "vocab.json").exists(): published_opt(data / "opt", lines)
    if pathlib.Path(arguments.smollm2).exists():
        tokenizer = from_smollm2(arguments.smollm2)
        write_hashes("smollm2_model", lambda l: tokenizer.encode(l).ids, lines)


if __name__ == "__main__": main()
