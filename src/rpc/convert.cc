// SPDX-License-Identifier: Apache-2.0
#include "rpc/convert.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

namespace lynx {
namespace {

template <typename From, typename To>
void CopyIds(const From& from, To* to) {
  to->Reserve(static_cast<int>(from.size()));
  for (TokenId id : from) to->Add(id);
}

template <typename From>
std::vector<TokenId> Ids(const From& from) {
  return {from.begin(), from.end()};
}

template <typename From>
absl::StatusOr<std::vector<TokenId>> CheckedIds(const char* field, const From& from,
                                                int vocab_size) {
  for (TokenId id : from) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": token id ", id, " is not in 0..", vocab_size - 1));
    }
  }
  return Ids(from);
}

absl::StatusOr<VerifyMode> VerifyModeFromProto(uint32_t mode) {
  if (mode < kVerifyModeNames.size()) return static_cast<VerifyMode>(mode);
  return absl::InvalidArgumentError(
      absl::StrCat("verify: ", mode, " is not in 0..", kVerifyModeNames.size() - 1));
}

v1::Sampling SamplingToProto(const SamplingParams& s) {
  v1::Sampling m;
  m.set_temperature(s.temperature);
  m.set_top_p(s.top_p);
  m.set_top_k(s.top_k);
  m.set_min_p(s.min_p);
  m.set_presence_penalty(s.presence_penalty);
  m.set_frequency_penalty(s.frequency_penalty);
  m.set_repetition_penalty(s.repetition_penalty);
  m.set_seed(s.seed);
  for (const auto& [id, bias] : s.logit_bias) {
    auto* b = m.add_logit_bias();
    b->set_id(id);
    b->set_bias(bias);
  }
  CopyIds(s.allowed_token_ids, m.mutable_allowed_token_ids());
  CopyIds(s.stop_token_ids, m.mutable_stop_token_ids());
  m.set_min_tokens(s.min_tokens);
  m.set_max_tokens(s.max_tokens);
  m.set_num_logprobs(s.num_logprobs);
  m.set_num_prompt_logprobs(s.num_prompt_logprobs);
  return m;
}

absl::Status CheckFinite(const char* field, float value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not finite"));
}

