// SPDX-License-Identifier: Apache-2.0
// The only way into the engine from other threads: a queue of commands and a wake-up.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"

namespace lynx {

struct SubmitCommand {
  Request request;
  OutputSink sink;
};
struct SubmitPrefillCommand {
  RemotePrefillRequest job;
  PrefillSink sink;
};
struct CancelCommand {
  std::string request_id;
};
struct CancelPrefillCommand {
  AttemptId attempt;
};
struct StopCommand {
  bool drain = false;
};
using Command = std::variant<SubmitCommand, SubmitPrefillCommand, VerifyRequest, CancelCommand,
                             CancelPrefillCommand, RemotePrefillEvent, StopCommand>;

// Any thread. Shared between the engine and the sinks it gave to peers, which may outlive it.
class Inbox {
 public:
  // False when closed; the command is then untouched.
  bool Push(Command&& command);
  void Wake();
  // Moves what has come into `commands` (cleared first).
  void Take(std::vector<Command>& commands);
  // Sleeps until a command comes or Wake is called (true), or the time is over (false).
  bool Wait(int64_t timeout_ns);
  // Nothing comes after this.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<Command> commands_;
  bool awake_ = false;
  bool closed_ = false;
};

}  // namespace lynx
