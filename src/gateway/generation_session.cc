// SPDX-License-Identifier: Apache-2.0
#include "gateway/generation_session.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "gateway/logprob_json.h"

namespace lynx {
namespace {

// Choices of one HTTP request that an engine sees at one time.
constexpr int kMaxRunningChoices = 64;

double Milliseconds(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1e6;
}

}  // namespace

void GenerationSession::Mailbox::Put(int choice, EngineOutput output) {
  std::lock_guard lock(mutex_);
  if (wakeup_ == nullptr) return;
  outputs_.emplace_back(choice, std::move(output));
  if (outputs_.size() == 1) wakeup_();
}

void GenerationSession::Mailbox::Close() {
  std::lock_guard lock(mutex_);
  wakeup_ = nullptr;
}

std::vector<std::pair<int, EngineOutput>> GenerationSession::Mailbox::TakeAll() {
  std::lock_guard lock(mutex_);
  return std::exchange(outputs_, {});
}

GenerationSession::GenerationSession(GenerationPlan plan, const SessionContext& context,
                                     std::function<void()> wakeup)
    : plan_(std::move(plan)),
      context_(context),
      json_(plan_, context.tokenizer),
      mailbox_(std::make_shared<Mailbox>(std::move(wakeup))),
      max_running_(kMaxRunningChoices) {
  const OpenAiRequest& request = plan_.request;
  if (context_.request_timeout.count() > 0) {
    end_by_ns_ = plan_.arrival_ns + context_.request_timeout.count();
  }
  for (int i = 0; i < plan_.num_choices(); ++i) choices_.push_back(NewChoice(i));
  context_.metrics.ObserveNumSamples(request.num_samples);
  StartMore();
}

GenerationSession::~GenerationSession() {
  CancelAll(FinishReason::kAbort);
  mailbox_->Close();
}

std::unique_ptr<GenerationSession::Choice> GenerationSession::NewChoice(int index) const {
  const OpenAiRequest& request = plan_.request;
  const size_t prompt = static_cast<size_t>(index / request.num_samples);
  const size_t offset = request.echo ? CountCharacters(plan_.echo_texts[prompt]) : 0;
  const bool continues_text =
      std::any_of(plan_.prompts[prompt].begin(), plan_.prompts[prompt].end(), [&](TokenId id) {
        return !request.skip_special_tokens || !context_.tokenizer.IsSpecial(id);
      });
  return std::make_unique<Choice>(request, context_.tokenizer, offset, continues_text);
}

void GenerationSession::StartMore() {
  while (num_running_ < max_running_) {
    if (!postponed_.empty()) {
      const int index = postponed_.back();
      postponed_.pop_back();
      Start(index);
    } else if (num_started_ < plan_.num_choices()) {
      Start(num_started_++);
    } else {
      return;
    }
  }
}

void GenerationSession::Start(int index) {
  ++num_running_;
  Request request = EngineRequest(plan_, index);
  Choice& choice = *choices_[static_cast<size_t>(index)];
  choice.max_tokens = request.sampling.max_tokens;
  choice.generation = context_.generator.Generate(
      std::move(request),
      [mailbox = mailbox_, index](EngineOutput output) { mailbox->Put(index, std::move(output)); });
}

// An engine has no room for this choice now, but the request has others that will end.
bool GenerationSession::MayWait(int index, const absl::Status& refusal) const {
  return absl::IsResourceExhausted(refusal) && num_running_ > 1 &&
         !choices_[static_cast<size_t>(index)]->has_begun;
}

void GenerationSession::Postpone(int index) {
  choices_[static_cast<size_t>(index)]->generation.reset();
  postponed_.push_back(index);
  max_running_ = --num_running_;
}

bool GenerationSession::IsOverdue() const { return end_by_ns_ && MonotonicNs() >= *end_by_ns_; }

GenerationSession::Step GenerationSession::Advance() {
  Step step;
  for (auto& [index, output] : mailbox_->TakeAll()) {
    if (MayWait(index, output.error)) {
      Postpone(index);
      continue;
    }
    if (!output.error.ok() && !choices_[static_cast<size_t>(index)]->stream.finished()) {
      Step failed = Abort(FromEngineError(output.error));
      failed.sse.insert(0, step.sse);
      return failed;
    }
    Absorb(index, std::move(output), &step.sse);
    has_streamed_ = has_streamed_ || !step.sse.empty();
  }
  StartMore();
  if (num_finished_ < plan_.num_choices()) {
    if (!IsOverdue()) return step;
    Step failed = Abort(RequestTimeout(context_.request_timeout));
    failed.sse.insert(0, step.sse);
    return failed;
  }
  if (!settle_by_ns_) settle_by_ns_ = MonotonicNs() + context_.settle_timeout.count();
  if (MonotonicNs() >= *settle_by_ns_) SettleAll();
  if (num_settled_ == plan_.num_choices()) Complete(&step);
  return step;
}

void GenerationSession::Absorb(int index, EngineOutput output, std::string* sse) {
  Choice& choice = *choices_[static_cast<size_t>(index)];
  if (output.finished()) choice.timeline = std::move(output.timeline);
  if (choice.stream.finished()) {
    if (output.finished()) Settle(index);
    return;
  }
  if (!output.prompt_logprobs.empty()) choice.prompt_logprobs = std::move(output.prompt_logprobs);
  if (plan_.scores_only()) {
    output.tokens.clear();
    if (output.finished()) output.finish_reason = FinishReason::kLength;
  }
  if (is_stream() && plan_.request.show_drafts &&
      (!output.drafts.empty() || output.num_revoked_drafts > 0)) {
    *sse += SseEvent(json_.DraftChunk(index, output));
  }
  if (output.tokens.empty() && !output.finished()) return;

  choice.num_cached_tokens = std::max(choice.num_cached_tokens, output.num_cached_tokens);
  if (!choice.has_begun) BeginRole(index, sse);
  if (!output.tokens.empty()) NoteTokens(&choice);
  choice.stream.Push(output);
  ChoiceDelta delta = choice.stream.Take();
  ChoicePart part{.index = index, .text = std::move(delta.text), .tokens = std::move(delta.tokens)};
  if (!choice.has_begun) Begin(index, &part);
  if (choice.stream.finished()) FinishChoice(index, output.finished());
  Emit(index, std::move(part), sse);
}

void GenerationSession::FinishChoice(int index, bool engine_has_finished) {
  Choice& choice = *choices_[static_cast<size_t>(index)];
  choice.finished_ns = MonotonicNs();
  ++num_finished_;
  --num_running_;
  if (engine_has_finished || !plan_.request.show_timeline) {
    Settle(index);
  } else {
    choice.generation->Stop();
  }
}

void GenerationSession::Settle(int index) {
  Choice& choice = *choices_[static_cast<size_t>(index)];
  if (std::exchange(choice.is_settled, true)) return;
  ++num_settled_;
  Record(index, choice.stream.finish_reason());
  choice.generation.reset();
}

void GenerationSession::SettleAll() {
  for (int i = 0; i < plan_.num_choices(); ++i) Settle(i);
}

// The chunk with which a chat choice begins.
void GenerationSession::BeginRole(int index, std::string* sse) {
  if (plan_.request.api != kChatApi || !is_stream()) return;
  *sse += ChunkEvent(json_.RoleChunk(index));
}

// What echo puts in front of a choice.
void GenerationSession::Begin(int index, ChoicePart* part) {
  Choice& choice = *choices_[static_cast<size_t>(index)];
  choice.has_begun = true;
  const OpenAiRequest& request = plan_.request;
  const bool is_chat = request.api == kChatApi;
  if (!request.echo) return;
  const std::string& echo = plan_.echo_texts[static_cast<size_t>(index / request.num_samples)];
  part->text.insert(0, echo);
  if (is_chat || !request.num_logprobs) return;
  std::vector<PlacedToken> placed =
      PlacePrompt(plan_.prompt_of(index), choice.prompt_logprobs, echo, context_.tokenizer);
  part->num_echoed = placed.size();
  part->tokens.insert(part->tokens.begin(), std::make_move_iterator(placed.begin()),
                      std::make_move_iterator(placed.end()));
}

void GenerationSession::Emit(int index, ChoicePart part, std::string* sse) {
  Choice& choice = *choices_[static_cast<size_t>(index)];
  if (!is_stream()) {
    choice.text += part.text;
    choice.num_echoed += part.num_echoed;
    choice.tokens.insert(choice.tokens.end(), std::make_move_iterator(part.tokens.begin()),
                         std::make_move_iterator(part.tokens.end()));
    return;
  }
  const auto shows_prompt_ids = [&] {
    return plan_.request.return_token_ids && !std::exchange(choice.has_shown_prompt_ids, true);
  };
  if (!part.text.empty()) {
    *sse += ChunkEvent(json_.TextChunk(part, shows_prompt_ids()));
    part.tokens.clear();
    part.num_echoed = 0;
  }
  if (!choice.stream.finished()) return;
  part.finish_reason = choice.stream.finish_reason();
  part.stop_reason = choice.stream.stop_reason();
  *sse += ChunkEvent(json_.FinalChunk(part, shows_prompt_ids()));
}

std::string GenerationSession::ChunkEvent(Json chunk) const {
  if (plan_.request.continuous_usage && plan_.request.include_usage) chunk["usage"] = Usage(false);
  return SseEvent(chunk);
}

void GenerationSession::NoteTokens(Choice* choice) {
  const int64_t now = MonotonicNs();
  if (choice->last_event_ns != 0) {
    context_.metrics.ObserveTokenGap(Milliseconds(choice->last_event_ns, now) / 1e3);
  }
  choice->last_event_ns = now;
  if (choice->first_token_ns != 0) return;
  choice->first_token_ns = now;
  if (std::exchange(has_first_token_, true)) return;
  first_token_unwritten_ = is_stream();
  if (!is_stream()) {
    context_.metrics.ObserveFirstToken(Milliseconds(plan_.arrival_ns, now) / 1e3);
  }
}

void GenerationSession::Written(int64_t now_ns) {
  if (!std::exchange(first_token_unwritten_, false)) return;
  context_.metrics.ObserveFirstToken(Milliseconds(plan_.arrival_ns, now_ns) / 1e3);
}

void GenerationSession::Record(int index, FinishReason reason) {
  Choice& choice = *choices_[static_cast<size_t>(index)];
  if (std::exchange(choice.is_recorded, true)) return;
  if (choice.finished_ns == 0) choice.finished_ns = MonotonicNs();
  ChoiceRecord record{.finish_reason = reason,
                      .num_prompt_tokens = static_cast<int>(plan_.prompt_of(index).size()),
                      .num_output_tokens = choice.stream.num_tokens(),
                      .max_tokens = choice.max_tokens,
                      .e2e_s = Milliseconds(plan_.arrival_ns, choice.finished_ns) / 1e3,
                      .timeline = choice.timeline};
  if (choice.first_token_ns != 0) {
    record.ttft_s = Milliseconds(plan_.arrival_ns, choice.first_token_ns) / 1e3;
  }
  context_.metrics.ObserveChoice(record);
}

Json GenerationSession::TimelineOf(const Choice& choice) const {
  const int64_t first = choice.first_token_ns != 0 ? choice.first_token_ns : choice.finished_ns;
  return TimelineJson(choice.timeline, Milliseconds(plan_.arrival_ns, first),
                      Milliseconds(plan_.arrival_ns, choice.finished_ns));
}

Json GenerationSession::Usage(bool is_final) const {
  TokenUsage usage;
  for (const auto& prompt : plan_.prompts) usage.prompt += static_cast<int64_t>(prompt.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    usage.completion += choices_[i]->stream.num_tokens();
    // The first sample of a prompt tells what was cached before this request.
    if (i % static_cast<size_t>(plan_.request.num_samples) == 0) {
      usage.cached += choices_[i]->num_cached_tokens;
    }
  }
  Json json = UsageJson(usage);
  if (!is_final || !plan_.request.show_timeline) return json;
  json["lynx"] = TimelineOf(*choices_.front());
  if (choices_.size() > 1) {
    Json& list = json["lynx"]["choices"] = Json::array();
    for (const auto& choice : choices_) list.push_back(TimelineOf(*choice));
  }
  return json;
}

void GenerationSession::Complete(Step* step) {
  step->done = true;
  const OpenAiRequest& request = plan_.request;
  if (request.stream) {
    if (request.include_usage || request.show_timeline) {
      step->sse += SseEvent(json_.UsageChunk(Usage(true)));
    }
    step->sse += kSseDone;
    return;
  }
  std::vector<ChoicePart> parts;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = *choices_[i];
    parts.push_back({.index = static_cast<int>(i),
                     .text = std::move(choice.text),
                     .tokens = std::move(choice.tokens),
                     .num_echoed = choice.num_echoed,
                     .finish_reason = choice.stream.finish_reason(),
                     .stop_reason = choice.stream.stop_reason(),
                     .prompt_logprobs = std::move(choice.prompt_logprobs)});
  }
  step->response = JsonResponse(DumpJson(json_.Whole(parts, Usage(true))));
}

GenerationSession::Step GenerationSession::Abort(const ApiError& error) {
  CancelAll(FinishReason::kError);
  Step step{.done = true};
  if (has_streamed_) {
    step.sse = StrCat("data: ", ErrorBody(error), "\n\n", kSseDone);
    step.failed = true;
  } else {
    step.response = ErrorResponse(error);
  }
  return step;
}

void GenerationSession::CancelAll(FinishReason reason) {
  for (int i = 0; i < num_started_; ++i) {
    Choice& choice = *choices_[static_cast<size_t>(i)];
    Record(i, choice.stream.finished() ? choice.stream.finish_reason() : reason);
    choice.generation.reset();
  }
}

}  // namespace lynx
