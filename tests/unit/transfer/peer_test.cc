#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>

#include "kvant/transport/loopback.h"
#include "kvant/wire/layer_frame.h"
#include "support/block_reference.h"
#include "unit/transfer/rig.h"

namespace kvant::transfer {
namespace {

using test::Rig;

constexpr uint64_t kSession = 77;
constexpr uint64_t kAnySize = 1 << 24;

// Speaks frames by hand to a sender or receiver on another thread.
class Peer {
 public:
  explicit Peer(transport::Endpoint* endpoint) : endpoint_(endpoint) {}

  void Say(Result<Buffer> frame) {
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    static_cast<void>(endpoint_->Post(std::move(frame).value(), Soon()));
  }
  void SayLayer(uint32_t layer, const codec::LayerBlockLayout& layout, uint64_t session = kSession) {
    wire::BlockFrame frame = wire::AllocateLayer(session, layer, layout).value();
    test::EncodeBlockRef(layout, test::MakeRows(layout.shape, layout.split.total(), 1), frame.block());
    Say(std::move(frame).Seal());
  }
  Buffer Hear() { return endpoint_->Receive(kAnySize, Soon()).value(); }
  // The last message, which must be an error frame.
  wire::Verdict HearError() {
    const Buffer bytes = Hear();
    return wire::DecodeError(wire::OpenFrame(bytes.bytes()).value()).value();
  }

 private:
  static transport::Deadline Soon() { return transport::After(std::chrono::seconds(20)); }
  transport::Endpoint* endpoint_;
};

class ReceiverPeerTest : public testing::Test {
 protected:
  ReceiverPeerTest() : pair_(transport::MakeLoopback().value()), peer_(pair_.first.get()) {
    decode_ = std::thread([this] {
      Receiver receiver(pair_.second.get(), rig_.receiver_options);
      received_.emplace(receiver.Run());
    });
  }
  ~ReceiverPeerTest() override { EXPECT_EQ(rig_.receiver_account.in_use_bytes(), 0U); }

  void Greet() {
    peer_.Say(wire::EncodeHello(kSession, rig_.hello));
    peer_.Hear();
  }
  codec::LayerBlockLayout Layout() const {
    return {rig_.hello.model.shape, rig_.hello.precision.codec, true,
            codec::SplitPrompt(rig_.hello.precision, 200, codec::PromptTail::kEncodeAll)};
  }
  void ExpectRefused(StatusCode code, const std::string& text) {
    const wire::Verdict told = peer_.HearError();
    decode_.join();
    EXPECT_EQ(received_->status().code(), code);
    EXPECT_NE(received_->status().message().find(text), std::string::npos) << received_->status().message();
    EXPECT_EQ(told.code, code);
    EXPECT_EQ(told.text, received_->status().message());
  }

