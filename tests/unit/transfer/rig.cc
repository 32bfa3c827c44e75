#include "unit/transfer/rig.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "support/block_reference.h"

namespace kvant::test {
namespace {

void Append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

Rig::Rig(std::string_view precision_word, uint32_t num_tokens, codec::CacheShape shape) {
  hello.model = {0xA1, 0xB2, shape, wire::RopeLayout::kAdjacent, 10000.0F, 0xC3};
  hello.precision = codec::ParsePrecision(precision_word).value();
  hello.num_prompt_tokens = num_tokens;
  hello.num_context_tokens = num_tokens + 100;
  for (uint32_t i = 0; i < num_tokens; ++i) {
    finish.prompt_tokens.push_back(static_cast<int32_t>(i * 7 % 1000));
  }
  finish.first_token = 42;
  finish.first_position = num_tokens;
  finish.sampler = {123, 1};
  sender_options.session = 77;
  receiver_options.model = hello.model;
  receiver_options.max_context_tokens = num_tokens + 100;
  receiver_options.isa = kernels::BestIsa();
  receiver_options.account = &receiver_account;
}

cache::Sequence Rig::ExactPrompt(kernels::Isa isa) {
  const codec::CacheShape& shape = hello.model.shape;
  cache::Sequence sequence(shape, hello.precision, isa, &sender_account);
  EXPECT_TRUE(sequence.ExtendExact(hello.num_prompt_tokens).ok());
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    const LayerRows rows = MakeRows(shape, hello.num_prompt_tokens, layer + 1);
    for (uint32_t h = 0; h < shape.num_kv_heads; ++h) {
      sequence.layer(layer).StoreExact(h, 0, hello.num_prompt_tokens, rows.keys.data() + rows.Row(h, 0),
                                       rows.values.data() + rows.Row(h, 0), shape.head_dim);
    }
  }
  return sequence;
}

cache::Sequence Rig::LocalPrompt() {
  cache::Sequence sequence = ExactPrompt(kernels::BestIsa());
  for (uint32_t layer = 0; layer < hello.model.shape.num_layers; ++layer) {
    const std::optional<codec::TierMap> tiers = TiersOf(sequence.layer(layer), layer);
    EXPECT_TRUE(sequence.layer(layer).EncodeDue(sender_options.tail, nullptr, tiers ? &*tiers : nullptr).ok());
  }
  return sequence;
}

std::optional<codec::TierMap> Rig::TiersOf(const cache::LayerCache& layer, uint32_t index) const {
  const uint32_t due = layer.num_due(sender_options.tail);
  if (!hello.precision.spectrum || due == 0) {
    return std::nullopt;
  }
  const uint32_t third = due / 3;
  return RandomTiers({third, due - 2 * third - due / 7, third, due / 7}, layer.shape().num_kv_heads, index);
}

Status Rig::SendAll(transfer::Sender& sender, const cache::Sequence& prompt) const {
  KVANT_RETURN_IF_ERROR(sender.Handshake(hello));
  for (uint32_t layer = 0; layer < hello.model.shape.num_layers; ++layer) {
    const std::optional<codec::TierMap> tiers = TiersOf(prompt.layer(layer), layer);
    KVANT_RETURN_IF_ERROR(sender.SendLayer(layer, prompt.layer(layer), nullptr, tiers ? &*tiers : nullptr));
  }
  return sender.Finish(finish);
}

Outcome RunBoth(Rig& rig, transport::Endpoint& sender_end, transport::Endpoint& receiver_end) {
  const cache::Sequence prompt = rig.ExactPrompt();
  transfer::Sender sender(&sender_end, rig.sender_options);
  transfer::Receiver receiver(&receiver_end, rig.receiver_options);
  std::optional<Result<transfer::Received>> received;
  std::thread decode([&] { received.emplace(receiver.Run()); });
  const Status sent = rig.SendAll(sender, prompt);
  decode.join();
  return {sent, std::move(*received), sender.report(), receiver.report()};
}

std::vector<std::byte> StoredBytes(const cache::LayerCache& layer, uint32_t num_kv_heads) {
  std::vector<std::byte> bytes;
  if (layer.equalization()) {
    Append(bytes, std::as_bytes(std::span(layer.equalization()->mean)));
    Append(bytes, std::as_bytes(std::span(layer.equalization()->scale)));
  }
  for (uint32_t h = 0; h < num_kv_heads; ++h) {
    std::set<const std::byte*> seen;
    for (uint32_t chunk = 0; chunk < layer.num_chunks(); ++chunk) {
      const cache::ChunkSlices slices = layer.Chunk(h, chunk);
      for (const kernels::AttendSlice& slice : slices.span()) {
        const kernels::AttendSegment& segment = slice.segment;
        if (!seen.insert(segment.pages.front()).second) {
          continue;  // the segment of an earlier chunk
        }
        for (const std::byte* page : segment.pages) {
          Append(bytes, {page + segment.record_offset, segment.layout->record_bytes});
        }
      }
    }
  }
  return bytes;
}

}  // namespace kvant::test
