// A peer that speaks UCX, but not our protocol.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "kvant/transport/ucx.h"
#include "transport/address.h"
#include "transport/ucx/worker.h"

namespace kvant::transport {
namespace {

using Words = std::vector<uint64_t>;

constexpr uint64_t kMagic = 0x5054564B;
constexpr uint64_t kGreetingOfVersion1 = kMagic | uint64_t{1} << 32;
constexpr uint64_t kWindow = 1 << 20;
constexpr unsigned kGreeting = 1;
constexpr unsigned kMessage = 2;
constexpr unsigned kProgress = 3;

Deadline Soon() { return After(std::chrono::seconds(20)); }

class RawPeer {
 public:
  explicit RawPeer(const std::string& address) : worker_(UcxWorker::Create(UcxContext::Create(true).value()).value()) {
    const Address parsed = ParseAddress(address).value();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {parsed.get(), parsed.length};
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {[](void*, ucp_ep_h, ucs_status_t) {}, nullptr};
    EXPECT_EQ(ucp_ep_create(worker_->get(), &params, &endpoint_), UCS_OK);
  }
  ~RawPeer() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    End(ucp_ep_close_nbx(endpoint_, &param));
  }

  void Say(unsigned kind, const Words& header, size_t num_bytes = 0, size_t header_bytes = SIZE_MAX) {
    const std::vector<std::byte> data(num_bytes);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    End(ucp_am_send_nbx(endpoint_, kind, header.data(), std::min(header_bytes, header.size() * sizeof(uint64_t)),
                        data.data(), data.size(), &param));
  }

  // Connecting goes on in the background of its own calls only.
  void StayUntil(const std::atomic<bool>& has_ended) {
    while (!has_ended) {
      if (!worker_->Progress()) {
        worker_->Sleep(After(std::chrono::milliseconds(5)));
      }
    }
  }

 private:
  void End(void* request) {
    const Deadline deadline = Soon();
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS && Clock::now() < deadline) {
      worker_->Progress();
    }
    if (UCS_PTR_IS_PTR(request)) {
      ucp_request_free(request);
    }
  }

  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
};

class UcxPeerTest : public testing::Test {
 protected:
  // What a listener makes of a peer that says these things after it has connected.
  template <typename Talk>
  Status Meet(Talk&& talk) {
    Status ending;
    std::atomic<bool> has_ended = false;
    std::thread listening([&] {
      Result<std::unique_ptr<Endpoint>> endpoint = listener_->Accept(Soon());
      ending = endpoint.status();
      if (endpoint.ok()) {
        endpoint_ = std::move(endpoint).value();
        ending = endpoint_->WaitForRoom(uint64_t{1} << 40, After(std::chrono::seconds(5)));
        while (ending.ok()) {
          ending = endpoint_->Receive(10, Soon()).status();
        }
      }
      has_ended = true;
    });
    {
      RawPeer peer(listener_->address());
      talk(peer);
      peer.StayUntil(has_ended);
      listening.join();
    }
    endpoint_.reset();
    return ending;
  }
  void ExpectFound(const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kTransportClosed);
    EXPECT_NE(status.message().find("does not keep to the protocol"), std::string::npos) << status.message();
  }

  std::unique_ptr<UcxListener> listener_ =
      UcxListener::Listen("0", {.max_queued_bytes = 100'000, .greeting = std::chrono::milliseconds(8000)}).value();
  std::unique_ptr<Endpoint> endpoint_;
};

TEST_F(UcxPeerTest, AnotherGreetingIsRefused) {
  ExpectFound(Meet([](RawPeer& peer) { peer.Say(kGreeting, {kGreetingOfVersion1 ^ 1, kWindow}); }));
  ExpectFound(Meet([](RawPeer& peer) { peer.Say(kGreeting, {kGreetingOfVersion1, 0}); }));
  ExpectFound(Meet([](RawPeer& peer) { peer.Say(kGreeting, {kGreetingOfVersion1, kWindow}, 0, 12); }));
  const Status other = Meet([](RawPeer& peer) { peer.Say(kGreeting, {kMagic | uint64_t{2} << 32, kWindow}); });
  EXPECT_EQ(other.code(), StatusCode::kVersionUnsupported) << other.message();
  const Status silent = Meet([](RawPeer&) {});
  EXPECT_EQ(silent.code(), StatusCode::kTransportClosed) << silent.message();
}

TEST_F(UcxPeerTest, ClaimsAndMessagesThatCannotBeEndTheConnection) {
  const std::pair<unsigned, Words> cases[] = {
      {kGreeting, {kGreetingOfVersion1, kWindow}},  // a second one
      {kProgress, {1, 0, 0}},                       // of a message that was not sent
      {kProgress, {0, 0, UINT64_MAX}},
      {kProgress, {0}},      // too short
      {kMessage, {0}},       // sequences count from 1
      {kMessage, {1, 2}},    // too long
      {kMessage, {999'999}}  // too far ahead
  };
  for (const auto& [kind, header] : cases) {
    ExpectFound(Meet([&, kind = kind, &header = header](RawPeer& peer) {
      peer.Say(kGreeting, {kGreetingOfVersion1, kWindow});
      peer.Say(kind, header, kind == kMessage ? 100 : 0);
    }));
  }
}

TEST_F(UcxPeerTest, AKindThatNobodyKnowsDoesNoHarm) {
  ExpectFound(Meet([](RawPeer& peer) {
    peer.Say(0, {0});
    peer.Say(77, {0}, 100);
    peer.Say(kGreeting, {kGreetingOfVersion1, kWindow});
    peer.Say(65'535, {0}, 5000);
    peer.Say(kMessage, {0}, 100);  // and only this ends it
  }));
}

TEST_F(UcxPeerTest, AFloodIsCutOffAtTheRoom) {
  ExpectFound(Meet([](RawPeer& peer) {
    peer.Say(kGreeting, {kGreetingOfVersion1, kWindow});
    for (uint64_t sequence = 2; sequence < 30; ++sequence) {  // the first one never comes, so nothing is taken
      peer.Say(kMessage, {sequence}, 8000);
    }
  }));
}

}  // namespace
}  // namespace kvant::transport
