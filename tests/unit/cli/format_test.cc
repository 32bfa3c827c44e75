#include "cli/format.h"

#include <gtest/gtest.h>

namespace kvant::cli {
namespace {

TEST(FormatTable, FirstColumnLeftOthersRightHeaderUnderlined) {
  EXPECT_EQ(FormatTable({{"name", "size"}, {"a", "12"}, {"long name", "3"}}, true),
            "name       size\n"
            "---------  ----\n"
            "a            12\n"
            "long name     3\n");
}

TEST(FormatTable, RowsMayBeShortAndNothingTrails) {
  EXPECT_EQ(FormatTable({{"a", "b", "c"}, {"d"}}, false), "a  b  c\nd\n");
}

TEST(FormatTable, WidthIsCountedInCharactersNotBytes) {
  EXPECT_EQ(FormatTable({{"é", "1"}, {"ab", "2"}}, false), "é   1\nab  2\n");
}

TEST(FormatBytes, ThreeFiguresAndNeverAThousand) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "1.00 kB");
  EXPECT_EQ(FormatBytes(9994), "9.99 kB");
  EXPECT_EQ(FormatBytes(9996), "10.0 kB");
  EXPECT_EQ(FormatBytes(99'960), "100 kB");
  EXPECT_EQ(FormatBytes(999'499), "999 kB");
  EXPECT_EQ(FormatBytes(999'500), "1.00 MB");
  EXPECT_EQ(FormatBytes(98'362'432), "98.4 MB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "18.4 EB");
}

}  // namespace
}  // namespace kvant::cli
