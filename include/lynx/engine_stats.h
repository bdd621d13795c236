// SPDX-License-Identifier: Apache-2.0
// What an engine counts, as one value: sent over gRPC to the gateway, which turns it into metrics.
#pragma once

#include <cstdint>

namespace lynx {

struct EngineStats {  // a snapshot for /metrics; counters are cumulative
  int num_running = 0, num_waiting = 0;
  int64_t blocks_free = 0, blocks_request = 0, blocks_transfer = 0, blocks_cached = 0,
          blocks_total = 0;
  int64_t prompt_tokens = 0, generation_tokens = 0;
  int64_t prompt_tokens_computed = 0, prompt_tokens_cached = 0, prompt_tokens_transferred = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // in tokens
  int64_t num_drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  int64_t num_preemptions = 0, finished_stop = 0, finished_length = 0, finished_abort = 0,
          finished_error = 0;
  int64_t transfers_failed = 0, local_prefills = 0, remote_prefills = 0;
  int64_t num_steps = 0, last_progress_ns = 0;
  // Hand-off, receiving side, by class: anchor, residual, exact.
  int64_t received_bytes[3] = {0, 0, 0};
  int64_t received_chunks = 0, nacks = 0, checksum_errors = 0;
  int64_t transfers_in_flight = 0, transfer_bytes_in_flight = 0;
};

}  // namespace lynx