// What is not a number has no place in an order, and sampling sorts.
absl::Status CheckFinite(const v1::Sampling& m) {
  LYNX_RETURN_IF_ERROR(CheckFinite("temperature", m.temperature()));
  LYNX_RETURN_IF_ERROR(CheckFinite("top_p", m.top_p()));
  LYNX_RETURN_IF_ERROR(CheckFinite("min_p", m.min_p()));
  LYNX_RETURN_IF_ERROR(CheckFinite("presence_penalty", m.presence_penalty()));
  LYNX_RETURN_IF_ERROR(CheckFinite("frequency_penalty", m.frequency_penalty()));
  LYNX_RETURN_IF_ERROR(CheckFinite("repetition_penalty", m.repetition_penalty()));
  for (const auto& b : m.logit_bias()) LYNX_RETURN_IF_ERROR(CheckFinite("logit_bias", b.bias()));
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> SamplingFromProto(const v1::Sampling& m, int vocab_size) {
  LYNX_RETURN_IF_ERROR(CheckFinite(m));
  SamplingParams s;
  s.temperature = m.temperature();
  s.top_p = m.top_p();
  s.top_k = m.top_k();
  s.min_p = m.min_p();
  s.presence_penalty = m.presence_penalty();
  s.frequency_penalty = m.frequency_penalty();
  s.repetition_penalty = m.repetition_penalty();
  s.seed = m.seed();
  for (const auto& b : m.logit_bias()) {
    if (b.id() < 0 || b.id() >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias: token id ", b.id(), " is not in 0..", vocab_size - 1));
    }
    s.logit_bias.emplace_back(b.id(), b.bias());
  }
  LYNX_ASSIGN_OR_RETURN(s.allowed_token_ids,
                        CheckedIds("allowed_token_ids", m.allowed_token_ids(), vocab_size));
  LYNX_ASSIGN_OR_RETURN(s.stop_token_ids,
                        CheckedIds("stop_token_ids", m.stop_token_ids(), vocab_size));
  s.min_tokens = m.min_tokens();
  s.max_tokens = m.max_tokens();
  s.num_logprobs = m.num_logprobs();
  s.num_prompt_logprobs = m.num_prompt_logprobs();
  if (!(s.repetition_penalty > 0)) {
    return absl::InvalidArgumentError("repetition_penalty: must be greater than 0");
  }
  return s;
}

void TokenToProto(const TokenOutput& token, v1::Token* m) {
  m->set_id(token.id);
  m->set_logprob(token.logprob);
  m->set_rank(token.rank);
  for (const TokenLogprob& t : token.top) {
    auto* top = m->add_top();
    top->set_id(t.id);
    top->set_logprob(t.logprob);
    top->set_rank(t.rank);
  }
}

TokenOutput TokenFromProto(const v1::Token& m) {
  TokenOutput token{.id = m.id(), .logprob = m.logprob(), .rank = m.rank(), .top = {}};
  for (const auto& t : m.top()) token.top.push_back({t.id(), t.logprob(), t.rank()});
  return token;
}

template <typename Field>
void PromptLogprobsToProto(const std::vector<std::optional<TokenOutput>>& list, Field* field) {
  for (const auto& token : list) {
    auto* m = field->Add();
    if (token) TokenToProto(*token, m->mutable_token());
  }
}

template <typename Field>
std::vector<std::optional<TokenOutput>> PromptLogprobsFromProto(const Field& field) {
  std::vector<std::optional<TokenOutput>> list;
  list.reserve(field.size());
  for (const auto& m : field) {
    list.push_back(m.has_token() ? std::optional(TokenFromProto(m.token())) : std::nullopt);
  }
  return list;
}

void TimelineToProto(const Timeline& t, v1::TimelineMessage* m) {
  const int64_t origin = t.at(Event::kArrived);
  for (int64_t at : t.at_ns) m->add_event_ns(at == 0 ? -1 : at - origin);
  for (int64_t at : t.token_ns) m->add_token_ns(at - origin);
  m->set_num_drafted(t.num_drafted);
  m->set_num_accepted(t.num_accepted);
  m->set_num_handoffs(t.num_handoffs);
  for (int64_t bytes : t.stage_bytes) m->add_stage_bytes(bytes);
  for (int64_t at : t.provisional_ns) m->add_provisional_ns(at - origin);
  m->set_verify(static_cast<uint32_t>(t.verify));
  m->set_num_verify_rounds(t.num_verify_rounds);
  m->set_num_source_tokens(t.num_source_tokens);
  m->set_estimated_residual_ns(t.estimated_residual_ns);
  m->set_estimated_source_ns(t.estimated_source_ns);
  m->set_anchor(t.anchor);
  m->set_estimated_anchor_ns(t.estimated_anchor_ns);
  m->set_num_self_drafted(t.num_self_drafted);
  m->set_num_self_accepted(t.num_self_accepted);
}

// The received timeline starts at 1 ns, so that "did not happen" stays 0.
Timeline TimelineFromProto(const v1::TimelineMessage& m) {
  Timeline t;
  const size_t n = std::min<size_t>(t.at_ns.size(), m.event_ns_size());
  for (size_t i = 0; i < n; ++i) t.at_ns[i] = m.event_ns(i) < 0 ? 0 : m.event_ns(i) + 1;
  for (int64_t at : m.token_ns()) t.token_ns.push_back(at + 1);
  t.num_drafted = m.num_drafted();
  t.num_accepted = m.num_accepted();
  t.num_handoffs = m.num_handoffs();
  t.stage_bytes.assign(m.stage_bytes().begin(), m.stage_bytes().end());
  for (int64_t at : m.provisional_ns()) t.provisional_ns.push_back(at + 1);
  t.verify = VerifyModeFromProto(m.verify()).value_or(VerifyMode::kResidual);
  t.num_verify_rounds = m.num_verify_rounds();
  t.num_source_tokens = m.num_source_tokens();
  t.estimated_residual_ns = m.estimated_residual_ns();
  t.estimated_source_ns = m.estimated_source_ns();
  t.anchor = m.anchor();
  t.estimated_anchor_ns = m.estimated_anchor_ns();
  t.num_self_drafted = m.num_self_drafted();
  t.num_self_accepted = m.num_self_accepted();
  return t;
}

absl::Status ErrorFromProto(int code, const std::string& message) {
  return code == 0 ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(code), message);
}

struct Counter {
  const char* name;
  int64_t EngineStats::*field;
};

