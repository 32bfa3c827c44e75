#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "kvant/transfer/receiver.h"
#include "kvant/transfer/sender.h"

namespace kvant::test {

/// A small model's prompt, and what both sides of its transfer need. Everything follows from the arguments.
struct Rig {
  Rig(std::string_view precision_word, uint32_t num_tokens, codec::CacheShape shape = {4, 2, 40});

  /// The prompt at fp16, as prefill leaves it.
  cache::Sequence ExactPrompt(kernels::Isa isa = kernels::Isa::kScalar);
  /// The same prompt encoded where it stands: what must arrive.
  cache::Sequence LocalPrompt();

  /// With a spectrum, the tiers of a layer's tokens that are due, at random; else nothing.
  std::optional<codec::TierMap> TiersOf(const cache::LayerCache& layer, uint32_t index) const;

  /// The sender's whole part.
  Status SendAll(transfer::Sender& sender, const cache::Sequence& prompt) const;

  wire::Hello hello;
  wire::Finish finish;
  transfer::SenderOptions sender_options;
  transfer::ReceiverOptions receiver_options;
  cache::MemoryAccount sender_account;
  cache::MemoryAccount receiver_account;
};

struct Outcome {
  Status sender;
  Result<transfer::Received> received;
  transfer::TransferReport sender_report;
  transfer::TransferReport receiver_report;
};

/// Both sides at once, the receiver on a thread of its own.
Outcome RunBoth(Rig& rig, transport::Endpoint& sender_end, transport::Endpoint& receiver_end);

/// Every byte a layer stores: map, then pages by segment.
std::vector<std::byte> StoredBytes(const cache::LayerCache& layer, uint32_t num_kv_heads);

}  // namespace kvant::test
