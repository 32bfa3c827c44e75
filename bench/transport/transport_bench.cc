// Messages a second and bytes a second through each transport, both ends in this process: one thread posts, one
// receives. Carriers are called in turn, so that whatever else the machine does meets all of them alike.
//
//   kvant_transport_bench [ROUNDS]
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "support/endpoint_pair.h"

namespace kvant {
namespace {

using transport::Clock;

constexpr uint64_t kBytesACall = uint64_t{256} << 20;
constexpr uint64_t kMessagesACall = 20'000;
constexpr std::chrono::seconds kLong{60};

Buffer Message(size_t num_bytes) {
  Buffer message = Buffer::Allocate(num_bytes).value();
  std::memset(message.bytes().data(), 1, num_bytes);
  return message;
}

// Seconds from the first message posted to the last one received; messages are made before.
double Call(const test::EndpointPair& pair, size_t num_bytes, uint64_t num_messages) {
  std::vector<Buffer> messages;
  for (uint64_t i = 0; i < num_messages; ++i) {
    messages.push_back(Message(num_bytes));
  }
  const auto begin = Clock::now();
  std::thread sending([&] {
    for (Buffer& message : messages) {
      if (pair.first->WaitForRoom(num_bytes, transport::After(kLong)).ok()) {
        static_cast<void>(pair.first->Post(std::move(message), transport::After(kLong)).value());
      }
      static_cast<void>(pair.first->Poll());
    }
  });
  for (uint64_t i = 0; i < num_messages; ++i) {
    static_cast<void>(pair.second->Receive(num_bytes, transport::After(kLong)).value());
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  sending.join();
  while (pair.first->Wait(transport::After(kLong)).ok()) {
  }
  return seconds;
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(const std::vector<test::EndpointPair>& pairs, size_t num_bytes, int rounds) {
  const uint64_t num_messages = std::min(kMessagesACall, kBytesACall / num_bytes);
  std::vector<std::vector<double>> seconds(pairs.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double passed = Call(pairs[i], num_bytes, num_messages);
      if (round > 0) {  // the first one fills pools
        seconds[i].push_back(passed);
      }
    }
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const double median = MedianOf(seconds[i]);
    const auto messages = static_cast<double>(num_messages);
    fmt::print("{:<16} {:>9} B {:>12.0f} messages/s {:>8.3f} GB/s  {:>6.3f} of loopback\n",
               test::CarrierName(test::Carriers()[i]), num_bytes, messages / median,
               messages * static_cast<double>(num_bytes) / median / 1e9, MedianOf(seconds[0]) / median);
  }
}

}  // namespace
}  // namespace kvant

int main(int argc, char** argv) {
  int rounds = 7;
  if (argc > 2 ||
      (argc == 2 && (std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), rounds).ptr == argv[1] || rounds < 1))) {
    fmt::print(stderr, "usage: kvant_transport_bench [ROUNDS]\n");
    return 2;
  }
  std::vector<kvant::test::EndpointPair> pairs;
  for (const kvant::test::Carrier carrier : kvant::test::Carriers()) {
    pairs.push_back(kvant::test::Connect(carrier));
  }
  for (const size_t num_bytes : {64, 4096, 65'536, 1 << 20, 8 << 20}) {
    kvant::Measure(pairs, num_bytes, rounds);
  }
  return 0;
}
