// SPDX-License-Identifier: Apache-2.0
// What an engine counts, as one value: sent over gRPC to the gateway, which turns it into metrics.
#pragma once

#include <cstdint>
#include <iterator>

namespace lynx {

struct EngineStats {  // a snapshot for /metrics; counters are cumulative
  int num_running = 0, num_waiting = 0;
  int num_deferred = 0;  // of the waiting ones: not for want of room, but for an equal prefix that
                         // is being computed or for a prefill daemon
  int64_t blocks_free = 0, blocks_request = 0, blocks_transfer = 0, blocks_cached = 0,
          blocks_total = 0;
  int64_t block_bytes = 0;
  // kv.resident: exact, 8bit. Blocks that hold packed KV, how many tokens' and in how many bytes;
  // tokens that were encoded and that hits have decoded; time in which that was done.
  int64_t blocks_packed = 0, packed_tokens = 0, packed_bytes = 0;
  int64_t encoded_tokens = 0, restored_tokens = 0;
  int64_t pack_ns = 0, unpack_ns = 0;
  int64_t prompt_tokens = 0, generation_tokens = 0;
  int64_t prompt_tokens_computed = 0, prompt_tokens_cached = 0, prompt_tokens_transferred = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // in tokens
  int64_t num_drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  int64_t self_draft_tokens = 0, self_accepted_tokens = 0;  // of them: by self-speculation
  // verify: source, hold, auto. Decode side: rounds sent, final tokens got, attempts that could
  // not. Prefill side: the same, as answered.
  int64_t source_rounds = 0, source_tokens = 0, source_refusals = 0;
  static constexpr int kNumDraftPositions = 16;  // the last one collects what comes after it
  int64_t accepted_at[kNumDraftPositions] = {};  // by position in the run of drafts
  // Batches by their number of rows: step_rows_le[i] had at most kStepRowLimits[i], the last any.
  static constexpr int kStepRowLimits[] = {1,   8,    16,   32,   64,   128,  256,
                                           512, 1024, 2048, 4096, 8192, 16384};
  int64_t step_rows_le[std::size(kStepRowLimits) + 1] = {};
  int64_t step_rows = 0;         // in all
  int64_t queue_rejections = 0;  // the waiting queue was full
  int64_t queue_timeouts = 0;    // waited too long in it
  int64_t num_preemptions = 0, finished_stop = 0, finished_length = 0, finished_abort = 0,
          finished_error = 0;
  int64_t leases_expired = 0;  // transfers that the receiver did not renew, among the failed
  int64_t transfers_failed = 0, local_prefills = 0, remote_prefills = 0;
  // Decode side: prefill daemons whose last hand-off has failed, and how often one was passed over.
  int64_t prefills_ejected = 0, prefill_ejections = 0;
  int64_t num_steps = 0, last_progress_ns = 0;
  // Hand-off, receiving side, by class: anchor, residual, exact.
  int64_t received_bytes[3] = {0, 0, 0};
  int64_t received_chunks = 0, nacks = 0, checksum_errors = 0;
  // Time in which something waited to be pulled, was being pulled, was checked (and decoded if it
  // was an anchor), was refined.
  int64_t pull_wait_ns = 0, pull_ns = 0, decode_ns = 0, refine_ns = 0;
  // Sending side: in the encoder, and between the end of a prefill and the end of its encoding.
  int64_t encode_ns = 0, encode_exposed_ns = 0;
  int64_t transfers_in_flight = 0, transfer_bytes_in_flight = 0;
};

}  // namespace lynx
