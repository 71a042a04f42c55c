"""Pre-tokenizers of the tokenizer families, as in their published tokenizer.json.

The keys are the names of "tokenizer.ggml.pre" in GGUF files.
engine/text/tokenizer/gguf_pretokenizers.cc has the same rules in C++.
"""
import dataclasses
from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"

LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES
O200K = (f"{LEAD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)
TEKKEN = f"{LEAD}{UPPER}*{LOWER}+|{LEAD}{UPPER}+{LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES
HAN = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
DEEPSEEK_LLM_LETTERS = (
    r"\s?["
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}"
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}"
    r"\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}"
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}"
    r"\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}"
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}"
    r"\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}"
    r"\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}"
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}"
    r"\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}"
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
    r"]+")
DEEPSEEK_LLM_PUNCTUATION = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
CJK = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
DEEPSEEK_V3_WORDS = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                     r"| ?[\p{P}\p{S}]+[\r\n]*" + SPACES)


@dataclasses.dataclass
class Rule:
    splits: list  # expressions; "digits" and "gpt2" are separate components
    nfc: bool = False
    ignore_merges: bool = False


GPT2, DIGITS = Rule(["gpt2"]), Rule(["digits", "gpt2"])
RULES = {
    "gpt-2": GPT2, "phi-2": GPT2, "olmo": Rule(["gpt2"], nfc=True), "mpt": Rule(["gpt2"], nfc=True),
    "smollm": DIGITS, "starcoder": DIGITS, "refact": DIGITS, "command-r": Rule(["digits", "gpt2"], nfc=True),
    "llama-bpe": Rule([LLAMA3], ignore_merges=True), "smaug-bpe": Rule([LLAMA3], ignore_merges=True), "dbrx": Rule([LLAMA3]),
    "qwen2": Rule([QWEN2], nfc=True), "deepseek-r1-qwen": Rule([QWEN2], nfc=True), "stablelm2": Rule([QWEN2], nfc=True),
    "qwen35": Rule([QWEN35], nfc=True), "gpt-4o": Rule([O200K]), "llama4": Rule([O200K], ignore_merges=True),
    "tekken": Rule([TEKKEN], ignore_merges=True),
    "deepseek-llm": Rule([r"[\r\n]", DEEPSEEK_LLM_LETTERS, DEEPSEEK_LLM_PUNCTUATION, r"\s+$", HAN, "digits"]),
    "deepseek-coder": Rule([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, "digits"]),
    "deepseek-v3": Rule([r"\p{N}{1,3}", CJK, DEEPSEEK_V3_WORDS]),
}


def byte_alphabet():
    """GPT-2's characters for the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


BYTE_TO_CHAR = byte_alphabet()


def splitters(name):
    component = lambda split: (pre_tokenizers.Digits(individual_digits=True) if split == "digits"
                               else pre_tokenizers.Split(Regex(split), "isolated"))
    return [component(split) for split in RULES[name].splits if split != "gpt2"]


def byte_level_pre_tokenizer(name):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex="gpt2" in RULES[name].splits)
    return pre_tokenizers.Sequence([*splitters(name), level])
