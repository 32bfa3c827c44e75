#include "kvant/transport/ucx.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "support/endpoint_pair.h"

namespace kvant::transport {
namespace {

using std::chrono::milliseconds;
using test::Carrier;

constexpr uint64_t kAnySize = uint64_t{1} << 40;

Deadline Soon() { return After(std::chrono::seconds(20)); }

Buffer Message(size_t num_bytes) {
  Buffer message = Buffer::Allocate(num_bytes).value();
  std::memset(message.bytes().data(), 1, num_bytes);
  return message;
}

uint64_t ResidentBytes() {
  uint64_t total = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

size_t Entries(const char* folder) {
  const std::filesystem::directory_iterator begin(folder);
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

// The ways a connection can end with everything under way.
void BreakOff(uint64_t round) {
  test::EndpointPair pair = test::Connect(Carrier::kUcx);
  for (const size_t size : {100, 5000, 50'000, 500'000, 2'000'000}) {
    ASSERT_TRUE(pair.first->Post(Message(size), round % 3 == 1 ? After(milliseconds(1)) : Soon()).ok());
    ASSERT_TRUE(pair.second->Post(Message(size), Soon()).ok());
  }
  for (uint64_t i = 0; i < round % 4; ++i) {
    static_cast<void>(pair.second->Receive(round % 2 == 0 ? kAnySize : 20'000, After(milliseconds(2))));
  }
  if (round % 5 == 0) {
    static_cast<void>(pair.first->Cancel(4));
  }
  if (round % 2 == 0) {
    pair.first.reset();
  }
}

TEST(UcxTest, NothingIsLeftOfBrokenConnections) {
  for (uint64_t round = 0; round < 15; ++round) {  // UCX's own pools are filled
    BreakOff(round);
  }
  const size_t files = Entries("/proc/self/fd");
  const size_t threads = Entries("/proc/self/task");
  [[maybe_unused]] const uint64_t resident = ResidentBytes();
  for (uint64_t round = 0; round < 100; ++round) {
    BreakOff(round);
  }
  EXPECT_EQ(Entries("/proc/self/fd"), files);
  EXPECT_EQ(Entries("/proc/self/task"), threads);
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory for a while, and finds leaks itself
  // A connection leaves a few KiB in UCX's registries; a message kept a round would leave a hundred megabytes.
  EXPECT_LT(ResidentBytes(), resident + (uint64_t{32} << 20));
#endif
}

TEST(UcxTest, AnnouncedMessagesTakeNoMemoryBeforeTheyAreExpected) {
  constexpr size_t kBig = size_t{100} << 20;
  const UcxOptions options{.max_queued_bytes = uint64_t{1} << 30};
  test::EndpointPair pair = test::Connect(Carrier::kUcx, 0, options.max_queued_bytes);
  ASSERT_TRUE(pair.first->Post(Message(kBig), Soon()).ok());
  std::this_thread::sleep_for(milliseconds(100));
  const uint64_t before = ResidentBytes();
  EXPECT_EQ(pair.second->Receive(1000, Soon()).status().code(), StatusCode::kCapacityExceeded);
  EXPECT_LT(ResidentBytes(), before + kBig / 10);
  EXPECT_TRUE(pair.first->Wait(Soon()).value().status.ok()) << "it was delivered, and dropped there";
}

TEST(UcxTest, ConnectionsWithoutTrafficTakeNoTime) {
  const test::EndpointPair pair = test::Connect(Carrier::kUcx);
  std::this_thread::sleep_for(milliseconds(100));
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = used();
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_LT(used() - before, 0.02);
}

TEST(UcxTest, NobodyListens) {
  std::string address;
  { address = UcxListener::Listen("0").value()->address(); }
  const Status status = ConnectUcx(address, After(std::chrono::seconds(5))).status();
  EXPECT_TRUE(status.code() == StatusCode::kTransportClosed || status.code() == StatusCode::kTimeout);
  EXPECT_NE(status.message().find(address), std::string::npos) << status.message();
}

TEST(UcxTest, AListenerThatDoesNotAcceptIsGivenUpAtTheDeadline) {
  const auto listener = UcxListener::Listen("0").value();
  const auto start = Clock::now();
  EXPECT_EQ(ConnectUcx(listener->address(), After(milliseconds(100))).status().code(), StatusCode::kTimeout);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(UcxTest, NobodyConnects) {
  const auto listener = UcxListener::Listen("0").value();
  EXPECT_EQ(listener->Accept(After(milliseconds(20))).status().code(), StatusCode::kTimeout);
}

TEST(UcxTest, WhoGaveUpWaitingIsPassedOverByAName) {
  const auto listener = UcxListener::Listen("0", {.greeting = milliseconds(200)}).value();
  EXPECT_FALSE(ConnectUcx(listener->address(), After(milliseconds(50))).ok());
  std::unique_ptr<Endpoint> honest;
  std::thread other([&] { honest = ConnectUcx(listener->address(), Soon()).value(); });
  Result<std::unique_ptr<Endpoint>> accepted = Status(StatusCode::kTimeout, "");
  for (int i = 0; i < 3 && !accepted.ok(); ++i) {
    accepted = listener->Accept(Soon());
  }
  EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  other.join();
}

TEST(UcxTest, AnEndpointOutlivesItsListener) {
  test::EndpointPair pair = test::Connect(Carrier::kUcx);  // whose listener is gone by now
  ASSERT_TRUE(pair.first->Post(Message(1'000'000), Soon()).ok());
  EXPECT_EQ(pair.second->Receive(kAnySize, Soon()).value().size(), 1'000'000U);
}

TEST(UcxTest, OptionsAndAddressesOutOfRangeAreNamed) {
  EXPECT_NE(UcxListener::Listen("0", {.gigabits_per_second = -1}).status().message().find("gigabits_per_second"),
            std::string::npos);
  EXPECT_FALSE(ConnectUcx("1", Soon(), {.gigabits_per_second = std::nan("")}).ok());
  EXPECT_NE(UcxListener::Listen("0", {.max_queued_bytes = 0}).status().message().find("max_queued_bytes"),
            std::string::npos);
  EXPECT_EQ(UcxListener::Listen("nonsense").status().code(), StatusCode::kInvalidArgument);
  const Status not_ours = UcxListener::Listen("192.0.2.1:7000").status();
  EXPECT_EQ(not_ours.code(), StatusCode::kIoError);
  EXPECT_NE(not_ours.message().find("192.0.2.1:7000"), std::string::npos);
  const auto first = UcxListener::Listen("0").value();
  EXPECT_EQ(UcxListener::Listen(first->address()).status().code(), StatusCode::kIoError);
}

}  // namespace
}  // namespace kvant::transport
