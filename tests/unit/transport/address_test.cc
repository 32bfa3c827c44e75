#include "transport/address.h"

#include <gtest/gtest.h>

namespace kvant::transport {
namespace {

TEST(AddressTest, AHostMayBeLeftOut) {
  for (const char* text : {"7000", ":7000", "127.0.0.1:7000", "127.0.0.1:07000"}) {
    EXPECT_EQ(ParseAddress(text).value().text(), "127.0.0.1:7000") << text;
  }
  EXPECT_EQ(ParseAddress("[::1]:7000").value().text(), "[::1]:7000");
  EXPECT_EQ(ParseAddress("0.0.0.0:0").value().text(), "0.0.0.0:0");
}

TEST(AddressTest, LoopbackIsKnown) {
  EXPECT_TRUE(ParseAddress("127.8.9.10:1").value().is_loopback());
  EXPECT_TRUE(ParseAddress("[::1]:1").value().is_loopback());
  EXPECT_FALSE(ParseAddress("0.0.0.0:1").value().is_loopback());
  EXPECT_FALSE(ParseAddress("[::]:1").value().is_loopback());
  EXPECT_FALSE(ParseAddress("192.0.2.7:1").value().is_loopback());
}

TEST(AddressTest, WhatIsNoAddressIsNamed) {
  for (const char* text : {"", ":", "host", "host:", "host:x", "host:65536", "host:-1", "host:1 ", "::1:7000", "[::1]",
                           "[]:1", "[::1:7"}) {
    const Status status = ParseAddress(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message(),
              std::string("'").append(text).append("' is not HOST:PORT, with a port from 0 to 65535"));
  }
  EXPECT_EQ(ParseAddress("no-such-host.invalid:1").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvant::transport
