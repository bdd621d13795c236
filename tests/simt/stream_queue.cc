// SPDX-License-Identifier: Apache-2.0
#include "tests/simt/stream_queue.h"

#include <algorithm>
#include <utility>

#include "simt/launch.h"

namespace lynx::simt {
namespace {

// How long a wait may see nothing happen: other host threads may still compute what they queue.
constexpr std::chrono::seconds kPatience{120};

thread_local bool runs_operations = false;

// Marks a stream for as long as it is advanced.
class Moving {
 public:
  explicit Moving(StreamState& stream) : stream_(stream) { stream.moving = true; }
  ~Moving() { stream_.moving = false; }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

 private:
  StreamState& stream_;
};

}  // namespace

// Never destroyed: streams may outlive what is static.
StreamQueue& Streams() {
  static auto* streams = new StreamQueue;
  return *streams;
}

StreamQueue::Lock StreamQueue::Enter() {
  if (runs_operations) throw Fault("an operation of a stream calls the runtime");
  return Lock(mutex_);
}

// ---- streams ------------------------------------------------------------------------------------

std::shared_ptr<StreamState> StreamQueue::CreateLocked(int device, bool blocking) {
  auto stream = std::make_shared<StreamState>();
  stream->id = next_id_++;
  stream->device = device;
  stream->blocking = blocking;
  ForgetEnded();
  streams_.push_back(stream);
  return stream;
}

std::shared_ptr<StreamState> StreamQueue::Create(int device, bool blocking) {
  const Lock lock = Enter();
  DefaultLocked(device);
  return CreateLocked(device, blocking);
}

std::shared_ptr<StreamState> StreamQueue::DefaultLocked(int device) {
  for (const auto& stream : streams_) {
    if (stream->is_default && stream->device == device) return stream;
  }
  auto stream = CreateLocked(device, /*blocking=*/true);
  stream->is_default = true;
  return stream;
}

std::shared_ptr<StreamState> StreamQueue::Default(int device) {
  const Lock lock = Enter();
  return DefaultLocked(device);
}

// As in CUDA, what is queued still runs.
void StreamQueue::Destroy(const std::shared_ptr<StreamState>& stream) {
  const Lock lock = Enter();
  stream->destroyed = true;
  ForgetEnded();
}

void StreamQueue::ForgetEnded() {
  std::erase_if(streams_, [](const auto& s) { return s->destroyed && s->queue.empty(); });
}

// ---- queueing -----------------------------------------------------------------------------------

// The default stream waits for all blocking ones, and they for it.
void StreamQueue::AddLegacyWaits(const StreamState& stream, std::vector<StreamMark>& after) {
  if (!stream.blocking) return;
  for (const auto& other : streams_) {
    if (other.get() == &stream || other->device != stream.device || !other->blocking) continue;
    if (stream.is_default || other->is_default) after.push_back({other, other->num_queued});
  }
}

StreamMark StreamQueue::Queue(const std::shared_ptr<StreamState>& stream,
                              StreamOperation description, std::function<bool()> run,
                              std::vector<StreamMark> after) {
  const Lock lock = Enter();
  ThrowKeptFault();
  if (stream->destroyed) throw Fault(description.name + ": the stream was destroyed");
  AddLegacyWaits(*stream, after);
  description.stream = stream->id;
  description.queued = ++now_;
  if (tracing_) trace_.push_back(std::move(description));
  stream->queue.push_back({.after = std::move(after),
                           .run = std::move(run),
                           .trace_index = tracing_ ? trace_.size() : 0});
  const StreamMark mark{stream, ++stream->num_queued};
  if (order_ == StreamOrder::kAtOnce) Advance(*stream, mark.position);
  changed_.notify_all();
  return mark;
}

// ---- running ------------------------------------------------------------------------------------

// The first operation, whose turn it is. False: it has to wait for another stream.
bool StreamQueue::Attempt(StreamState& stream) {
  QueuedOperation& operation = stream.queue.front();
  runs_operations = true;
  bool done = false;
  try {
    done = operation.run();
  } catch (...) {
    runs_operations = false;
    DropEverything();
    throw;
  }
  runs_operations = false;
  if (!done) return false;
  ++now_;
  if (operation.trace_index > 0 && operation.trace_index <= trace_.size()) {
    trace_[operation.trace_index - 1].ran = now_;
  }
  stream.queue.pop_front();
  ++stream.num_done;
  changed_.notify_all();
  return true;
}

// The same; whom it has to meet is brought there if that can be.
bool StreamQueue::RunHead(StreamState& stream) {
  if (Attempt(stream)) return true;
  const auto others = streams_;
  for (const auto& other : others) {
    if (!other->moving) Advance(*other, other->num_queued);
  }
  return Attempt(stream);
}

// Runs the stream up to the position, as far as it can be. True: it got there.
bool StreamQueue::Advance(StreamState& stream, uint64_t position) {
  if (stream.moving) return stream.passed(position);
  const Moving moving(stream);
  while (!stream.passed(position)) {
    const std::vector<StreamMark>& after = stream.queue.front().after;
    const bool ready = std::all_of(after.begin(), after.end(), [this](const StreamMark& mark) {
      return Advance(*mark.stream, mark.position);
    });
    if (!ready || !RunHead(stream)) return false;
  }
  return true;
}

// One operation of those that Advance would run.
bool StreamQueue::Step(StreamState& stream, uint64_t position) {
  if (stream.moving || stream.passed(position)) return stream.passed(position);
  const Moving moving(stream);
  for (const StreamMark& mark : stream.queue.front().after) {
    if (mark.stream->passed(mark.position)) continue;
    Step(*mark.stream, mark.position);
    return false;
  }
  return RunHead(stream) && stream.passed(position);
}

void StreamQueue::RunOthers(StreamState& stream) {
  const Moving moving(stream);  // nothing of it runs
  const auto others = streams_;
  for (auto other = others.rbegin(); other != others.rend(); ++other) {
    Advance(**other, (*other)->num_queued);
  }
}

void StreamQueue::WaitLocked(Lock& lock, const StreamMark& mark) {
  if (order_ == StreamOrder::kOthersFirst && !mark.stream->passed(mark.position)) {
    RunOthers(*mark.stream);
  }
  while (!Advance(*mark.stream, mark.position)) {
    if (changed_.wait_for(lock, kPatience) == std::cv_status::timeout) {
      throw Fault("deadlock: stream " + std::to_string(mark.stream->id) +
                  " waits for what nobody queues");
    }
  }
}

void StreamQueue::Wait(const StreamMark& mark) {
  Lock lock = Enter();
  ThrowKeptFault();
  WaitLocked(lock, mark);
}

void StreamQueue::WaitForStream(const std::shared_ptr<StreamState>& stream) {
  Lock lock = Enter();
  ThrowKeptFault();
  WaitLocked(lock, {stream, stream->num_queued});
}

void StreamQueue::WaitForDevice(int device) {
  Lock lock = Enter();
  ThrowKeptFault();
  auto streams = streams_;
  if (order_ == StreamOrder::kOthersFirst) std::reverse(streams.begin(), streams.end());
  for (const auto& stream : streams) {
    if (stream->device == device) WaitLocked(lock, {stream, stream->num_queued});
  }
}

void StreamQueue::WaitForDeviceWithoutFault(int device) {
  try {
    WaitForDevice(device);
  } catch (const Fault& fault) {
    const Lock lock = Enter();
    kept_fault_ = fault.what();
  }
}

bool StreamQueue::Query(const StreamMark& mark) {
  const Lock lock = Enter();
  ThrowKeptFault();
  return Step(*mark.stream, mark.position);
}

bool StreamQueue::QueryStream(const std::shared_ptr<StreamState>& stream) {
  const Lock lock = Enter();
  ThrowKeptFault();
  return Step(*stream, stream->num_queued);
}

// After a fault the device is lost, and with it what was queued.
void StreamQueue::DropEverything() {
  for (const auto& stream : streams_) {
    stream->queue.clear();
    stream->num_done = stream->num_queued;
  }
  changed_.notify_all();
}

void StreamQueue::ThrowKeptFault() {
  if (!kept_fault_.empty()) throw Fault(std::exchange(kept_fault_, {}));
}

void StreamQueue::Change(const std::function<void()>& change) {
  const Lock lock = Enter();
  change();
  changed_.notify_all();
}

void StreamQueue::set_order(StreamOrder order) {
  const Lock lock = Enter();
  order_ = order;
}

void StreamQueue::StartTrace() {
  const Lock lock = Enter();
  tracing_ = true;
  trace_.clear();
}

std::vector<StreamOperation> StreamQueue::StopTrace() {
  const Lock lock = Enter();
  tracing_ = false;
  for (const auto& stream : streams_) {
    for (QueuedOperation& operation : stream->queue) operation.trace_index = 0;
  }
  return std::exchange(trace_, {});
}

void SetStreamOrder(StreamOrder order) { Streams().set_order(order); }
void StartTrace() { Streams().StartTrace(); }
std::vector<StreamOperation> StopTrace() { return Streams().StopTrace(); }
void ChangeBetweenOperations(const std::function<void()>& change) { Streams().Change(change); }

}  // namespace lynx::simt
