#include "kvant/engine/gguf_check.h"

#include "engine/gguf/gguf_header.h"
#include "engine/gguf/gguf_metadata.h"
#include "engine/gguf/gguf_model.h"
#include "engine/gguf/gguf_tokenizer.h"
#include "kvant/base/hash.h"

namespace kvant::engine {
namespace {

Result<GgufInfo> Check(const std::string& path) {
  KVANT_ASSIGN_OR_RETURN(const GgufHeader header, ReadGgufHeader(path));
  KVANT_ASSIGN_OR_RETURN(const ArchitectureRule* rule, ReadArchitecture(header));
  KVANT_RETURN_IF_ERROR(CheckCommonKeys(header));
  KVANT_ASSIGN_OR_RETURN(CheckedTokenizer tokenizer, ReadTokenizer(header));
  GgufInfo info;
  KVANT_ASSIGN_OR_RETURN(info.params, ReadModelParams(header, *rule, tokenizer.vocab_size));
  KVANT_RETURN_IF_ERROR(CheckModelTensors(header, *rule, info.params));
  KVANT_ASSIGN_OR_RETURN(const std::optional<std::string_view> name, GetText(header, "general.name"));
  info.architecture = rule->name;
  info.name = name.value_or("");
  info.weight_type = MainWeightType(header);
  info.tokenizer = std::move(tokenizer.params);
  info.file_size = header.reader.file_size();
  info.data_offset = header.data_offset;
  info.num_tensors = header.tensors.size();
  info.fingerprint = Hash64(header.reader.Seen(header.reader.offset()));
  return info;
}

}  // namespace

Result<GgufInfo> CheckGguf(const std::string& path) {
  Result<GgufInfo> info = Check(path);
  return info.ok() ? std::move(info) : Result<GgufInfo>(info.status().WithContext(path));
}

}  // namespace kvant::engine
