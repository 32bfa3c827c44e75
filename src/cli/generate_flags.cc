#include "cli/generate_flags.h"

#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <istream>

#include "cli/profile_store.h"
#include "kvant/engine/session.h"

namespace kvant::cli {
namespace {

constexpr const char* kAsReceived = "as-received";
constexpr const char* kDefaultPrecision = "int8";
constexpr double kMinLinkGbps = 1e-4;
constexpr int kMaxLinkGbps = 1'000'000;

Result<codec::Precision> Parse(const std::string& flag, const std::string& word) {
  Result<codec::Precision> precision = codec::ParsePrecision(word.empty() ? kDefaultPrecision : word);
  return precision.ok() ? precision : Result<codec::Precision>(precision.status().WithContext(flag));
}

Result<std::string> ReadAll(std::istream& input, const std::string& what) {
  std::string text;
  std::array<char, 1 << 16> block{};
  while (input.read(block.data(), block.size()), input.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(input.gcount()));
    if (text.size() > kMaxTextFileBytes) {
      return Status(StatusCode::kCapacityExceeded, fmt::format("{} has more than {} bytes", what, kMaxTextFileBytes));
    }
  }
  if (input.bad()) {
    return Status(StatusCode::kIoError, "cannot read " + what);
  }
  return text;
}

std::string CheckLinkGbps(const std::string& word) {
  double rate = -1;
  const bool known =
      CLI::detail::lexical_cast(word, rate) && (rate == 0 || (rate >= kMinLinkGbps && rate <= kMaxLinkGbps));
  return known ? "" : fmt::format("{} is neither 0 (no limit) nor from {} to {}", word, kMinLinkGbps, kMaxLinkGbps);
}

void AddPromptFlags(CLI::App& command, GenerateFlags& flags) {
  LetFlagWin(
      AddOption(command, "-p,--prompt", flags.prompt, "The prompt"),
      AddOption(command, "-f,--file", flags.file, "File with the prompt, taken byte by byte; - is standard input"));
  AddSwitch(command, "--raw", flags.raw, "Take the prompt as it is, without the model's chat template");
}

void AddKvFlags(CLI::App& command, GenerateFlags& flags) {
  AddOption(command, "--kv", flags.kv,
            "Precision of the cache: fp16, int8, int4, spectrum:b=B, progressive:b=B, pdtrim:B, sws:B, each but fp16 "
            "with ,eq=on|off|model ,sinks=N ,residual=N|inf; or pair pages, pnmix:H/L@R% or pairs:B with ,v=2|3|4|8 "
            ",map=model "
            "(default: int8; where something is sent as-received). A spectrum takes ,policy= ,importance= ,scope= "
            ",decay= ,int4=rows|pages, a progressive one ,refine= (README)");
  AddOption(
      command, "--wire", flags.wire,
      "Precision of what is sent, the same words (default: int8). The first N of sinks=N stay fp16, and with eq=on "
      "so does a prompt of fewer than 128 tokens beyond them");
  AddSwitch(command, "--disaggregated", flags.disaggregated,
            "Prefill and decode in engines of their own, which share nothing but a transport");
  AddOption(command, "--decode-worker", flags.decode_worker,
            "HOST:PORT of a decode-worker: prefill here, decode there");
  AddRemoteFlags(command, flags.remote);
  AddOption(command, "--link-gbps", flags.link_gbps,
            "Rate of the transport in 10^9 bits a second, from 0.0001; 0 is no limit")
      ->check(CheckLinkGbps);
  AddOption(command, "--ttft-target", flags.ttft_target_ms,
            "Milliseconds to the first token: the budget of each layer that is sent is chosen for it, by the measured "
            "rate of the line; the B of --wire spectrum:b=B is that of the first layer. 0 is no target")
      ->check(InRange(uint32_t{0}, uint32_t{86'400'000}));
  AddOption(command, "--save-frames", flags.save_frames,
            "File for the frames of the prompt as they are sent, to be read by inspect");
}

void AddSamplingFlags(CLI::App& command, engine::SamplingParams& sampling) {
  AddOption(command, "--temperature", sampling.temperature, "0 takes the likeliest token always");
  AddOption(command, "--top-k", sampling.top_k, "Choose among the k likeliest tokens; 0 is off");
  AddOption(command, "--top-p", sampling.top_p,
            "Choose among the likeliest tokens of this probability in sum; 1 is off");
  AddOption(command, "--min-p", sampling.min_p, "Leave out tokens below this share of the likeliest one; 0 is off");
  AddOption(command, "--repeat-penalty", sampling.repeat_penalty,
            "Divide the logits of recent tokens by this; 1 is off");
  AddOption(command, "--seed", sampling.seed, "Seed of the random choice");
}

// The flag that asks for something to be sent, if there is one.
const char* FlagOfSending(const GenerateFlags& flags) {
  return !flags.wire.empty()          ? "--wire"
         : flags.link_gbps != 0       ? "--link-gbps"
         : flags.ttft_target_ms != 0  ? "--ttft-target"
         : !flags.save_frames.empty() ? "--save-frames"
                                      : nullptr;
}

}  // namespace

