#include "cli/precision_list.h"

#include <gtest/gtest.h>

namespace kvant::cli {
namespace {

TEST(PrecisionList, OptionsBelongToTheWordBeforeThem) {
  EXPECT_EQ(SplitPrecisionList("fp16,pnmix:3/1@50%,v=2,rule=qk,int8,eq=off,spectrum:b=0.5"),
            (std::vector<std::string>{"fp16", "pnmix:3/1@50%,v=2,rule=qk", "int8,eq=off", "spectrum:b=0.5"}));
  EXPECT_EQ(ParsePlainPrecisionList("int8,pnmix:3/1@50%").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvant::cli
