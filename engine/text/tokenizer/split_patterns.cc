#include "engine/text/tokenizer/split_patterns.h"

namespace hydrant {

#define HYDRANT_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define HYDRANT_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define HYDRANT_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define HYDRANT_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern = HYDRANT_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" HYDRANT_SPACES;
const std::string_view kQwen2Pattern = HYDRANT_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" HYDRANT_SPACES;
const std::string_view kQwen35Pattern = HYDRANT_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" HYDRANT_SPACES;
const std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?)" HYDRANT_UPPER "*" HYDRANT_LOWER "+" HYDRANT_CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?)" HYDRANT_UPPER "+" HYDRANT_LOWER "*" HYDRANT_CONTRACTIONS
    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" HYDRANT_SPACES;
const std::string_view kTekkenPattern = R"([^\r\n\p{L}\p{N}]?)" HYDRANT_UPPER "*" HYDRANT_LOWER
                                        "+"
                                        R"(|[^\r\n\p{L}\p{N}]?)" HYDRANT_UPPER "+" HYDRANT_LOWER
                                        "*"
                                        R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" HYDRANT_SPACES;
const std::string_view kDigitPattern = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}])";

const std::string_view kLineEndPattern = R"([\r\n])";
const std::string_view kHanPattern = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
const std::string_view kFinalSpacePattern = R"(\s+$)";
// Letters of the scripts with capitals, in the Unicode version of that time.
const std::string_view kDeepSeekLlmLetters =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386})"
    R"(\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F})"
    R"(\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA})"
    R"(\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A})"
    R"(\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D})"
    R"(\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4})"
    R"(\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3})"
    R"(\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107})"
    R"(\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D})"
    R"(\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184})"
    R"(\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D})"
    R"(\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E})"
    R"(\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A})"
    R"(\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
const std::string_view kDeepSeekLlmPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
const std::string_view kDeepSeekCoderLetters = R"(\s?\p{L}+)";
const std::string_view kDeepSeekCoderPunctuation = R"(\s?\p{P}+)";
const std::string_view kDeepSeekV3Digits = R"(\p{N}{1,3})";
const std::string_view kDeepSeekV3Cjk = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
const std::string_view kDeepSeekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*)" HYDRANT_SPACES;

#undef HYDRANT_SPACES
#undef HYDRANT_LOWER
#undef HYDRANT_UPPER
#undef HYDRANT_CONTRACTIONS

}  // namespace hydrant
