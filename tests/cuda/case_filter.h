#pragma once

#include <set>
#include <string>
#include <utility>

namespace kvant::cuda_test {

/// Which cases are run: those with `text` in their names; in brief only the first one of every kind. Brief hits every
/// kernel and is for tools that slow a kernel down a thousandfold (racecheck).
class CaseFilter {
 public:
  CaseFilter(std::string text, bool brief) : text_(std::move(text)), brief_(brief) {}

  bool Wants(const std::string& name) const { return name.find(text_) != std::string::npos; }
  bool IsNew(const std::string& kind) { return !brief_ || kinds_.insert(kind).second; }
  bool brief() const { return brief_; }

 private:
  std::string text_;
  bool brief_;
  std::set<std::string> kinds_;
};

}  // namespace kvant::cuda_test