constexpr Counter kCounters[] = {
    {"blocks_free", &EngineStats::blocks_free},
    {"blocks_request", &EngineStats::blocks_request},
    {"blocks_transfer", &EngineStats::blocks_transfer},
    {"blocks_cached", &EngineStats::blocks_cached},
    {"blocks_total", &EngineStats::blocks_total},
    {"block_bytes", &EngineStats::block_bytes},
    {"blocks_packed", &EngineStats::blocks_packed},
    {"packed_tokens", &EngineStats::packed_tokens},
    {"packed_bytes", &EngineStats::packed_bytes},
    {"encoded_tokens", &EngineStats::encoded_tokens},
    {"restored_tokens", &EngineStats::restored_tokens},
    {"pack_ns", &EngineStats::pack_ns},
    {"unpack_ns", &EngineStats::unpack_ns},
    {"prompt_tokens", &EngineStats::prompt_tokens},
    {"generation_tokens", &EngineStats::generation_tokens},
    {"prompt_tokens_computed", &EngineStats::prompt_tokens_computed},
    {"prompt_tokens_cached", &EngineStats::prompt_tokens_cached},
    {"prompt_tokens_transferred", &EngineStats::prompt_tokens_transferred},
    {"prefix_queries", &EngineStats::prefix_queries},
    {"prefix_hits", &EngineStats::prefix_hits},
    {"num_drafts", &EngineStats::num_drafts},
    {"draft_tokens", &EngineStats::draft_tokens},
    {"accepted_tokens", &EngineStats::accepted_tokens},
    {"self_draft_tokens", &EngineStats::self_draft_tokens},
    {"self_accepted_tokens", &EngineStats::self_accepted_tokens},
    {"source_rounds", &EngineStats::source_rounds},
    {"source_tokens", &EngineStats::source_tokens},
    {"source_refusals", &EngineStats::source_refusals},
    {"step_rows", &EngineStats::step_rows},
    {"queue_rejections", &EngineStats::queue_rejections},
    {"queue_timeouts", &EngineStats::queue_timeouts},
    {"leases_expired", &EngineStats::leases_expired},
    {"num_preemptions", &EngineStats::num_preemptions},
    {"finished_stop", &EngineStats::finished_stop},
    {"finished_length", &EngineStats::finished_length},
    {"finished_abort", &EngineStats::finished_abort},
    {"finished_error", &EngineStats::finished_error},
    {"transfers_failed", &EngineStats::transfers_failed},
    {"prefills_ejected", &EngineStats::prefills_ejected},
    {"prefill_ejections", &EngineStats::prefill_ejections},
    {"local_prefills", &EngineStats::local_prefills},
    {"remote_prefills", &EngineStats::remote_prefills},
    {"num_steps", &EngineStats::num_steps},
    {"received_chunks", &EngineStats::received_chunks},
    {"nacks", &EngineStats::nacks},
    {"checksum_errors", &EngineStats::checksum_errors},
    {"transfers_in_flight", &EngineStats::transfers_in_flight},
    {"transfer_bytes_in_flight", &EngineStats::transfer_bytes_in_flight},
    {"pull_wait_ns", &EngineStats::pull_wait_ns},
    {"pull_ns", &EngineStats::pull_ns},
    {"decode_ns", &EngineStats::decode_ns},
    {"refine_ns", &EngineStats::refine_ns},
    {"encode_ns", &EngineStats::encode_ns},
    {"encode_exposed_ns", &EngineStats::encode_exposed_ns},
};
constexpr const char* kReceivedBytes[] = {"received_bytes_anchor", "received_bytes_residual",
                                          "received_bytes_exact"};

// Calls visit(name, value) for what is not in kCounters.
template <typename Stats, typename Visit>
void VisitOtherCounters(Stats& stats, Visit&& visit) {
  visit("num_running", stats.num_running);
  visit("num_waiting", stats.num_waiting);
  visit("num_deferred", stats.num_deferred);
  for (int i = 0; i < 3; ++i) visit(kReceivedBytes[i], stats.received_bytes[i]);
  const auto visit_each = [&](const char* prefix, auto& values) {
    for (size_t i = 0; i < std::size(values); ++i) visit(absl::StrCat(prefix, i), values[i]);
  };
  visit_each("accepted_at_", stats.accepted_at);
  visit_each("step_rows_le_", stats.step_rows_le);
}

}  // namespace

