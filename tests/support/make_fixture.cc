// kvant_fixture: model files for tests and measurements.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "support/gguf_fixture.h"

namespace {

using kvant::Result;
using kvant::Status;
using kvant::StatusCode;
namespace test = kvant::test;

constexpr const char* kUsage =
    "kvant_fixture f32 IN OUT                 the same model with every tensor in f32\n"
    "kvant_fixture outlier IN OUT [--s 64] [--layers all|mid|ends] [--kv-head 0] [--pair 0] [--v]\n"
    "                                         keys of one RoPE pair times s, queries over s; --v: values likewise\n"
    "kvant_fixture tiny OUT [--arch llama] [--layers 2] [--heads 4] [--kv-heads 2] [--head-dim 32] [--ffn 192] "
    "[--vocab 300]\n"
    "              [--ctx 512] [--rope norm] [--rope-scaling none|linear|yarn|llama3|longrope] [--tied 0|1] [--seed "
    "1]\n"
    "              [--gain 3] [--window 0]    a model with random weights\n";

struct Arguments {
  std::vector<std::string> positional;
  std::map<std::string, std::string> options;
  Status fault;

  // The option's text, taken out; what is left at the end nobody knows.
  std::string Take(const std::string& name, const std::string& missing) {
    auto node = options.extract(name);
    return node.empty() ? missing : node.mapped();
  }

  template <typename T>
  T TakeNumber(const std::string& name, T missing) {
    const std::string text = Take(name, "");
    T value = missing;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
    if (!text.empty() && (end.ec != std::errc() || end.ptr != text.data() + text.size())) {
      fault = Status(StatusCode::kInvalidArgument, name + ": not a number: " + text);
    }
    return value;
  }

  template <typename T>
  T TakeWord(const std::string& name, const std::map<std::string, T>& words, const std::string& missing) {
    const std::string text = Take(name, missing);
    const auto found = words.find(text);
    if (found == words.end()) {
      fault = Status(StatusCode::kInvalidArgument, name + ": unknown word: " + text);
      return words.begin()->second;
    }
    return found->second;
  }

  Status Check(size_t num_positional) const {
    if (!options.empty()) {
      return {StatusCode::kInvalidArgument, "unknown option " + options.begin()->first};
    }
    if (positional.size() != num_positional) {
      return {StatusCode::kInvalidArgument, "wrong number of files"};
    }
    return fault;
  }
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      arguments.positional.push_back(word);
    } else if (word == "--v") {
      arguments.options.insert_or_assign(word, std::string(1, '1'));
    } else if (i + 1 < argc) {
      arguments.options.insert_or_assign(word, std::string(argv[++i]));
    } else {
      arguments.fault = Status(StatusCode::kInvalidArgument, word + ": its value is missing");
    }
  }
  return arguments;
}

Status MakeF32(Arguments& arguments) {
  KVANT_RETURN_IF_ERROR(arguments.Check(2));
  return test::WriteF32Model(arguments.positional[0], arguments.positional[1]);
}

Status MakeOutlier(Arguments& arguments) {
  test::OutlierParams params;
  params.scale = arguments.TakeNumber("--s", params.scale);
  params.kv_head = arguments.TakeNumber("--kv-head", params.kv_head);
  params.pair = arguments.TakeNumber("--pair", params.pair);
  params.values = arguments.Take("--v", "0") == "1";
  params.layers = arguments.TakeWord<test::OutlierLayers>(
      "--layers",
      {{"all", test::OutlierLayers::kAll}, {"mid", test::OutlierLayers::kMid}, {"ends", test::OutlierLayers::kEnds}},
      "all");
  KVANT_RETURN_IF_ERROR(arguments.Check(2));
  return test::WriteOutlierModel(arguments.positional[0], arguments.positional[1], params);
}

Status MakeTiny(Arguments& arguments) {
  test::TinyModelParams params;
  params.architecture = arguments.Take("--arch", params.architecture);
  params.window = arguments.TakeNumber("--window", params.window);
  params.num_layers = arguments.TakeNumber("--layers", params.num_layers);
  params.num_q_heads = arguments.TakeNumber("--heads", params.num_q_heads);
  params.num_kv_heads = arguments.TakeNumber("--kv-heads", params.num_kv_heads);
  params.head_dim = arguments.TakeNumber("--head-dim", params.head_dim);
  params.feed_forward = arguments.TakeNumber("--ffn", params.feed_forward);
  params.vocab_size = arguments.TakeNumber("--vocab", params.vocab_size);
  params.context_length = arguments.TakeNumber("--ctx", params.context_length);
  params.seed = arguments.TakeNumber("--seed", params.seed);
  params.gain = arguments.TakeNumber("--gain", params.gain);
  params.tied_embeddings = arguments.TakeWord<bool>("--tied", {{"0", false}, {"1", true}}, "1");
  params.scaling = arguments.TakeWord<test::TinyScaling>("--rope-scaling",
                                                         {{"none", test::TinyScaling::kNone},
                                                          {"linear", test::TinyScaling::kLinear},
                                                          {"yarn", test::TinyScaling::kYarn},
                                                          {"llama3", test::TinyScaling::kLlama3},
                                                          {"longrope", test::TinyScaling::kLongRope}},
                                                         "none");
  arguments.TakeWord<bool>("--rope", {{"norm", true}}, "norm");  // the layout of the architecture
  KVANT_RETURN_IF_ERROR(arguments.Check(1));
  return test::WriteTinyModel(params, arguments.positional[0]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  Arguments arguments = Parse(argc, argv);
  Status status(StatusCode::kInvalidArgument, command.empty() ? "which fixture?" : "unknown fixture " + command);
  if (command == "f32") {
    status = MakeF32(arguments);
  } else if (command == "outlier") {
    status = MakeOutlier(arguments);
  } else if (command == "tiny") {
    status = MakeTiny(arguments);
  }
  if (status.ok()) {
    return EXIT_SUCCESS;
  }
  const bool usage = status.code() == StatusCode::kInvalidArgument;
  std::fprintf(stderr, "kvant_fixture: %s\n%s", status.message().c_str(), usage ? kUsage : "");
  return usage ? 2 : EXIT_FAILURE;
}
