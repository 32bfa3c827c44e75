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

TEST(Printable, ShowsControlCharactersByNumberAndLeavesTextAlone) {
  EXPECT_EQ(Printable("plain é 漢 😀 \\"), "plain é 漢 😀 \\");
  EXPECT_EQ(Printable("a\x1b[2Jb\n\t\x7f"), "a\\x1b[2Jb\\x0a\\x09\\x7f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "31m"),
            "\\u009b31m");
  EXPECT_EQ(Printable("\xE2\x80\xAE"
                      "gnp"),
            "\\u202egnp");
}

TEST(Printable, BytesThatAreNoUtf8AreShownOneByOne) {
  EXPECT_EQ(Printable("\x9B\xC2"), "\\x9b\\xc2");
  EXPECT_EQ(Printable("\xE0\x82\x9B"), "\\xe0\\x82\\x9b") << "an overlong form of U+009B";
}

TEST(FormatTable, CellsAreMadePrintable) {
  EXPECT_EQ(FormatTable({{"\x1b", "1"}, {"abcd", "2"}}, false), "\\x1b  1\nabcd  2\n");
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
