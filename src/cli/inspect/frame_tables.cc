#include "cli/inspect/frame_tables.h"

#include <fmt/core.h>

#include <vector>

#include "cli/format.h"

namespace kvant::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

const Json& Content(const Json& frame) {
  static const Json kNothing = Json::object();
  return frame.contains("content") ? frame["content"] : kNothing;
}

bool IsLayer(const Json& frame) { return Content(frame).contains("sections"); }

std::string Word(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string ChecksumWord(const Json& frame) {
  if (!frame.contains("checksum")) {
    return "-";
  }
  return frame["checksum"]["stored"] == frame["checksum"]["computed"] ? "right" : "WRONG";
}

std::vector<std::string> LayerCells(const Json& content) {
  const Json& tokens = content["tokens"];
  const Json& tiers = content["tiers"];
  return {
      fmt::format("{} + {} + {}", Word(tokens["sinks"]), Word(tokens["encoded"]), Word(tokens["tail"])),
      fmt::format("{}{}", Word(content["codec"]), content["equalized"] == true ? ", equalized" : ""),
      fmt::format("{} {} {} {}", Word(tiers["fp16"]), Word(tiers["int8"]), Word(tiers["int4"]), Word(tiers["dropped"])),
      fmt::format("{:.3f}", content["bits"]["effective"].get<double>())};
}

Rows SummaryRows(const Json& frames) {
  Rows rows = {{"frame", "type", "layer", "at byte", "bytes", "checksum", "errors", "sinks + encoded + tail", "codec",
                "fp16 int8 int4 dropped", "bits"}};
  for (const Json& frame : frames) {
    std::vector<std::string> row = {fmt::format("{}", rows.size() - 1),
                                    frame.value("type", "-"),
                                    IsLayer(frame) || frame.value("type", "") == "maps" ? Word(frame["layer"]) : "-",
                                    Word(frame["offset"]),
                                    frame.contains("bytes") ? Word(frame["bytes"]) : "-",
                                    ChecksumWord(frame),
                                    fmt::format("{}", frame["errors"].size())};
    if (IsLayer(frame)) {
      const std::vector<std::string> cells = LayerCells(Content(frame));
      row.insert(row.end(), cells.begin(), cells.end());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Every field of a frame, nested ones by their path.
void AddFields(const std::string& prefix, const Json& value, Rows* rows) {
  for (const auto& [name, field] : value.items()) {
    if (field.is_object()) {
      AddFields(prefix + name + ".", field, rows);
    } else if (name != "errors") {
      rows->push_back({prefix + name, Word(field)});
    }
  }
}

std::string TotalsText(const Json& frames) {
  Json totals = Json::object();
  for (const Json& frame : frames) {
    if (IsLayer(frame)) {
      for (const auto& [name, bytes] : Content(frame)["sections"].items()) {
        totals[name] = totals.value(name, uint64_t{0}) + bytes.get<uint64_t>();
      }
    }
  }
  Rows rows;
  for (const auto& [name, bytes] : totals.items()) {
    rows.push_back({"layers: " + name, FormatBytes(bytes.get<uint64_t>())});
  }
  return rows.empty() ? "" : fmt::format("\n{}", FormatTable(rows, /*header=*/false));
}

std::string ErrorLine(const std::string& where, const Json& error) {
  return fmt::format("{}\n", Printable(fmt::format("{}{}: {}", where, Word(error["code"]), Word(error["message"]))));
}

std::string ErrorsText(const Json& report) {
  std::string text;
  for (size_t i = 0; i < report["frames"].size(); ++i) {
    const Json& frame = report["frames"][i];
    for (const Json& error : frame["errors"]) {
      text += ErrorLine(fmt::format("frame {} at byte {}: ", i, Word(frame["offset"])), error);
    }
  }
  for (const Json& error : report["errors"]) {
    text += ErrorLine("", error);
  }
  return text.empty() ? "" : fmt::format("\n{}", text);
}

}  // namespace

std::string FramesText(const Json& report) {
  const Json& frames = report["frames"];
  std::string text =
      Printable(Word(report["file"])) + fmt::format(": {} bytes, {} frame{}\n", Word(report["bytes"]),
                                                    Word(report["num_frames"]), report["num_frames"] == 1 ? "" : "s");
  if (frames.size() == 1) {
    Rows rows;
    AddFields("", frames[0], &rows);
    text += FormatTable(rows, /*header=*/false);
  } else if (!frames.empty()) {
    text += FormatTable(SummaryRows(frames), /*header=*/true) + TotalsText(frames);
  }
  return text + ErrorsText(report);
}

}  // namespace kvant::cli
