#include <cmath>

#include "kvant/codec/pair_block.h"
#include "kvant/wire/messages.h"
#include "wire/envelope.h"

namespace kvant::wire {
namespace {

Status CheckPrecision(const codec::Precision& precision) {
  if (precision.is_exact()) {
    const codec::Precision exact{codec::TokenCodec::kFp16, false, 0, codec::Precision::kEndlessResidual};
    return precision == exact ? OkStatus()
                              : Status(StatusCode::kInvalidArgument, "precision fp16 takes no eq, sinks or residual");
  }
  KVANT_RETURN_IF_ERROR(CheckRange("sinks", precision.num_sinks, 0, codec::Precision::kMaxSinks));
  if (precision.residual != codec::Precision::kEndlessResidual) {
    KVANT_RETURN_IF_ERROR(CheckRange("residual", precision.residual, 1, codec::Precision::kDefaultResidual));
  }
  if (precision.is_progressive() && !precision.equalize) {
    return {StatusCode::kInvalidArgument, "precision progressive comes with eq=on"};
  }
  if (precision.pairs) {
    const uint32_t tokens = precision.residual;
    return !precision.equalize && (tokens == 32 || tokens == 64 || tokens == 128)
               ? OkStatus()
               : Status(StatusCode::kInvalidArgument, "pair pages come with eq=off and residual 32, 64 or 128");
  }
  const bool equalized_codec = precision.codec == codec::TokenCodec::kInt4Affine;
  const bool plain_codec = precision.codec == codec::TokenCodec::kInt4;
  if ((equalized_codec && !precision.equalize) || (plain_codec && precision.equalize)) {
    return {StatusCode::kInvalidArgument, "precision int4 is affine with eq=on and symmetric with eq=off"};
  }
  return OkStatus();
}

Status CheckHello(const Hello& hello) {
  KVANT_RETURN_IF_ERROR(CheckShape(hello.model.shape));
  KVANT_RETURN_IF_ERROR(
      CheckRange("rope_layout", static_cast<uint32_t>(hello.model.rope_layout), 0, kNumRopeLayouts - 1));
  if (!std::isfinite(hello.model.rope_base)) {
    return {StatusCode::kInvalidArgument, "rope_base is not a finite number"};
  }
  KVANT_RETURN_IF_ERROR(CheckRange("num_prompt_tokens", hello.num_prompt_tokens, 1, kMaxTokens));
  KVANT_RETURN_IF_ERROR(
      CheckRange("num_context_tokens", hello.num_context_tokens, hello.num_prompt_tokens, kMaxTokens));
  if (hello.precision.has_int4_pages()) {
    KVANT_RETURN_IF_ERROR(codec::CheckPairFormat(codec::Int4PageFormat(hello.model.shape.head_dim).format));
  }
  return CheckPrecision(hello.precision);
}

Result<codec::Precision> TakePrecision(ByteReader& reader) {
  codec::Precision precision;
  const auto number = reader.Take<uint8_t>();
  const CodecKind kind = KindOf(number);
  if (kind.tiers) {
    precision.spectrum.emplace();  // who chooses the tiers, and how, is the sender's business
    precision.spectrum->progressive = kind.progressive;
    precision.spectrum->int4_pages = kind.int4_pages;
  } else if (kind.pairs) {
    precision.pairs.emplace();  // the layers say the rest
  } else {
    KVANT_ASSIGN_OR_RETURN(precision.codec, CodecOf(number));
  }
  const auto equalize = reader.Take<uint8_t>();
  KVANT_RETURN_IF_ERROR(CheckRange("eq", equalize, 0, 1));
  precision.equalize = equalize == 1;
  precision.num_sinks = reader.Take<uint16_t>();
  precision.residual = reader.Take<uint32_t>();
  if (precision.pairs) {
    precision.pairs->num_sinks = precision.num_sinks;
    precision.pairs->page_tokens = precision.pairs->residual = precision.residual;
  }
  return precision;
}

ModelIdentity TakeIdentity(ByteReader& reader) {
  ModelIdentity model;
  model.shape.num_layers = reader.Take<uint32_t>();
  model.shape.num_kv_heads = reader.Take<uint32_t>();
  model.shape.head_dim = reader.Take<uint32_t>();
  model.model_fingerprint = reader.Take<uint64_t>();
  model.tokenizer_fingerprint = reader.Take<uint64_t>();
  model.rope_layout = static_cast<RopeLayout>(reader.Take<uint32_t>());
  model.rope_base = reader.Take<float>();
  model.rope_digest = reader.Take<uint64_t>();
  return model;
}

}  // namespace

Result<Buffer> EncodeHello(uint64_t session, const Hello& hello) {
  return EncodeFrame(FrameType::kHello, session, kHelloBytes, [&](ByteWriter& writer) {
    writer.Put(hello.protocol);
    writer.Put(hello.model.shape.num_layers);
    writer.Put(hello.model.shape.num_kv_heads);
    writer.Put(hello.model.shape.head_dim);
    writer.Put(hello.model.model_fingerprint);
    writer.Put(hello.model.tokenizer_fingerprint);
    writer.Put(static_cast<uint32_t>(hello.model.rope_layout));
    writer.Put(hello.model.rope_base);
    writer.Put(hello.model.rope_digest);
    writer.Put(hello.num_prompt_tokens);
    writer.Put(hello.num_context_tokens);
    writer.Put(CodecNumber({hello.precision.pairs.has_value(), hello.precision.spectrum.has_value(),
                            hello.precision.is_progressive(), hello.precision.has_int4_pages()},
                           hello.precision.codec));
    writer.Put(static_cast<uint8_t>(hello.precision.equalize));
    writer.Put(static_cast<uint16_t>(hello.precision.num_sinks));
    writer.Put(hello.precision.residual);
  });
}

Result<Hello> DecodeHello(const FrameView& frame) {
  KVANT_RETURN_IF_ERROR(CheckPayloadBytes(frame, kHelloBytes));
  ByteReader reader(frame.payload);
  Hello hello;
  hello.protocol = reader.Take<uint32_t>();
  hello.model = TakeIdentity(reader);
  hello.num_prompt_tokens = reader.Take<uint32_t>();
  hello.num_context_tokens = reader.Take<uint32_t>();
  KVANT_ASSIGN_OR_RETURN(hello.precision, TakePrecision(reader));
  KVANT_RETURN_IF_ERROR(CheckHello(hello));
  return hello;
}

}  // namespace kvant::wire
