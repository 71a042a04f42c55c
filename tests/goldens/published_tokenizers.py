#!/usr/bin/env python3
"""Published vocabularies, as tokenizer.json, as GGUF metadata and in their original form, with ids
from other programs.

    tests/goldens/published_tokenizers.py --sources DIR --out DIR [--texts DIR]
    HYDRANT_PUBLISHED_TOKENIZERS=OUT build/.../published_tokenizer_test

None of it is committed: the vocabularies have their own licences. --sources has any of:
    cl100k_base.tiktoken, o200k_base.tiktoken    github.com/zurawiki/tiktoken-rs, assets/
    llama3.tiktoken, llama4.tiktoken             github.com/meta-llama/llama-models, models/llama{3,4}/tokenizer.model
    tekken_*.json, *.model.v*                    mistral-common on PyPI, mistral_common/data/
    ggml-vocab-*.gguf with .inp and .out         github.com/ggml-org/llama.cpp, models/
    phi-3-mini.tokenizer.json, llama2...         github.com/microsoft/onnxruntime-extensions, test/data/*/tokenizer.json
The ids are tiktoken's where the vocabulary is, sentencepiece's for SPM, else those of Hugging Face `tokenizers`. Checked with
tiktoken 0.14, tokenizers 0.23, sentencepiece 0.2.3, gguf 0.19.
"""
import argparse, base64, json, pathlib, re, struct
import gguf, sentencepiece, tiktoken
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizer import FRAGMENTS, fnv, make_lines
from split_rules import BYTE_TO_CHAR, RULES, byte_level_pre_tokenizer

CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""

SPECIALS = ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<|im_start|>", "[INST]", "<end_of_turn>"]


class Collection:
    def __init__(self, out, lines):
        self.out, self.lines, self.index = out, lines, []
        (out / "lines.json").write_text(json.dumps(lines))

    def add(self, name, path, encode, special=False):
        """`path`: of the tokenizer, under out. `special`: special tokens in the text are parsed."""
        hashes = b"".join(struct.pack("<I", fnv(encode(line))) for line in self.lines)
        (self.out / f"{name}.hashes").write_bytes(hashes)
        self.index.append({"name": name, "path": str(path), "special": special})
        self.write_index()
        print(name)

    def write_index(self): (self.out / "index.json").write_text(json.dumps(self.index, indent=1))


def texts(folder):
    lines = make_lines(FRAGMENTS)[:5000]
    wiki = (folder / "wiki.test.raw").read_text().split("\n")
    lines += [line for line in wiki if len(line) > 20][:2500]
    lines += [json.loads(line)["turns"][0] if "turns" in line else line
              for line in (folder / "mt_bench.jsonl").read_text().splitlines()]
    code = [path.read_text() for path in sorted(pathlib.Path(".").glob("engine/**/*.cc"))]
    code += [path.read_text() for path in sorted(pathlib.Path("tools").glob("**/*.py"))]
    lines += [chunk for text in code for chunk in re.findall(r"(?s).{1,300}", text)]
    lines += [f"{left}{token}{right}" for token in SPECIALS for left in ("", " ", "x \n") for right in ("", "\n\n", " \n x", "x")]
    return lines + wiki[2500:2500 + max(0, 10000 - len(lines))]


def symbols(token): return "".join(BYTE_TO_CHAR[byte] for byte in token)


