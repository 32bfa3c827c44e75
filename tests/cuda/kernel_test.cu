// Everything the GPU kernels compute, against references on the host. Runs alone, without a build tree.
//   kvant_cuda_test [--brief] [text]     cases with the text in their names; in brief the first one of every kernel and
//                                        mix of formats, for compute-sanitizer's racecheck
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>

#include "decode_runner.h"
#include "pack_cases.h"

namespace kvant::cuda_test {
namespace {

constexpr double kTolerance = 3e-3;
int g_failures = 0;
int g_cases = 0;
double g_worst = 0;
std::set<int> g_kernels;  // of decode

void Report(const std::string& name, double error, bool intact, bool repeatable) {
  ++g_cases;
  const bool ok = error <= kTolerance && intact && repeatable;
  g_worst = std::max(g_worst, std::isfinite(error) ? error : 1e9);
  if (!ok) ++g_failures;
  std::printf("%s %-64s max error %.2e of the largest output%s%s\n", ok ? "ok  " : "FAIL", name.c_str(), error,
              intact ? "" : ", canary overwritten", repeatable ? "" : ", second launch differs");
}

double ErrorOf(const std::vector<float>& got, const std::vector<float>& expected) {
  double largest = 0;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - expected[i]));
  }
  return worst / largest;
}

// Which kernel, over which formats, with a window or without.
std::string KindOf(const AttentionCase& c, int kernel) {
  std::set<int> formats;
  bool windowed = false;
  for (const DecodeSegment& segment : c.segments) {
    formats.insert(static_cast<int>(segment.format));
    windowed = windowed || segment.first_visible != 0;
  }
  std::string kind = "decode " + std::to_string(kernel) + (windowed ? " windowed" : "");
  for (const int format : formats) kind += " " + std::to_string(format);
  return kind;
}

uint64_t TokensOf(const CaseSpec& spec) {
  uint64_t tokens = 0;
  for (const auto& sequence : spec.sequences) {
    for (const SegmentSpec& segment : sequence) tokens += segment.num_tokens;
  }
  return tokens;
}

void CheckCase(CaseFilter& filter, const CaseSpec& spec) {
  constexpr uint64_t kLeastInBrief = 97;  // several warps and blocks
  constexpr uint64_t kMostInBrief = 3000;
  const uint64_t tokens = TokensOf(spec);
  if (!filter.Wants(spec.name) || (filter.brief() && (tokens < kLeastInBrief || tokens > kMostInBrief))) return;
  const AttentionCase c = MakeCase(spec);
  DecodeRunner runner(c);
  if (!filter.IsNew(KindOf(c, runner.kernel_id()))) return;
  g_kernels.insert(runner.kernel_id());
  const std::vector<float> first = runner.Run();
  const std::vector<float> second = runner.Run();
  // Parts merge in slot order, so a launch repeats bit for bit.
  const bool repeatable = std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0;
  Report(spec.name, ErrorOf(first, c.expected), runner.CanariesIntact(), repeatable);
}

std::string Name(const char* what, uint32_t d, uint32_t gqa, uint32_t tokens) {
  return std::string(what) + " d=" + std::to_string(d) + " gqa=" + std::to_string(gqa) + " n=" + std::to_string(tokens);
}

constexpr uint32_t kLengths[] = {1, 31, 97, 127, 129, 8191};
constexpr DecodeFormat kTokenFormats[] = {DecodeFormat::kFp16, DecodeFormat::kInt8, DecodeFormat::kInt4,
                                          DecodeFormat::kInt4Affine, DecodeFormat::kBf16};
constexpr const char* kFormatNames[] = {"fp16", "int8", "int4", "int4-affine", "pair", "bf16"};

void TokenTiers(CaseFilter& filter) {
  for (const uint32_t d : {64U, 128U, 256U}) {
    for (const DecodeFormat format : kTokenFormats) {
      const char* name = kFormatNames[static_cast<size_t>(format)];
      for (const uint32_t n : kLengths) {
        if (d != 128 && n == 8191) continue;
        CaseSpec spec{Name(name, d, 8, n), {d, 2, 8}, {{{format, n, 0}}}};
        CheckCase(filter, spec);
      }
      CaseSpec equalized{Name(name, d, 4, 300) + " equalized", {d, 2, 4}, {{{format, 300, 0}}, {{format, 41, 0}}}};
      equalized.equalized = format != DecodeFormat::kFp16 && format != DecodeFormat::kBf16;
      CheckCase(filter, equalized);
    }
  }
}