v1::GenerateRequest ToProto(const Request& request) {
  v1::GenerateRequest m;
  m.set_id(request.id);
  CopyIds(request.prompt_ids, m.mutable_prompt_ids());
  CopyIds(request.emitted_ids, m.mutable_emitted_ids());
  *m.mutable_sampling() = SamplingToProto(request.sampling);
  m.set_cache_salt(request.cache_salt);
  m.set_priority(request.priority);
  m.set_client(request.client);
  m.set_show_drafts(request.show_drafts);
  if (request.verify) m.set_verify(static_cast<uint32_t>(*request.verify));
  return m;
}

absl::StatusOr<Request> FromProto(const v1::GenerateRequest& m, int vocab_size) {
  Request request;
  request.id = m.id();
  if (request.id.empty()) return absl::InvalidArgumentError("id: missing");
  LYNX_ASSIGN_OR_RETURN(request.prompt_ids, CheckedIds("prompt_ids", m.prompt_ids(), vocab_size));
  if (request.prompt_ids.empty()) return absl::InvalidArgumentError("prompt_ids: empty");
  LYNX_ASSIGN_OR_RETURN(request.emitted_ids,
                        CheckedIds("emitted_ids", m.emitted_ids(), vocab_size));
  LYNX_ASSIGN_OR_RETURN(request.sampling, SamplingFromProto(m.sampling(), vocab_size));
  request.cache_salt = m.cache_salt();
  request.priority = m.priority();
  request.client = m.client();
  request.show_drafts = m.show_drafts();
  if (m.has_verify()) {
    LYNX_ASSIGN_OR_RETURN(request.verify, VerifyModeFromProto(m.verify()));
  }
  return request;
}

v1::GenerateReply ToProto(const EngineOutput& output) {
  v1::GenerateReply m;
  for (const TokenOutput& token : output.tokens) TokenToProto(token, m.add_tokens());
  CopyIds(output.drafts, m.mutable_drafts());
  m.set_num_revoked_drafts(output.num_revoked_drafts);
  PromptLogprobsToProto(output.prompt_logprobs, m.mutable_prompt_logprobs());
  m.set_finish_reason(static_cast<uint32_t>(output.finish_reason));
  if (output.stop_token) m.set_stop_token(*output.stop_token);
  m.set_num_cached_tokens(output.num_cached_tokens);
  if (output.finished()) TimelineToProto(output.timeline, m.mutable_timeline());
  m.set_error_code(static_cast<int>(output.error.code()));
  m.set_error_message(std::string(output.error.message()));
  return m;
}

EngineOutput FromProto(const v1::GenerateReply& m) {
  EngineOutput output;
  for (const auto& token : m.tokens()) output.tokens.push_back(TokenFromProto(token));
  output.drafts = Ids(m.drafts());
  output.num_revoked_drafts = m.num_revoked_drafts();
  output.prompt_logprobs = PromptLogprobsFromProto(m.prompt_logprobs());
  output.finish_reason = static_cast<FinishReason>(std::min<uint32_t>(m.finish_reason(), 4));
  if (m.has_stop_token()) output.stop_token = m.stop_token();
  output.num_cached_tokens = m.num_cached_tokens();
  output.timeline = TimelineFromProto(m.timeline());
  output.error = ErrorFromProto(m.error_code(), m.error_message());
  return output;
}

v1::PrefillStart ToProto(const RemotePrefillRequest& request) {
  v1::PrefillStart m;
  m.set_attempt_hi(request.attempt.hi);
  m.set_attempt_lo(request.attempt.lo);
  m.set_request_id(request.request_id);
  CopyIds(request.prompt_ids, m.mutable_prompt_ids());
  m.set_num_emitted(request.num_emitted);
  m.set_num_cached_tokens(request.num_cached_tokens);
  *m.mutable_sampling() = SamplingToProto(request.sampling);
  m.set_cache_salt(request.cache_salt);
  m.set_priority(request.priority);
  m.set_client(request.client);
  m.set_receiver_address(request.receiver_address);
  m.set_verify(static_cast<uint32_t>(request.verify));
  m.set_anchor(std::string(request.anchor.begin(), request.anchor.end()));
  return m;
}