def split_by_rank(ranks, token):
    """The two parts that merge to a token: the result of byte-pair encoding with lower ranks only."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30)
                   if parts[i] + parts[i + 1] != token else 1 << 30)
        if ranks.get(parts[best] + parts[best + 1], 1 << 30) >= ranks[token]: return None
        parts[best:best + 2] = [parts[best] + parts[best + 1]]
    return tuple(parts)


def merges_of(ranks):
    pairs = [split_by_rank(ranks, token) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    return [(symbols(a), symbols(b)) for a, b in filter(None, pairs)]


def write_gguf(path, model, pre, tokens, types, merges=None, scores=None, **more):
    writer = gguf.GGUFWriter(path, more.pop("arch", "llama"))
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores: writer.add_token_scores(scores)
    if merges: writer.add_token_merges([" ".join(pair) for pair in merges])
    for name, value in more.items(): getattr(writer, "add_" + name)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def from_ranks(collection, name, ranks, pattern, pre, first_id=0):
    """A tiktoken vocabulary; its ids begin at `first_id`, after the special tokens."""
    peer = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    def encode(line): return [first_id + i for i in peer.encode(line, disallowed_special=())]
    folder = collection.out / name
    folder.mkdir(exist_ok=True)
    merges = merges_of(ranks)
    vocab = {symbols(token): rank + first_id for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=RULES[pre].ignore_merges))
    tokenizer.pre_tokenizer = byte_level_pre_tokenizer(pre)
    if RULES[pre].nfc: tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    differ = sum(tokenizer.encode(line).ids != encode(line) for line in collection.lines)
    print(f"{name}: tokenizers and tiktoken differ in {differ} lines")
    collection.add(name + "_json", folder / "tokenizer.json", lambda line: tokenizer.encode(line).ids)
    collection.add(name + "_ranks", folder / "tokenizer.json", encode)
    tokens = [f"<special_{i}>" for i in range(first_id)] + sorted(vocab, key=vocab.get)
    types = [gguf.TokenType.CONTROL] * first_id + [gguf.TokenType.NORMAL] * len(vocab)
    write_gguf(folder / "model.gguf", "gpt2", pre, tokens, types, merges, add_bos_token=False)
    collection.add(name + "_gguf", folder / "model.gguf", encode)


def read_tiktoken(path):
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def tiktoken_files(collection, sources):
    for name, pre, pattern in (("cl100k_base", "dbrx", CL100K), ("o200k_base", "gpt-4o", None),
                               ("llama3", "llama-bpe", None), ("llama4", "llama4", None)):
        path = sources / f"{name}.tiktoken"
        if path.exists():
            from_ranks(collection, name, read_tiktoken(path), pattern or RULES[pre].splits[0], pre)


def tekken_files(collection, sources):
    for path in sorted(sources.glob("tekken_*.json")):
        raw = json.loads(path.read_text())
        specials = raw["config"]["default_num_special_tokens"]
        vocab = raw["vocab"][:raw["config"]["default_vocab_size"] - specials]
        ranks = {base64.b64decode(entry["token_bytes"]): rank for rank, entry in enumerate(vocab)}
        from_ranks(collection, path.stem, ranks, raw["config"]["pattern"], "tekken", specials)


def as_hugging_face(processor):
    """Mistral's vocabularies with instruction tokens, as in their tokenizer.json: a space only
    before the whole text."""
    size = processor.get_piece_size()
    vocab = {processor.id_to_piece(i): i for i in range(size)}
    normal = [i for i in range(size) if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))]
    merges = []
    for i in sorted(normal, key=lambda i: (-processor.get_score(i), i)):
        piece = processor.id_to_piece(i)
        pairs = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges += sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    specials = [processor.id_to_piece(i) for i in range(size) if processor.is_control(i) or processor.is_unknown(i)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    return lambda line: tokenizer.encode(line).ids


def sentencepiece_files(collection, sources):
    for path in sorted(sources.glob("*.model.v*")):
        name = path.name.replace(".", "_")
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        folder = collection.out / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.model").write_bytes(path.read_bytes())
        instructions = processor.is_control(processor.piece_to_id("[INST]"))
        encode = as_hugging_face(processor) if instructions else processor.encode
        collection.add(name, folder / "tokenizer.model", encode, special=instructions)
        ids = range(processor.get_piece_size())
        kind = lambda i: (gguf.TokenType.UNKNOWN if processor.is_unknown(i) else gguf.TokenType.CONTROL
                          if processor.is_control(i) else gguf.TokenType.BYTE if processor.is_byte(i) else gguf.TokenType.NORMAL)
        write_gguf(folder / "model.gguf", "llama", "default", [processor.id_to_piece(i) for i in ids], [kind(i) for i in ids],
                   scores=[processor.get_score(i) for i in ids], bos_token_id=1, eos_token_id=2)
        collection.add(name + "_gguf", folder / "model.gguf", encode, special=instructions)


def hugging_face_files(collection, sources):
    for path in sorted(sources.glob("*.tokenizer.json")):
        name = path.name.split(".")[0]
        folder = collection.out / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_bytes(path.read_bytes())
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # some copies were damaged by git
            print(f"{name}: {error}")
            continue
        encode = lambda line: tokenizer.encode(line, add_special_tokens=False).ids
        collection.add(name, folder / "tokenizer.json", encode, special=True)
        converted = sources / f"ggml-vocab-{name.removesuffix('-mini')}.gguf"
        if converted.exists(): collection.add(name + "_gguf", converted.absolute(), encode, special=True)


def gguf_files(collection, sources):
    """GGUF vocabularies of llama.cpp: the same vocabulary through Hugging Face's components."""
    for path in sorted(sources.glob("ggml-vocab-*.gguf")):
        fields = gguf.GGUFReader(path).fields
        contents = lambda key: fields["tokenizer.ggml." + key].contents() if "tokenizer.ggml." + key in fields else None
        if contents("model") != "gpt2" or contents("pre") not in RULES: continue
        pre, tokens, types = contents("pre"), contents("tokens"), contents("token_type")
        tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)},
                                         [tuple(merge.split(" ")) for merge in contents("merges")],
                                         ignore_merges=RULES[pre].ignore_merges))
        tokenizer.pre_tokenizer = byte_level_pre_tokenizer(pre)
        if RULES[pre].nfc: tokenizer.normalizer = normalizers.NFC()
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in zip(tokens, types) if kind == 4])
        collection.add(path.stem, path.absolute(), lambda line: tokenizer.encode(line).ids)


def vectors(collection, sources):
    """Texts and ids beside the GGUF vocabularies, made by the families' own tokenizers."""
    for path in sorted(sources.glob("ggml-vocab-*.gguf")):
        if not path.with_suffix(".gguf.out").exists() or not path.with_suffix(".gguf.out").stat().st_size: continue
        fields = gguf.GGUFReader(path).fields
        if fields["tokenizer.ggml.model"].contents() == "gpt2" and fields["tokenizer.ggml.pre"].contents() not in RULES: continue
        inputs = path.with_suffix(".gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
        ids = [[int(i) for i in line.split()] for line in path.with_suffix(".gguf.out").read_text().splitlines()]
        name = path.stem + ".vectors"
        (collection.out / (name + ".json")).write_text(json.dumps(list(zip(inputs, ids))))
        collection.index.append({"name": name, "path": str(path.absolute())})
    collection.write_index()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sources", type=pathlib.Path, required=True)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    arguments.add_argument("--texts", type=pathlib.Path, default=pathlib.Path("../shared/data/text"))
    arguments = arguments.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    collection = Collection(arguments.out.absolute(), texts(arguments.texts))
    tiktoken_files(collection, arguments.sources)
    tekken_files(collection, arguments.sources)
    sentencepiece_files(collection, arguments.sources)
    hugging_face_files(collection, arguments.sources)
    gguf_files(collection, arguments.sources)
    vectors(collection, arguments.sources)


if __name__ == "__main__": main()