void QueryGroups(CaseFilter& filter) {
  for (const uint32_t gqa : {1U, 2U, 3U, 5U, 7U, 9U, 12U, 16U}) {
    for (const uint32_t d : {64U, 128U, 256U}) {
      if (d != 128 && gqa != 3 && gqa != 16) continue;
      CheckCase(filter, {Name("int8", d, gqa, 777), {d, 3, gqa}, {{{DecodeFormat::kInt8, 777, 0}}}});
      CheckCase(filter, {Name("bf16", d, gqa, 130), {d, 3, gqa}, {{{DecodeFormat::kBf16, 130, 0}}}});
      CaseSpec pair{Name("pair", d, gqa, 1024 + 33),
                    {d, 3, gqa},
                    {{{DecodeFormat::kFp16, 33, 0}, {DecodeFormat::kPair, 1024, 0}}}};
      pair.maps = {HalfThreeOne(d, 3)};
      CheckCase(filter, pair);
    }
  }
}

void Tiered(CaseFilter& filter) {
  for (const uint32_t d : {64U, 128U, 256U}) {
    CaseSpec spec{Name("fp16+int8+int4+affine in one launch", d, 8, 900), {d, 2, 8}, {}};
    for (uint32_t s = 0; s < 3; ++s) {
      spec.sequences.push_back({{DecodeFormat::kFp16, 4 + s, 0},
                                {DecodeFormat::kInt8, 300 + 17 * s, 0},
                                {DecodeFormat::kInt4, 200 + s, 0},
                                {DecodeFormat::kInt4Affine, 333, 0},
                                {DecodeFormat::kFp16, 1 + 60 * s, 0}});
    }
    spec.equalized = true;
    CheckCase(filter, spec);
  }
}

// The sequence as PN-Mix holds it: sinks and residual at fp16, whole pages between.
std::vector<SegmentSpec> PnMix(uint32_t tokens) {
  const uint32_t sinks = std::min(tokens, 32U);
  const uint32_t pages = (tokens - sinks) / 128 * 128;
  std::vector<SegmentSpec> segments = {{DecodeFormat::kFp16, tokens - pages, 0}};
  if (pages > 0) segments.push_back({DecodeFormat::kPair, pages, 0});
  return segments;
}

void PairPages(CaseFilter& filter) {
  for (const uint32_t d : {64U, 128U, 256U}) {
    struct Kind {
      const char* name;
      codec::WidthMap map;
      uint32_t value_bits;
    };
    codec::WidthMap four_one = HalfThreeOne(d, 4);
    for (uint8_t& w : four_one.widths) w = w == 3 ? 4 : 1;
    const std::vector<Kind> kinds = {{"pnmix 3/1 v2", HalfThreeOne(d, 1), 2},
                                     {"pnmix 3/1 v4", HalfThreeOne(d, 2), 4},
                                     {"pnmix 4/1 v2", four_one, 2},
                                     {"uniform 1 v2", UniformMap(d, 1), 2},
                                     {"uniform 2 v2", UniformMap(d, 2), 2},
                                     {"uniform 3 v2", UniformMap(d, 3), 2},
                                     {"uniform 4 v4", UniformMap(d, 4), 4},
                                     {"pairs:2.0 v4", MixedMap(d, 2.0, 8), 4},
                                     {"pairs:2.0 v2", MixedMap(d, 2.0, 9), 2},
                                     {"pairs:1.5 v2", MixedMap(d, 1.5, 10), 2},
                                     {"pairs:3.0 v4", MixedMap(d, 3.0, 11), 4},
                                     {"pnmix 3/1 v3", HalfThreeOne(d, 14), 3},
                                     {"pairs:2.0 v3", MixedMap(d, 2.0, 15), 3}};
    for (const Kind& kind : kinds) {
      for (const uint32_t n : {97U, 288U, 1500U}) {
        CaseSpec spec{Name(kind.name, d, 8, n), {d, 2, 8}, {PnMix(n)}};
        spec.maps = {kind.map};
        spec.value_bits = kind.value_bits;
        CheckCase(filter, spec);
      }
    }
    CaseSpec rotated{Name("pnmix v2 hadamard", d, 8, 700), {d, 2, 8}, {PnMix(700)}};
    rotated.maps = {HalfThreeOne(d, 5)};
    rotated.rotated = true;
    CheckCase(filter, rotated);
  }
  for (const uint32_t n : kLengths) {
    for (const uint32_t d : {64U, 128U, 256U}) {
      for (const uint32_t value_bits : {2U, 3U, 4U}) {
        const uint32_t heads = d == 128 && value_bits == 2 ? 8 : 2;
        CaseSpec spec{Name("pnmix 3/1", d, 8, n) + " v" + std::to_string(value_bits), {d, heads, 8}, {PnMix(n)}};
        spec.maps = {HalfThreeOne(d, 12), HalfThreeOne(d, 13)};
        spec.value_bits = value_bits;
        CheckCase(filter, spec);
      }
    }
  }
}

