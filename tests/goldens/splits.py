#!/usr/bin/env python3
"""Makes tests/data/tokenizer/splits.json, gemma.model and gemma.pieces.json: splits of text by
Hugging Face `tokenizers` (Oniguruma) with the rules of every family, its character classes, and
encodings of vocabularies like Gemma's and Mistral's.

Run from the repository root; made with tokenizers 0.23.3 and sentencepiece 0.2.3. One hash stands for 100 lines.
tests/engine/text/tokenizer/split_rules_test.cc makes the same lines from the fragments.
"""
import io, json
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from split_rules import RULES, splitters
from tokenizer import FRAGMENTS, OUT, fnv, make_lines, training_text

BLOCK = 100
CASES = ["HTTPServer", "camelCase", "iPhone's", "DON'T", "we'Ve", "'LL", "'re'", "ÀÉÎ", "éÀ", "ǅ", "ʰ", "ªº", "ΑΒγ", "Ω", "Ⅷ", "ЖжЖ", "ա", "Ა", "ﬀ",
         "Ａｂ", "\U00010400\U00010428", "漢字かな", "カタカナ漢字", "，。", "！？", "‘’", "“", "中文English混排123", "ไทยคำ", "ไ\u0e48\u0e49", "हिन्दी", "العَرَبِيَّة", "٠١٢٣",
         "क्षि", "e\u0301\u0301", "\u0301", " \u0301a", "1234567890", "12", "x1y22z333", "²³", "!!!", " !!!\n\n", "//\n", "/\r\n/", "a/b/c\n", "$€+=<>", "^`~|",
         "#include <a>\n", "    \n\n", "\t\t", " \n \n", "\r", "\r\n\r\n", "  x", "\u00a0\u00a0", "\u2003x", "\u3000。", "🙂🙂", "👍🏽", "\u200d", "_a_b", "-x", "--", "...a"]
TURNS = ["<start_of_turn>", "<end_of_turn>", "<table>", "\n\n", "\n\n\n", "▁▁", "  ", "   ", "     ", "                                  x", "\t"]
CATEGORIES = ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "P", "S"]


def blocks(encode, lines):
    """One hash of the numbers of every 100 lines, each line preceded by its count of numbers."""
    hashes = []
    for begin in range(0, len(lines), BLOCK):
        numbers = []
        for line in lines[begin:begin + BLOCK]:
            one = encode(line)
            numbers += [len(one), *one]
        hashes.append(fnv(numbers))
    return hashes


def piece_lengths(name):
    level = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex="gpt2" in RULES[name].splits)]  # a character a byte
    pre_tokenizer, form = pre_tokenizers.Sequence(splitters(name) + level), normalizers.NFC()
    return lambda line: [len(piece) for piece, _ in pre_tokenizer.pre_tokenize_str(form.normalize_str(line) if RULES[name].nfc else line)]


def members(pattern):
    everything = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    return [ord(c) for c in normalizers.Replace(Regex(pattern), "").normalize_str(everything)]


def train_gemma():
    """Runs of spaces and line ends are user-defined symbols, and no space is added in front."""
    model = io.BytesIO()
    runs = ["▁" * n for n in range(2, 32)] + ["\n" * n for n in range(1, 5)] + ["\t", "<table>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(l.replace("\n", " ") for l in training_text() if "\x00" not in l), model_writer=model, model_type="bpe",
        vocab_size=800, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        add_dummy_prefix=False, user_defined_symbols=runs, bos_piece="<bos>", eos_piece="<eos>", character_coverage=0.9995, minloglevel=2)
    (OUT / "gemma.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    # As converters to GGUF write them: user-defined symbols with plain spaces, turn markers as
    # control tokens.
    kind = lambda i: (2 if processor.is_unknown(i) else 3 if processor.is_control(i) or "turn" in processor.id_to_piece(i)
                      else 6 if processor.is_byte(i) else 4 if processor.id_to_piece(i) in runs else 1)
    pieces = [[processor.id_to_piece(i).replace("▁", " ") if kind(i) == 4 else processor.id_to_piece(i), processor.get_score(i), kind(i)]
              for i in range(processor.get_piece_size())]
    (OUT / "gemma.pieces.json").write_text(json.dumps(pieces, ensure_ascii=False, separators=(",", ":")))
    return processor, runs


def gemma_json(processor, runs):
    """The merge form, as in Gemma's tokenizer.json."""
    size = processor.get_piece_size()
    vocab = {processor.id_to_piece(i): i for i in range(size)}
    merges = []
    for piece in vocab:
        if processor.is_byte(vocab[piece]) or vocab[piece] < 3: continue
        score = processor.get_score(vocab[piece])
        merges += [(score, len(piece[:k]), len(piece[k:]), piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
    merges = [(m[3], m[4]) for m in sorted(merges, key=lambda m: m[:3], reverse=True)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(run, normalized=False, special="turn" in run) for run in runs])
    return tokenizer


def mistral():
    """Llama 2's vocabulary of this folder with [INST] as a token, and a space only before the whole text."""
    tokenizer = Tokenizer.from_file(str(OUT / "llama2.tokenizer.json"))
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(["[INST]"])
    return tokenizer


def main():
    fragments = FRAGMENTS + CASES + TURNS + ["[INST]"] * 4
    lines = make_lines(fragments)
    processor, runs = train_gemma()
    tokenizer = gemma_json(processor, runs)
    differ = [line for line in lines if tokenizer.encode(line).ids != processor.encode(line)]
    print(f"gemma: tokenizers and sentencepiece differ in {len(differ)} lines, such as {differ[:2]}")
    tokenizer.save(str(OUT / "gemma.tokenizer.json"), pretty=False)
    instruct = mistral()
    golden = {"fragments": fragments, "block": BLOCK, "lines": fnv([ord(c) for line in lines for c in line]),
              "rules": {name: blocks(piece_lengths(name), lines) for name in RULES},
              "classes": {name: [len(found), fnv(found)] for name in CATEGORIES for found in [members(r"[^\p{%s}]+" % name)]},
              "gemma_library": blocks(processor.encode, lines), "gemma_json": blocks(lambda line: tokenizer.encode(line).ids, lines),
              "mistral": blocks(lambda line: instruct.encode(line).ids, lines)}
    (OUT / "splits.json").write_text(json.dumps(golden, separators=(",", ":")))


if __name__ == "__main__": main()
