// Regular languages of bytes by Brzozowski's derivatives (Journal of the ACM 11, 1964): a reference
// for masks, independent of their implementation. For small expressions, and one thread.
#ifndef HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_BYTE_LANGUAGE_H_
#define HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_BYTE_LANGUAGE_H_

#include <deque>
#include <map>
#include <string_view>
#include <tuple>

namespace hydrant {

struct ByteLanguage;
using Language = const ByteLanguage*;  // never freed; nullptr: the empty language

struct ByteLanguage {
  enum Kind { kEmptyText, kRange, kJoin, kEither, kStar };
  Kind kind;
  unsigned char low, high;  // kRange
  Language left, right;     // kJoin, kEither; kStar: left
  bool has_empty;           // contains the empty text
};

// Equal expressions are one object, which keeps the number of derivatives small (the paper's
// theorem 5.2).
inline Language Intern(const ByteLanguage& language) {
  using Key = std::tuple<int, int, int, Language, Language>;
  static std::deque<ByteLanguage> all;
  static std::map<Key, Language> known;
  const auto [entry, is_new] = known.try_emplace(
      Key(language.kind, language.low, language.high, language.left, language.right));
  if (is_new) entry->second = &all.emplace_back(language);
  return entry->second;
}

inline Language EmptyText() {
  return Intern({ByteLanguage::kEmptyText, 0, 0, nullptr, nullptr, true});
}

inline Language Range(int low, int high) {
  return Intern({ByteLanguage::kRange, static_cast<unsigned char>(low),
                 static_cast<unsigned char>(high), nullptr, nullptr, false});
}

inline Language Join(Language left, Language right) {
  if (left == nullptr || right == nullptr) return nullptr;
  if (left->kind == ByteLanguage::kEmptyText) return right;
  if (right->kind == ByteLanguage::kEmptyText) return left;
  return Intern({ByteLanguage::kJoin, 0, 0, left, right, left->has_empty && right->has_empty});
}

// A right-nested list, ordered by address, without duplicates.
inline Language Either(Language left, Language right) {
  if (left == nullptr || left == right) return right;
  if (right == nullptr) return left;
  if (left->kind == ByteLanguage::kEither) return Either(left->left, Either(left->right, right));
  const bool is_list = right->kind == ByteLanguage::kEither;
  const Language first = is_list ? right->left : right;
  if (left == first) return right;
  if (first < left) return Either(first, is_list ? Either(left, right->right) : left);
  return Intern({ByteLanguage::kEither, 0, 0, left, right, left->has_empty || right->has_empty});
}

inline Language Star(Language body) {
  if (body == nullptr || body->kind == ByteLanguage::kEmptyText) return EmptyText();
  return Intern({ByteLanguage::kStar, 0, 0, body, nullptr, true});
}

inline Language Literal(std::string_view text) {
  Language language = EmptyText();
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    language = Join(language, Range(byte, byte));
  }
  return language;
}

// least to most repetitions; most -1: unbounded.
inline Language Repeat(Language body, int least, int most) {
  Language language = most < 0 ? Star(body) : EmptyText();
  for (int i = least; i < most; ++i) language = Either(EmptyText(), Join(body, language));
  for (int i = 0; i < least; ++i) language = Join(body, language);
  return language;
}

inline Language Derivative(Language language, unsigned char byte);

inline Language NewDerivative(const ByteLanguage& language, unsigned char byte) {
  switch (language.kind) {
    case ByteLanguage::kEmptyText:
      return nullptr;
    case ByteLanguage::kRange:
      return language.low <= byte && byte <= language.high ? EmptyText() : nullptr;
    case ByteLanguage::kJoin: {
      const Language first = Join(Derivative(language.left, byte), language.right);
      return language.left->has_empty ? Either(first, Derivative(language.right, byte)) : first;
    }
    case ByteLanguage::kEither:
      return Either(Derivative(language.left, byte), Derivative(language.right, byte));
    case ByteLanguage::kStar:
      break;
  }
  return Join(Derivative(language.left, byte), &language);
}

// The texts after `byte`; nullptr: none begins with it.
inline Language Derivative(Language language, unsigned char byte) {
  static std::map<std::pair<Language, unsigned char>, Language> known;
  if (language == nullptr) return nullptr;
  if (const auto found = known.find({language, byte}); found != known.end()) return found->second;
  const Language derivative = NewDerivative(*language, byte);
  known.emplace(std::pair(language, byte), derivative);
  return derivative;
}

inline Language Derivative(Language language, std::string_view text) {
  for (const char c : text) language = Derivative(language, static_cast<unsigned char>(c));
  return language;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_BYTE_LANGUAGE_H_
