// Regular languages of bytes by Brzozowski's derivatives (Journal of the ACM 11, 1964): the judge
// of masks, which shares nothing with what makes them. Slow, and for small expressions.
#ifndef HYDRANT_TESTS_ENGINE_GRAMMAR_BYTE_LANGUAGE_H_
#define HYDRANT_TESTS_ENGINE_GRAMMAR_BYTE_LANGUAGE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

struct ByteLanguage;
using Language = std::shared_ptr<const ByteLanguage>;  // nullptr: no text at all

struct ByteLanguage {
  enum class Kind { kEmptyText, kRange, kJoin, kEither, kStar };
  Kind kind;
  unsigned char low = 0, high = 0;  // kRange
  Language left, right;             // kJoin, kEither; kStar: left
  bool has_empty;                   // the empty text is of the language
};

inline Language EmptyText() {
  static const Language empty = std::make_shared<ByteLanguage>(
      ByteLanguage{ByteLanguage::Kind::kEmptyText, 0, 0, {}, {}, true});
  return empty;
}

inline Language Range(int low, int high) {
  return std::make_shared<ByteLanguage>(ByteLanguage{ByteLanguage::Kind::kRange,
                                                     static_cast<unsigned char>(low),
                                                     static_cast<unsigned char>(high),
                                                     {},
                                                     {},
                                                     false});
}

inline Language Join(const Language& left, const Language& right) {
  if (left == nullptr || right == nullptr) return nullptr;
  if (left->kind == ByteLanguage::Kind::kEmptyText) return right;
  if (right->kind == ByteLanguage::Kind::kEmptyText) return left;
  return std::make_shared<ByteLanguage>(ByteLanguage{ByteLanguage::Kind::kJoin, 0, 0, left, right,
                                                     left->has_empty && right->has_empty});
}

inline Language Either(const Language& left, const Language& right) {
  if (left == nullptr || left == right) return right;
  if (right == nullptr) return left;
  return std::make_shared<ByteLanguage>(ByteLanguage{ByteLanguage::Kind::kEither, 0, 0, left, right,
                                                     left->has_empty || right->has_empty});
}

inline Language Star(const Language& body) {
  if (body == nullptr || body->kind == ByteLanguage::Kind::kEmptyText) return EmptyText();
  return std::make_shared<ByteLanguage>(
      ByteLanguage{ByteLanguage::Kind::kStar, 0, 0, body, {}, true});
}

inline Language Literal(std::string_view text) {
  Language language = EmptyText();
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    language = Join(language, Range(byte, byte));
  }
  return language;
}

// least to most times; most -1: any number.
inline Language Repeat(const Language& body, int least, int most) {
  Language language = most < 0 ? Star(body) : EmptyText();
  for (int i = least; i < most; ++i) language = Either(EmptyText(), Join(body, language));
  for (int i = 0; i < least; ++i) language = Join(body, language);
  return language;
}

// What may follow `byte`; nullptr: nothing begins with it.
inline Language Derivative(const Language& language, unsigned char byte) {
  if (language == nullptr) return nullptr;
  switch (language->kind) {
    case ByteLanguage::Kind::kEmptyText:
      return nullptr;
    case ByteLanguage::Kind::kRange:
      return language->low <= byte && byte <= language->high ? EmptyText() : nullptr;
    case ByteLanguage::Kind::kJoin: {
      const Language first = Join(Derivative(language->left, byte), language->right);
      return language->left->has_empty ? Either(first, Derivative(language->right, byte)) : first;
    }
    case ByteLanguage::Kind::kEither:
      return Either(Derivative(language->left, byte), Derivative(language->right, byte));
    case ByteLanguage::Kind::kStar:
      break;
  }
  return Join(Derivative(language->left, byte), language);
}

inline Language Derivative(Language language, std::string_view text) {
  for (const char c : text) language = Derivative(language, static_cast<unsigned char>(c));
  return language;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_GRAMMAR_BYTE_LANGUAGE_H_