  Rig rig_{"int4", 200};
  transport::LoopbackPair pair_;
  Peer peer_;
  std::optional<Result<Received>> received_;
  std::thread decode_;
};

TEST_F(ReceiverPeerTest, SomethingElseThanAFrame) {
  Buffer request = Buffer::Allocate(64).value();
  std::memset(request.bytes().data(), 'G', 64);
  peer_.Say(std::move(request));
  ExpectRefused(StatusCode::kCorruption, "magic");
}

TEST_F(ReceiverPeerTest, AMessageTooLargeForAHello) {
  peer_.Say(Buffer::Allocate(1 << 20));
  ExpectRefused(StatusCode::kCapacityExceeded, "1048576 bytes where at most");
}

TEST_F(ReceiverPeerTest, ALayerBeforeTheHello) {
  peer_.SayLayer(0, Layout());
  ExpectRefused(StatusCode::kCapacityExceeded, "waiting for a hello frame");
}

TEST_F(ReceiverPeerTest, ADoneBeforeTheHello) {
  peer_.Say(wire::EncodeDone(kSession, {}));
  ExpectRefused(StatusCode::kCorruption, "a done frame where a hello frame is due");
}

TEST_F(ReceiverPeerTest, AnotherSession) {
  Greet();
  peer_.SayLayer(0, Layout(), kSession + 1);
  ExpectRefused(StatusCode::kCorruption, "session 78 in session 77");
}

TEST_F(ReceiverPeerTest, TheWrongLayer) {
  Greet();
  peer_.SayLayer(1, Layout());
  ExpectRefused(StatusCode::kCorruption, "layer 1 where layer 0 is due");
}

TEST_F(ReceiverPeerTest, AnotherShape) {
  Greet();
  codec::LayerBlockLayout layout = Layout();
  layout.shape.head_dim = 36;
  peer_.SayLayer(0, layout);
  ExpectRefused(StatusCode::kCorruption, "not laid out");
}

TEST_F(ReceiverPeerTest, AnotherCodec) {
  Greet();
  codec::LayerBlockLayout layout = Layout();
  layout.codec = codec::TokenCodec::kInt4;
  peer_.SayLayer(0, layout);
  ExpectRefused(StatusCode::kCorruption, "not laid out");
}

TEST_F(ReceiverPeerTest, NoMapWhereOneIsDue) {
  Greet();
  codec::LayerBlockLayout layout = Layout();
  layout.equalized = false;
  peer_.SayLayer(0, layout);
  ExpectRefused(StatusCode::kCorruption, "not laid out");
}

TEST_F(ReceiverPeerTest, FewerTokens) {
  Greet();
  codec::LayerBlockLayout layout = Layout();
  layout.split.num_encoded -= 1;
  peer_.SayLayer(0, layout);
  ExpectRefused(StatusCode::kCorruption, "not laid out");
}

TEST_F(ReceiverPeerTest, AnotherSplitOfTheSameTokens) {
  Greet();
  codec::LayerBlockLayout layout = Layout();
  layout.split = {4, 190, 6};
  peer_.SayLayer(0, layout);
  ExpectRefused(StatusCode::kCorruption, "not laid out");
}

TEST_F(ReceiverPeerTest, AFinishBeforeTheLayers) {
  Greet();
  peer_.SayLayer(0, Layout());
  peer_.Say(wire::EncodeFinish(kSession, rig_.finish));
  ExpectRefused(StatusCode::kCorruption, "a finish frame where a layer frame is due");
}

TEST_F(ReceiverPeerTest, AFinishOfAnotherPrompt) {
  Greet();
  for (uint32_t layer = 0; layer < 4; ++layer) {
    peer_.SayLayer(layer, Layout());
  }
  wire::Finish finish = rig_.finish;
  finish.prompt_tokens.pop_back();
  peer_.Say(wire::EncodeFinish(kSession, finish));
  ExpectRefused(StatusCode::kCorruption, "199 prompt tokens");
}

// Runs a sender against a peer that answers `script` and returns what the sender says.
Status SendTo(const std::function<void(Peer&)>& script) {
  Rig rig("int8", 150);
  transport::LoopbackPair pair = transport::MakeLoopback().value();
  std::thread answers([&] {
    Peer peer(pair.second.get());
    peer.Hear();
    script(peer);
  });
  Sender sender(pair.first.get(), rig.sender_options);
  const Status status = rig.SendAll(sender, rig.ExactPrompt());
  pair.first->Close();
  answers.join();
  return status;
}

TEST(SenderPeerTest, AReplyOfAnotherSession) {
  const Status status = SendTo([](Peer& peer) { peer.Say(wire::EncodeHelloReply(1, {})); });
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_NE(status.message().find("session 1 in session 77"), std::string::npos) << status.message();
}

TEST(SenderPeerTest, AReplyOfAnotherType) {
  const Status status = SendTo([](Peer& peer) { peer.Say(wire::EncodeDone(kSession, {})); });
  EXPECT_EQ(status.code(), StatusCode::kCorruption);
  EXPECT_NE(status.message().find("a done frame where a hello reply frame is due"), std::string::npos);
}

TEST(SenderPeerTest, AnErrorOfAReceiverThatCouldNotReadTheHello) {
  const Status status = SendTo([](Peer& peer) {
    peer.Say(wire::EncodeError(0, {StatusCode::kVersionUnsupported, "frame version 1; this build reads 2"}));
  });
  EXPECT_EQ(status.code(), StatusCode::kVersionUnsupported);
  EXPECT_NE(status.message().find("this build reads 2"), std::string::npos);
}

TEST(SenderPeerTest, ADoneThatCountedOtherBytes) {
  const Status status = SendTo([](Peer& peer) {
    peer.Say(wire::EncodeHelloReply(kSession, {}));
    uint64_t num_bytes = wire::kHeaderBytes + wire::kHelloBytes;
    for (int message = 0; message < 5; ++message) {
      num_bytes += peer.Hear().size();
    }
    peer.Say(wire::EncodeDone(kSession, {num_bytes - 1, 4}));
  });
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("the receiver counted"), std::string::npos) << status.message();
}

TEST(SenderPeerTest, ADoneBeforeTheFinish) {
  const Status status = SendTo([](Peer& peer) {
    peer.Say(wire::EncodeHelloReply(kSession, {}));
    peer.Say(wire::EncodeDone(kSession, {0, 4}));
  });
  EXPECT_TRUE(status.code() == StatusCode::kCorruption || status.code() == StatusCode::kMismatch) << status.message();
}

class SenderMisuseTest : public testing::Test {
 protected:
  Rig rig_{"int8", 150};
  transport::LoopbackPair pair_ = transport::MakeLoopback().value();
  Sender sender_{pair_.first.get(), rig_.sender_options};
  Receiver receiver_{pair_.second.get(), rig_.receiver_options};
  cache::Sequence prompt_ = rig_.ExactPrompt();
  std::thread decode_{[this] { EXPECT_FALSE(receiver_.Run().ok()); }};