void ValueGroups(CaseFilter& filter) {
  for (const uint32_t d : {64U, 128U, 256U}) {
    for (const uint32_t groups : {2U, 4U}) {
      if (groups == 4 && d != 128) continue;
      for (const uint32_t value_bits : {2U, 4U}) {
        for (const uint32_t n : {161U, 1500U}) {
          CaseSpec spec{
              Name("pnmix", d, 8, n) + " v" + std::to_string(value_bits) + " groups=" + std::to_string(groups),
              {d, 2, 8},
              {PnMix(n)}};
          spec.maps = {HalfThreeOne(d, 50), MixedMap(d, 2.0, 51)};
          spec.value_bits = value_bits;
          spec.value_groups = groups;
          spec.rotated = n == 1500;
          CheckCase(filter, spec);
        }
      }
    }
  }
}

void RaggedBatches(CaseFilter& filter) {
  CaseSpec spec{"pnmix ragged 1…4000", {128, 4, 8}, {}};
  for (const uint32_t n : {1U, 33U, 160U, 161U, 500U, 1024U, 4000U, 63U, 287U}) spec.sequences.push_back(PnMix(n));
  spec.maps = {HalfThreeOne(128, 20)};
  CheckCase(filter, spec);
  CaseSpec tokens{"int8 ragged", {128, 4, 8}, {}};
  for (const uint32_t n : {1U, 3000U, 17U, 640U, 16U, 15U}) tokens.sequences.push_back({{DecodeFormat::kInt8, n, 0}});
  CheckCase(filter, tokens);
  CaseSpec many{"int4 64 sequences", {128, 8, 4}, {}};
  for (uint32_t s = 0; s < 64; ++s) many.sequences.push_back({{DecodeFormat::kInt4, 100 + 3 * s, 0}});
  CheckCase(filter, many);
}

void SharpAndWindowed(CaseFilter& filter) {
  for (const float spread : {0.1F, 3.0F, 8.0F}) {
    CaseSpec sharp{"pnmix spread " + std::to_string(spread), {128, 2, 8}, {PnMix(2000)}};
    sharp.maps = {HalfThreeOne(128, 30)};
    sharp.key_spread = spread;
    CheckCase(filter, sharp);
    CaseSpec tokens{"int8 spread " + std::to_string(spread), {128, 2, 8}, {{{DecodeFormat::kInt8, 2000, 0}}}};
    tokens.key_spread = spread;
    CheckCase(filter, tokens);
  }
  for (const uint32_t first : {1U, 16U, 100U, 333U, 639U}) {
    for (const DecodeFormat format : kTokenFormats) {
      const bool bf16 = format == DecodeFormat::kBf16;
      CheckCase(filter,
                {std::string(kFormatNames[static_cast<size_t>(format)]) + " window from " + std::to_string(first),
                 {128, 2, 8},
                 {{{format, 640, first}, {bf16 ? format : DecodeFormat::kFp16, 5, 0}}}});
    }
    for (const uint32_t d : {64U, 128U, 256U}) {
      for (const uint32_t value_bits : {2U, 3U, 4U}) {
        if (d != 128 && first != 333) continue;
        CaseSpec pair{
            Name("pair window", d, 8, 645) + " v" + std::to_string(value_bits) + " from " + std::to_string(first),
            {d, 2, 8},
            {{{DecodeFormat::kPair, 640, first}, {DecodeFormat::kFp16, 5, 0}}}};
        pair.maps = {HalfThreeOne(d, 31)};
        pair.value_bits = value_bits;
        CheckCase(filter, pair);
      }
    }
  }
}