absl::StatusOr<RemotePrefillRequest> FromProto(const v1::PrefillStart& m, int vocab_size) {
  RemotePrefillRequest request;
  request.attempt = {m.attempt_hi(), m.attempt_lo()};
  request.request_id = m.request_id();
  LYNX_ASSIGN_OR_RETURN(request.prompt_ids, CheckedIds("prompt_ids", m.prompt_ids(), vocab_size));
  if (request.prompt_ids.empty()) return absl::InvalidArgumentError("prompt_ids: empty");
  const int n = static_cast<int>(request.prompt_ids.size());
  request.num_emitted = m.num_emitted();
  if (request.num_emitted < 0 || request.num_emitted >= n) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_emitted: ", request.num_emitted, " is not in 0..", n - 1));
  }
  request.num_cached_tokens = m.num_cached_tokens();
  if (request.num_cached_tokens < 0 || request.num_cached_tokens > n ||
      request.num_cached_tokens % kBlockSize != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_cached_tokens: ", request.num_cached_tokens,
                                                   " is not a multiple of ", kBlockSize, " in 0..",
                                                   n));
  }
  LYNX_ASSIGN_OR_RETURN(request.sampling, SamplingFromProto(m.sampling(), vocab_size));
  request.cache_salt = m.cache_salt();
  request.priority = m.priority();
  request.client = m.client();
  request.receiver_address = m.receiver_address();
  request.anchor.assign(m.anchor().begin(), m.anchor().end());
  LYNX_ASSIGN_OR_RETURN(request.verify, VerifyModeFromProto(m.verify()));
  return request;
}

v1::Verify ToProto(const VerifyRequest& request) {
  v1::Verify m;
  m.set_position(request.position);
  m.set_round(request.round);
  CopyIds(request.drafts, m.mutable_drafts());
  return m;
}

absl::StatusOr<VerifyRequest> FromProto(const v1::Verify& m, AttemptId attempt, int vocab_size) {
  VerifyRequest request{
      .attempt = attempt, .round = m.round(), .position = m.position(), .drafts = {}};
  LYNX_ASSIGN_OR_RETURN(request.drafts, CheckedIds("drafts", m.drafts(), vocab_size));
  return request;
}

v1::PrefillReply ToProto(const RemotePrefillEvent& event) {
  v1::PrefillReply m;
  if (event.first_token) TokenToProto(*event.first_token, m.mutable_first_token());
  PromptLogprobsToProto(event.prompt_logprobs, m.mutable_prompt_logprobs());
  m.set_num_cached_tokens(event.num_cached_tokens);
  if (!event.verified.empty() || event.round_over || event.cannot_verify) {
    v1::Verified& verified = *m.mutable_verified();
    verified.set_position(event.position);
    for (const TokenOutput& token : event.verified) TokenToProto(token, verified.add_tokens());
    verified.set_round_over(event.round_over);
    verified.set_round(event.round);
    verified.set_cannot_verify(event.cannot_verify);
    verified.set_goes_on(event.goes_on);
  }
  m.set_step_ns(event.step_ns);
  m.set_error_code(static_cast<int>(event.error.code()));
  m.set_error_message(std::string(event.error.message()));
  return m;
}

RemotePrefillEvent FromProto(const v1::PrefillReply& m, AttemptId attempt) {
  RemotePrefillEvent event;
  event.attempt = attempt;
  if (m.has_first_token()) event.first_token = TokenFromProto(m.first_token());
  event.prompt_logprobs = PromptLogprobsFromProto(m.prompt_logprobs());
  event.num_cached_tokens = m.num_cached_tokens();
  event.position = m.verified().position();
  for (const auto& token : m.verified().tokens()) event.verified.push_back(TokenFromProto(token));
  event.round_over = m.verified().round_over();
  event.round = m.verified().round();
  event.cannot_verify = m.verified().cannot_verify();
  event.goes_on = m.verified().goes_on();
  event.step_ns = m.step_ns();
  event.error = ErrorFromProto(m.error_code(), m.error_message());
  return event;
}

v1::StatsReply ToProto(const EngineStats& stats) {
  v1::StatsReply m;
  auto& counters = *m.mutable_counters();
  for (const Counter& c : kCounters) counters[c.name] = stats.*c.field;
  VisitOtherCounters(stats, [&](const auto& name, int64_t value) { counters[name] = value; });
  return m;
}

EngineStats FromProto(const v1::StatsReply& m) {
  EngineStats stats;
  const auto get = [&](const std::string& name) -> int64_t {
    const auto it = m.counters().find(name);
    return it == m.counters().end() ? 0 : it->second;
  };
  for (const Counter& c : kCounters) stats.*c.field = get(c.name);
  VisitOtherCounters(stats, [&](const auto& name, auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(get(name));
  });
  return stats;
}

}  // namespace lynx
