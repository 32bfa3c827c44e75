#include "unit/gguf/mutants.h"

#include <algorithm>
#include <cstring>

#include "unit/gguf/refusal.h"

namespace kvant::engine {
namespace {

using Random64 = std::mt19937_64;

size_t Pick(Random64& random, size_t count) { return random() % count; }

// Mostly what stands in the header already, so that some mutants stay sound.
char AnyByte(Random64& random) {
  constexpr char kLikely[] = {0, 1, 2, 3, 4, 5, 6, 8, 9, ' ', 'a', 'A', '0', '.', '\x7F', '\xFF'};
  return random() % 2 == 0 ? kLikely[Pick(random, sizeof(kLikely))] : static_cast<char>(random());
}

void ChangeBytes(const MutantSource& source, Random64& random, Mutant& mutant) {
  const size_t count = 1 + Pick(random, 4);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = Pick(random, source.header_size);
    mutant.bytes[at] = AnyByte(random);
    mutant.what += " byte " + std::to_string(at) + " = " + std::to_string(static_cast<uint8_t>(mutant.bytes[at]));
  }
}

void FlipBit(const MutantSource& source, Random64& random, Mutant& mutant) {
  const size_t at = Pick(random, source.header_size);
  const size_t bit = Pick(random, 8);
  mutant.bytes[at] = static_cast<char>(mutant.bytes[at] ^ (1 << bit));
  mutant.what = "bit " + std::to_string(bit) + " of byte " + std::to_string(at);
}

void SetField(const MutantSource& source, Random64& random, Mutant& mutant) {
  const test::GgufImage::Field& field = source.fields[Pick(random, source.fields.size())];
  const uint64_t small = Pick(random, 300);
  const uint64_t value = random() % 2 == 0 ? small : kAwkwardValues[Pick(random, std::size(kAwkwardValues))];
  mutant.bytes = source.WithField(field, value);
  mutant.what = field.name + " = " + std::to_string(value);
}

void CutOrRepeat(const MutantSource& source, Random64& random, Mutant& mutant) {
  const size_t first = Pick(random, source.borders.size());
  const size_t last = std::min(first + 1 + Pick(random, 3), source.borders.size() - 1);
  const size_t at = source.borders[first];
  const size_t size = source.borders[last] - at;
  if (random() % 2 == 0) {
    mutant.bytes.erase(at, size);
  } else {
    mutant.bytes.insert(at, source.bytes.substr(at, size));
  }
  mutant.what = "bytes " + std::to_string(at) + " to " + std::to_string(at + size) + " cut or repeated";
}

void ExchangeFields(const MutantSource& source, Random64& random, Mutant& mutant) {
  const test::GgufImage::Field& left = source.fields[Pick(random, source.fields.size())];
  const test::GgufImage::Field& right = source.fields[Pick(random, source.fields.size())];
  const size_t size = std::min(left.size, right.size);
  std::memcpy(mutant.bytes.data() + left.offset, source.bytes.data() + right.offset, size);
  std::memcpy(mutant.bytes.data() + right.offset, source.bytes.data() + left.offset, size);
  mutant.what = left.name + " exchanged with " + right.name;
}

}  // namespace

MutantSource MutantSource::Make(const std::string& architecture) {
  MutantSource source;
  source.bytes = SmallImage(architecture).Bytes(&source.fields, &source.borders);
  source.header_size = source.borders.back();
  return source;
}

std::string MutantSource::WithField(const test::GgufImage::Field& field, uint64_t value) const {
  std::string changed = bytes;
  std::memcpy(changed.data() + field.offset, &value, field.size);
  return changed;
}

Mutant MutantSource::Random(uint64_t seed) const {
  Random64 random(seed);
  Mutant mutant{"", bytes};
  constexpr void (*kWays[])(const MutantSource&, Random64&, Mutant&) = {ChangeBytes, ChangeBytes, FlipBit,
                                                                        SetField,    CutOrRepeat, ExchangeFields};
  kWays[Pick(random, std::size(kWays))](*this, random, mutant);
  mutant.what = "seed " + std::to_string(seed) + ": " + mutant.what;
  return mutant;
}

}  // namespace kvant::engine
