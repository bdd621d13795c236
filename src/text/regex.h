// SPDX-License-Identifier: Apache-2.0
// One compiled Oniguruma pattern, the dialect that tokenizer.json files are written in.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lynx/status.h"

struct re_pattern_buffer;
struct re_registers;

namespace lynx {

// Immutable; any thread. Texts must be valid UTF-8.
class Regex {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;  // byte offsets into the text
  };

  // Scratch space of one scan, so that a match allocates nothing.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    re_registers* region_;
  };

  static absl::StatusOr<Regex> Create(const std::string& pattern);

  // The first match that begins at `from` or later; none also when the engine gives up on a text.
  std::optional<Match> Search(std::string_view text, size_t from, Scratch* scratch) const;

 private:
  struct Free {
    void operator()(re_pattern_buffer* regex) const;
  };
  explicit Regex(re_pattern_buffer* regex) : regex_(regex) {}
  std::unique_ptr<re_pattern_buffer, Free> regex_;
};

}  // namespace lynx