void AddGenerateFlags(CLI::App& command, GenerateFlags& flags) {
  AddEngineFlags(command, flags.engine);
  AddPromptFlags(command, flags);
  AddOption(command, "-n,--max-tokens", flags.options.max_tokens, "Tokens to generate at most")
      ->check(InRange(uint32_t{1}, UINT32_MAX));
  AddOption(command, "--context", flags.options.context,
            "Tokens of prompt and answer together; 0 is what the model is meant for");
  AddSwitch(command, "--ignore-eos", flags.options.ignore_eos, "Do not stop where the model would end");
  AddKvFlags(command, flags);
  AddOption(command, "--session", flags.options.session,
            "File that keeps the cache: a prompt that begins with what it holds goes on from there, and it is written "
            "anew in the end");
  AddKvMemoryFlag(command, flags.kv_memory_mb);
  AddProfileFlag(command, flags.profile);
  AddSamplingFlags(command, flags.options.sampling);
  AddOption(command, "--grammar", flags.grammar_file, "File with a GBNF grammar that the answer must follow");
}

Result<KvPlan> PlanKv(const GenerateFlags& flags) {
  if (flags.disaggregated && !flags.decode_worker.empty()) {
    return Status(StatusCode::kInvalidArgument, "--disaggregated and --decode-worker: give one of them");
  }
  if (!flags.disaggregated && flags.decode_worker.empty()) {
    if (const char* flag = FlagOfSending(flags); flag != nullptr) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: nothing is sent without --disaggregated or --decode-worker", flag));
    }
    if (flags.kv == kAsReceived) {
      return Status(StatusCode::kInvalidArgument,
                    "--kv as-received: nothing is received without --disaggregated or --decode-worker");
    }
    KVANT_ASSIGN_OR_RETURN(const codec::Precision kv, Parse("--kv", flags.kv));
    if (kv.spectrum && kv.spectrum->refine) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("--kv {}: refine= fetches from the side that sends; nothing is sent without "
                                "--disaggregated or --decode-worker",
                                codec::PrecisionWord(kv)));
    }
    if (!flags.options.session.empty()) {
      KVANT_RETURN_IF_ERROR(engine::CheckSessionPrecision(kv).WithContext("--session"));
    }
    return KvPlan{kv, std::nullopt};
  }
  if (!flags.options.session.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "--session: a session is kept where prompt and answer share a cache, without --disaggregated and "
                  "--decode-worker");
  }
  KVANT_ASSIGN_OR_RETURN(const codec::Precision wire, Parse("--wire", flags.wire));
  if (flags.ttft_target_ms > 0 && (!wire.spectrum || codec::IsSelection(wire.spectrum->rule))) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("--ttft-target: --wire {} has no budget to choose; give spectrum:b=B", codec::PrecisionWord(wire)));
  }
  if (!flags.kv.empty() && flags.kv != kAsReceived) {
    KVANT_ASSIGN_OR_RETURN(const codec::Precision kv, Parse("--kv", flags.kv));
    if (kv != wire) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("--kv {}: the cache is kept as it arrives, which is --wire {}; nothing is encoded twice",
                      codec::PrecisionWord(kv), codec::PrecisionWord(wire)));
    }
  }
  return KvPlan{wire, wire};
}

Result<std::string> ReadTextFile(const std::string& flag, const std::string& path) {
  const std::string what = flag + " " + path;
  if (path == "-") {
    return ReadAll(std::cin, "standard input");
  }
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Status(StatusCode::kNotFound, what + ": there is no such file");
  }
  std::ifstream file(path, std::ios::binary);
  if (std::filesystem::is_directory(path, error) || !file) {
    return Status(StatusCode::kIoError, what + ": cannot be read");
  }
  return ReadAll(file, what);
}

Result<std::string> ReadPrompt(const GenerateFlags& flags) {
  if (flags.prompt.has_value() == flags.file.has_value()) {
    return Status(StatusCode::kInvalidArgument, flags.prompt
                                                    ? "--prompt and --file: give one of them (KVANT_PROMPT and "
                                                      "KVANT_FILE count where neither flag is given)"
                                                    : "no prompt: give one with -p or -f");
  }
  std::string text;
  if (flags.prompt) {
    text = *flags.prompt;
  } else {
    KVANT_ASSIGN_OR_RETURN(text, ReadTextFile("--file", *flags.file));
  }
  if (text.empty()) {
    return Status(StatusCode::kInvalidArgument, "the prompt is empty");
  }
  if (const size_t offset = engine::FindInvalidUtf8(text); offset != std::string_view::npos) {
    return Status(StatusCode::kInvalidArgument, fmt::format("the prompt is not valid UTF-8 at byte {}", offset));
  }
  return text;
}

}  // namespace kvant::cli