void SoftCaps(CaseFilter& filter) {
  for (const uint32_t d : {64U, 128U, 256U}) {
    for (const float cap : {5.0F, 50.0F}) {
      for (const uint32_t first : {0U, 100U}) {  // with a window, too
        const std::string name = " soft cap " + std::to_string(static_cast<int>(cap)) + " d=" + std::to_string(d) +
                                 (first != 0 ? " windowed" : "");
        CaseSpec tokens{
            "fp16 + int8 + int4-affine" + name,
            {d, 2, 2},
            {{{DecodeFormat::kFp16, 37, 0}, {DecodeFormat::kInt8, 500, first}, {DecodeFormat::kInt4Affine, 333, 0}}}};
        tokens.soft_cap = cap;
        tokens.equalized = true;
        tokens.key_spread = 3.0F;
        CheckCase(filter, tokens);
        CaseSpec bf16{"bf16" + name, {d, 2, 2}, {{{DecodeFormat::kBf16, 300, first}}}};
        bf16.soft_cap = cap;
        CheckCase(filter, bf16);
        for (const uint32_t value_bits : {2U, 3U, 4U}) {
          CaseSpec pair{"pnmix v" + std::to_string(value_bits) + name,
                        {d, 2, 8},
                        {{{DecodeFormat::kFp16, 60, 0}, {DecodeFormat::kPair, 640, first}}}};
          pair.maps = {HalfThreeOne(d, 41)};
          pair.value_bits = value_bits;
          pair.soft_cap = cap;
          pair.key_spread = 2.0F;
          CheckCase(filter, pair);
        }
      }
    }
  }
}

// What has no kernel is refused by name; nothing falls back.
void Refusals(CaseFilter& filter) {
  const auto refused = [&](const char* what, const kernels::cuda::DecodeRequest& request) {
    if (!filter.Wants(what)) return;
    const auto kernel = kernels::cuda::SelectDecode(request);
    const bool ok = !kernel.ok() && kernel.status().code() == StatusCode::kModelUnsupported;
    ++g_cases;
    if (!ok) ++g_failures;
    std::printf("%s refuses %s%s%s\n", ok ? "ok  " : "FAIL", what, ok ? ": " : "",
                ok ? kernel.status().message().c_str() : "");
  };
  kernels::cuda::DecodeRequest request;
  request.shape = {96, 8, 8};
  refused("head dimension 96", request);
  request.shape = {128, 8, 8};
  request.pair_pages = true;
  request.value_bits = 5;
  request.max_key_columns = 2;
  refused("five value bits", request);
  request.value_bits = 2;
  request.value_groups = 8;
  refused("eight value groups", request);
}

void RunAll(CaseFilter& filter) {
  TokenTiers(filter);
  QueryGroups(filter);
  Tiered(filter);
  PairPages(filter);
  ValueGroups(filter);
  RaggedBatches(filter);
  SharpAndWindowed(filter);
  SoftCaps(filter);
  Refusals(filter);
  for (const CaseCount& more : {RunPackCases(filter), RunImportanceCases(filter)}) {
    g_cases += more.cases;
    g_failures += more.failures;
  }
}

}  // namespace
}  // namespace kvant::cuda_test

int main(int argc, char** argv) {
  const bool brief = argc > 1 && std::string(argv[1]) == "--brief";
  const int text_at = brief ? 2 : 1;
  kvant::cuda_test::CaseFilter filter(argc > text_at ? argv[text_at] : "", brief);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  using namespace kvant::cuda_test;
  try {
    RunAll(filter);
  } catch (const DeviceError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("%d cases, %zu decode kernels, %d failed, worst error %.2e\n", g_cases, g_kernels.size(), g_failures,
              g_worst);
  return g_failures == 0 ? 0 : 1;
}
