// SPDX-License-Identifier: Apache-2.0
// What the gateway needs of the cluster behind it. Implemented by src/rpc over gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lynx/engine_stats.h"
#include "lynx/model_config.h"
#include "lynx/request.h"

namespace lynx {

// One running request. Destroying it cancels the request on every leg.
class Generation {
 public:
  virtual ~Generation() = default;
  // Asks for the end of the request: what was computed until then still comes, and a last output
  // with the timeline (kAbort, unless it ends by itself before; an error when its daemon is lost).
  virtual void Stop() = 0;
};

struct DaemonState {
  std::string name;  // "decode0"
  std::string role;  // "prefill", "decode", "colocated"
  std::string address;
  bool healthy = false;   // answers, and is ready
  bool stuck = false;     // work waits and nothing has progressed for the watchdog's time
  std::string detail;     // why not
  EngineStats stats;      // of the last poll
  int block_size = 0;     // tokens; 0: the daemon has not answered yet
  int max_model_len = 0;  // the longest sequence that it takes; 0: not known yet
  std::string kv_dtype, kv_resident, codec;
};

struct ModelCard {
  std::string name;  // the served name when the configuration gives none
  int max_model_len = 0;
  int vocab_size = 0;
  std::vector<TokenId> eos_ids;
};

class Generator {
 public:
  virtual ~Generator() = default;
  // A decode daemon is connected, its model is loaded and, unless colocated, so is one prefill's.
  virtual bool ready() const = 0;
  virtual std::vector<DaemonState> daemons() const = 0;
  // Sends the request to a decode daemon. `sink` is called from any thread (also from inside this
  // call), one call at a time, in order; the last call has finished(). None begins once the
  // Generation is gone, but one may be under way then: what the sink uses must outlive it. A daemon
  // that is lost on the way is replaced by another one, which goes on where it ended; when none is
  // left, the sink gets kAborted, or kUnavailable when the last one gave the request up by itself
  // or there never was one.
  virtual std::unique_ptr<Generation> Generate(Request request,
                                               std::function<void(EngineOutput)> sink) = 0;
};

}  // namespace lynx
