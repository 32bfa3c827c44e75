// Decode attention over every format, interleaved, cold L2 by rotation, beside a plain read of the same bytes.
//   kvant_cuda_bench [--shapes 1x8192,8x32768] [--formats "fp16,pnmix,int4 ragged"] [--repeats 7] [--gqa 8]
//                    [--head-dim 128] [--start 4096]
//   kvant_cuda_bench --verdicts     what the formats, page tables and lengths may cost, each beside its limit
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tables.h"

namespace kvant::cuda_bench {
namespace {

using kernels::cuda::AttentionArm;
using kernels::cuda::AttentionMeasurement;
using kernels::cuda::BatchKind;
using kernels::cuda::Measured;

struct Options {
  std::vector<std::pair<uint32_t, uint32_t>> shapes = {{1, 8192},  {1, 32768},  {1, 131072},
                                                       {8, 32768}, {32, 32768}, {128, 8192}};
  std::vector<std::string> formats = kernels::cuda::AttentionFormats();
  AttentionMeasurement wanted;
  bool verdicts = false;
};

AttentionMeasurement AtShape(const Options& options, uint32_t batch, uint32_t tokens, std::vector<AttentionArm> arms) {
  AttentionMeasurement wanted = options.wanted;
  wanted.batch = batch;
  wanted.tokens = tokens;
  wanted.arms = std::move(arms);
  return wanted;
}

/// "int4", "int4 shuffled" or "int4 ragged": as arms are called in the tables.
AttentionArm ArmOf(const std::string& name) {
  for (const auto& [suffix, kind] : {std::pair{" shuffled", BatchKind::kShuffled}, {" ragged", BatchKind::kRagged}}) {
    if (name.ends_with(suffix)) return {name.substr(0, name.size() - std::strlen(suffix)), kind};
  }
  return {name};
}

void PrintTable(const Options& options, uint32_t batch, uint32_t tokens) {
  std::vector<AttentionArm> arms;
  for (const std::string& format : options.formats) arms.push_back(ArmOf(format));
  const Measured measured = MustMeasure(MeasureAttention(AtShape(options, batch, tokens, arms)));
  std::printf("\n%u x %u, %u KV heads, %u query heads a KV head, head dimension %u\n", batch, tokens,
              options.wanted.shape.num_kv_heads, options.wanted.shape.q_heads_per_kv_head,
              options.wanted.shape.head_dim);
  PrintAttention(measured);
}

/// Arm `name` against `base`: its time may be `limit` times the base's, or must lie within ±10 % of that.
void Verdict(const Measured& measured, const char* what, const std::string& name, const std::string& base,
             double limit) {
  const double ratio = MedianOf(measured, name) / MedianOf(measured, base);
  std::printf("  %-4s %-52s %6.3f of %s, at most %.2f\n", ratio <= limit ? "met" : "MISS", (name + ": " + what).c_str(),
              ratio, base.c_str(), limit);
}

void VerdictOfBytes(const Measured& measured, const std::string& name, const std::string& base) {
  const double bytes = BytesOf(measured, name) / BytesOf(measured, base);
  const double ratio = MedianOf(measured, name) / MedianOf(measured, base) / bytes;
  std::printf("  %-4s %-52s %6.3f of %s by bytes (x %.3f), 0.90 to 1.10\n",
              ratio <= 1.1 && ratio >= 0.9 ? "met"
              : ratio < 0.9                ? "over"
                                           : "MISS",
              (name + ": the time its bytes say").c_str(), ratio, base.c_str(), bytes);
}

// Page tables and lengths, one format at a time: the pools of all would not leave the L2 cold for less.
void PrintBatchVerdicts(const Options& options, uint32_t batch, uint32_t tokens) {
  std::printf("\n%u x %u\n", batch, tokens);
  for (const char* format : {"fp16", "int8", "int4", "pnmix"}) {
    const Measured measured = MustMeasure(MeasureAttention(
        AtShape(options, batch, tokens, {{format}, {format, BatchKind::kShuffled}, {format, BatchKind::kRagged}})));
    Verdict(measured, "page table in random order", std::string(format) + " shuffled", format, 1.05);
    Verdict(measured, "lengths 1 : 64 of equal total", std::string(format) + " ragged", format, 1.15);
  }
}

void PrintFormatVerdicts(const Options& options, uint32_t batch, uint32_t tokens) {
  std::printf("\n%u x %u\n", batch, tokens);
  const Measured measured = MustMeasure(MeasureAttention(AtShape(options, batch, tokens,
                                                                 {{"fp16"},
                                                                  {"bf16"},
                                                                  {"int8"},
                                                                  {"int4"},
                                                                  {"pnmix"},
                                                                  {"pnmix general"},
                                                                  {"uniform2"},
                                                                  {"pnmix v=4"},
                                                                  {"pairs:2.0 v=4"}})));
  PrintAttention(measured);
  Verdict(measured, "the mask, at equal bytes", "pnmix general", "uniform2", 1.05);
  Verdict(measured, "the mask, with constants", "pnmix", "uniform2", 1.05);
  VerdictOfBytes(measured, "pnmix v=4", "pnmix");
  VerdictOfBytes(measured, "pairs:2.0 v=4", "pnmix");
  Verdict(measured, "1.6 times faster", "int8", "bf16", 1 / 1.6);
  Verdict(measured, "2.8 times faster", "int4", "bf16", 1 / 2.8);
}

// Twice eight query heads over the same pages: the second eight read them out of the L2.
void PrintGroupVerdict(Options options, uint32_t batch, uint32_t tokens) {
  const std::vector<AttentionArm> arms = {{"fp16"}, {"int8"}, {"int4"}, {"pnmix"}};
  options.wanted.shape.q_heads_per_kv_head = 8;
  const Measured eight = MustMeasure(MeasureAttention(AtShape(options, batch, tokens, arms)));
  options.wanted.shape.q_heads_per_kv_head = 16;
  const Measured sixteen = MustMeasure(MeasureAttention(AtShape(options, batch, tokens, arms)));
  std::printf("\n%u x %u, 16 query heads a KV head against 8\n", batch, tokens);
  for (const AttentionArm& arm : arms) {
    std::printf("  %-10s %8.1f us against %8.1f us: %.2f times\n", arm.format.c_str(),
                MedianOf(sixteen, arm.format) * 1e6, MedianOf(eight, arm.format) * 1e6,
                MedianOf(sixteen, arm.format) / MedianOf(eight, arm.format));
  }
}

std::vector<std::string> Split(const char* text) {
  std::vector<std::string> words(1);
  for (const char* c = text; *c != 0; ++c) {
    if (*c == ',') {
      words.emplace_back();
    } else {
      words.back() += *c;
    }
  }
  return words;
}

std::vector<std::pair<uint32_t, uint32_t>> ShapesOf(const char* text) {
  std::vector<std::pair<uint32_t, uint32_t>> shapes;
  for (const std::string& word : Split(text)) {
    unsigned batch = 0;
    unsigned tokens = 0;
    if (std::sscanf(word.c_str(), "%ux%u", &batch, &tokens) == 2) shapes.push_back({batch, tokens});
  }
  return shapes;
}

Options Parse(int argc, char** argv) {
  Options options;
  const auto number = [](const char* text) { return static_cast<uint32_t>(std::strtoul(text, nullptr, 10)); };
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--verdicts") {
      options.verdicts = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--shapes") {
      options.shapes = ShapesOf(value);
    } else if (flag == "--formats") {
      options.formats = Split(value);
    } else if (flag == "--repeats") {
      options.wanted.rounds = std::atoi(value);
    } else if (flag == "--gqa") {
      options.wanted.shape.q_heads_per_kv_head = number(value);
    } else if (flag == "--head-dim") {
      options.wanted.shape.head_dim = number(value);
    } else if (flag == "--overhead") {
      options.wanted.overhead = std::atoi(value);
    } else if (flag == "--start") {
      options.wanted.start = std::atoi(value);
    } else if (flag == "--fine-below") {
      options.wanted.fine_below = std::atoi(value);
    } else if (flag == "--least-bytes") {
      options.wanted.least_bytes = std::atoi(value);
    } else {
      std::fprintf(stderr, "unknown option %s\n", argv[i - 1]);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace
}  // namespace kvant::cuda_bench

int main(int argc, char** argv) {
  using namespace kvant::cuda_bench;
  const auto options = Parse(argc, argv);
  if (!options.verdicts) {
    for (const auto& [batch, tokens] : options.shapes) PrintTable(options, batch, tokens);
    return 0;
  }
  for (const auto& [batch, tokens] : {std::pair{8U, 32768U}, {32U, 32768U}, {128U, 8192U}}) {
    PrintFormatVerdicts(options, batch, tokens);
    PrintBatchVerdicts(options, batch, tokens);
    PrintGroupVerdict(options, batch, tokens);
  }
  return 0;
}