  void ExpectInvalid(const Status& status, const char* text) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    EXPECT_EQ(sender_.Finish(rig_.finish).message(), status.message()) << "the first error stays";
    decode_.join();
  }
};

TEST_F(SenderMisuseTest, ALayerBeforeTheHandshake) {
  ExpectInvalid(sender_.SendLayer(0, prompt_.layer(0), nullptr), "not the call that is due");
}

TEST_F(SenderMisuseTest, LayersOutOfOrder) {
  ASSERT_TRUE(sender_.Handshake(rig_.hello).ok());
  ExpectInvalid(sender_.SendLayer(1, prompt_.layer(1), nullptr), "layer 1 where layer 0 is due");
}

TEST_F(SenderMisuseTest, ALayerOfOtherTokens) {
  ASSERT_TRUE(sender_.Handshake(rig_.hello).ok());
  ASSERT_TRUE(prompt_.layer(0).ShrinkExact(1).ok());
  ExpectInvalid(sender_.SendLayer(0, prompt_.layer(0), nullptr), "has not the tokens");
}

TEST_F(SenderMisuseTest, ALayerThatIsEncodedAlready) {
  ASSERT_TRUE(sender_.Handshake(rig_.hello).ok());
  ASSERT_TRUE(prompt_.layer(0).EncodeDue(codec::PromptTail::kEncodeAll, nullptr).ok());
  ExpectInvalid(sender_.SendLayer(0, prompt_.layer(0), nullptr), "at fp16");
}

TEST_F(SenderMisuseTest, AFinishBeforeTheLastLayer) {
  ASSERT_TRUE(sender_.Handshake(rig_.hello).ok());
  ASSERT_TRUE(sender_.SendLayer(0, prompt_.layer(0), nullptr).ok());
  ExpectInvalid(sender_.Finish(rig_.finish), "1 of 4 layers");
}

TEST_F(SenderMisuseTest, AFinishOfAnotherPrompt) {
  ASSERT_TRUE(sender_.Handshake(rig_.hello).ok());
  for (uint32_t layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(sender_.SendLayer(layer, prompt_.layer(layer), nullptr).ok());
  }
  rig_.finish.first_position = 149;
  ExpectInvalid(sender_.Finish(rig_.finish), "first position 149");
}

}  // namespace
}  // namespace kvant::transfer
