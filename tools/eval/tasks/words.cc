#include "tools/eval/tasks/words.h"

#include <fmt/format.h>

#include <algorithm>

namespace hydrant::eval {
namespace {

constexpr std::string_view kAdjectives[] = {
    "ancient", "bitter",  "brave",  "bright", "broken", "calm",   "clever", "cold",
    "crooked", "curious", "damp",   "dark",   "deep",   "dusty",  "eager",  "early",
    "empty",   "fancy",   "fierce", "frozen", "gentle", "golden", "grand",  "hidden",
    "hollow",  "humble",  "icy",    "jolly",  "late",   "lazy",   "lonely", "loud",
    "lucky",   "mellow",  "misty",  "modest", "narrow", "noble",  "odd",    "pale",
    "patient", "plain",   "polite", "proud",  "quick",  "quiet",  "rapid",  "rough",
    "royal",   "rusty",   "shy",    "silent", "simple", "sleepy", "smooth", "solid",
    "steady",  "sweet",   "swift",  "tidy",   "tired",  "vivid",  "warm",   "wild"};
constexpr std::string_view kNouns[] = {
    "anchor", "apple",  "badger",   "basket",  "beacon",  "bell",    "bridge",  "bucket",
    "button", "cabin",  "candle",   "canyon",  "castle",  "cello",   "cherry",  "cloud",
    "copper", "cradle", "dancer",   "desert",  "dragon",  "engine",  "falcon",  "feather",
    "fiddle", "forest", "fountain", "garden",  "glacier", "hammer",  "harbour", "helmet",
    "island", "jacket", "kettle",   "ladder",  "lantern", "lemon",   "maple",   "marble",
    "meadow", "mirror", "monkey",   "needle",  "ocean",   "orchard", "otter",   "paddle",
    "pebble", "pencil", "piano",    "pillow",  "planet",  "rabbit",  "ribbon",  "river",
    "saddle", "shadow", "summit",   "thunder", "tower",   "tunnel",  "violin",  "window"};
constexpr std::string_view kFirstNames[] = {
    "Ada",    "Arthur", "Bruno",  "Clara",  "Daniel", "Edith",  "Emil",  "Fiona",
    "Gregor", "Hannah", "Hugo",   "Ines",   "Jonas",  "Julia",  "Karl",  "Laura",
    "Lewis",  "Marta",  "Martin", "Nadia",  "Oscar",  "Paula",  "Peter", "Rosa",
    "Samuel", "Sofia",  "Thomas", "Ursula", "Victor", "Walter", "Wendy", "Yasmin"};
constexpr std::string_view kLastNames[] = {
    "Archer", "Baker",   "Bishop",   "Calder", "Carver",  "Cooper", "Dalton",  "Draper",
    "Ellis",  "Farmer",  "Fletcher", "Foster", "Gardner", "Hale",   "Harper",  "Holloway",
    "Keller", "Lambert", "Marlow",   "Mercer", "Norwood", "Parker", "Porter",  "Quill",
    "Ramsey", "Sawyer",  "Sheldon",  "Tanner", "Thorne",  "Turner", "Vickers", "Weaver"};
constexpr std::string_view kTowns[] = {
    "Lisbon",   "Oslo",    "Prague",  "Vienna",  "Dublin", "Geneva",  "Krakow",  "Naples",
    "Bergen",   "Bilbao",  "Cardiff", "Dresden", "Genoa",  "Ghent",   "Glasgow", "Granada",
    "Leeds",    "Lyon",    "Malaga",  "Odessa",  "Oxford", "Palermo", "Porto",   "Riga",
    "Salzburg", "Seville", "Split",   "Tallinn", "Turin",  "Utrecht", "Verona",  "Zurich"};
constexpr std::string_view kColours[] = {
    "red",   "blue", "green", "yellow", "purple",    "orange", "brown",   "white",
    "black", "pink", "grey",  "silver", "turquoise", "golden", "scarlet", "violet"};
constexpr std::string_view kObjects[] = {
    "a compass",   "a teapot",        "a telescope", "a violin",         "a hammer",
    "a mirror",    "a ladder",        "a lantern",   "a clock",          "an umbrella",
    "a necklace",  "a saddle",        "a flute",     "a kettle",         "a globe",
    "a chess set", "a camera",        "a drum",      "a sewing machine", "a typewriter",
    "a barometer", "a rocking chair", "a suitcase",  "a fishing rod"};
constexpr std::string_view kTrades[] = {"baker",    "carpenter", "dentist",    "gardener",
                                        "glazier",  "jeweller",  "librarian",  "locksmith",
                                        "musician", "painter",   "pharmacist", "plumber",
                                        "potter",   "sailor",    "surgeon",    "tailor"};

}  // namespace

std::span<const std::string_view> Adjectives() { return kAdjectives; }
std::span<const std::string_view> Nouns() { return kNouns; }
std::span<const std::string_view> FirstNames() { return kFirstNames; }
std::span<const std::string_view> LastNames() { return kLastNames; }
std::span<const std::string_view> Towns() { return kTowns; }
std::span<const std::string_view> Colours() { return kColours; }
std::span<const std::string_view> Objects() { return kObjects; }
std::span<const std::string_view> Trades() { return kTrades; }

Draw::Draw(std::span<const std::string_view> words, std::mt19937_64* rng)
    : words_(words.begin(), words.end()) {
  // std::shuffle differs between libraries; the cases must not.
  for (size_t i = words_.size(); i > 1; --i) std::swap(words_[i - 1], words_[(*rng)() % i]);
}

std::string Draw::Next() { return std::string(words_[next_++ % words_.size()]); }

std::string DrawNumber(std::mt19937_64* rng) { return std::to_string(10000 + (*rng)() % 90000); }

std::string DrawUuid(std::mt19937_64* rng) {
  const uint64_t high = (*rng)(), low = (*rng)();
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xFFFF,
                     high & 0xFFFF, low >> 48, low & 0xFFFFFFFFFFFF);
}

}  // namespace hydrant::eval
