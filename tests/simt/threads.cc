// SPDX-License-Identifier: Apache-2.0
// Threads as fibers. The threads of a block run one at a time until they wait (barrier, warp
// instruction) or end; the last to arrive frees the others and goes on. Fibers are kept from block
// to block. A fault unwinds every fiber of the block, then leaves the launch as an exception.
#include "simt/threads.h"

#include <xmmintrin.h>

#include <atomic>
#include <bit>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <vector>

#include "simt/launch.h"
#include "simt/streams.h"
#include "tests/simt/devices.h"
#include "tests/simt/fiber.h"

SimtIndex threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace lynx::simt {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr unsigned kFlushToZero = 0x8040;  // FTZ and DAZ: kernels are compiled with -ftz=true
constexpr size_t kMaxStaticSharedBytes = 48 << 10;

struct Cancelled {};  // unwinds a thread after another's fault

struct CopyUnderWay {
  std::byte* to;
  const Allocation* from_allocation;
  uintptr_t from;
  const SharedArray* to_array;
};

struct Thread {
  Fiber fiber;
  SimtIndex index;
  std::vector<CopyUnderWay> copies;
  std::vector<size_t> commits;  // ends in copies
};

struct Place {
  const char* instruction = nullptr;
  Site site;
  bool Is(const char* other, const Site& s) const {
    return std::strcmp(instruction, other) == 0 && site.line() == s.line() &&
           site.column() == s.column() && std::strcmp(site.file_name(), s.file_name()) == 0;
  }
};

struct Warp {
  uint32_t alive = 0;
  uint32_t ready = 0;       // alive, not running, not waiting
  uint32_t arrived = 0;     // waiting in the warp instruction at `place`
  uint32_t at_barrier = 0;  // waiting at the block's barrier
  Place place;
  unsigned num_exchanges = 0;
  LaneValue values[2][32];  // of this exchange and of the one before, which some still read
};

std::string Name(const Place& place) {
  std::ostringstream name;
  name << place.instruction << " at " << place.site.file_name() << ':' << place.site.line();
  return name.str();
}

class Multiprocessor {
 public:
  // One at a time.
  void Run(const dim3& grid, const dim3& block_shape, size_t shared_bytes, const char* name,
           const std::function<void()>& body);

  const LaneValue* Exchange(const char* instruction, unsigned mask, const void* value, size_t bytes,
                            const Site& site);
  BarrierVotes Barrier(const char* instruction, bool vote, const Site& site);
  const SharedArray* Declare(const char* name, size_t bytes, const Site& site);
  const SharedArray* dynamic_shared() const { return &dynamic_shared_; }
  Thread& running_thread() { return *threads_[block.thread]; }
  [[noreturn]] void Report(const Site& site, const std::string& what);
  void set_block_order(uint64_t seed) { block_order_ = seed; }

 private:
  struct DeclaredArray {
    Site site;
    SharedArray array;
  };

  std::vector<uint64_t> BlockOrder(uint64_t num_blocks);
  void StartBlock(uint64_t linear);
  void RunBlock();
  void UnwindBlock();
  void ForgetCopies();
  [[noreturn]] void ThreadMain(int thread);
  void EndThread();
  Thread* NextReady();  // null when no thread is ready
  void SwitchTo(Thread& to);
  void Wait();  // switches to a ready thread; throws Cancelled when the block is given up
  void Publish(int thread);
  void NextEpoch();
  Warp& warp() { return warps_[block.thread / 32]; }
  uint32_t lane_bit() const { return 1u << (block.thread % 32); }

  std::atomic<uint64_t> block_order_{1};
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread host_;
  Thread* current_ = &host_;
  Fiber* previous_ = nullptr;  // who switched last

  const char* kernel_ = "";
  const std::function<void()>* body_ = nullptr;
  int num_threads_ = 0;
  int num_alive_ = 0;
  bool cancelled_ = false;
  std::string fault_;
  Warp warps_[kMaxThreads / 32];

  int at_barrier_ = 0;
  Place barrier_;
  unsigned num_barriers_ = 0;
  int true_votes_[2] = {};  // of this barrier and of the one before

  SharedArray dynamic_shared_;
  std::deque<DeclaredArray> declared_;  // by this launch
};

// As threadIdx is a global name, so is what stands behind it. Never destroyed.
Multiprocessor& Processor() {
  static auto* processor = new Multiprocessor;
  return *processor;
}

class ScopedFlushToZero {
 public:
  ScopedFlushToZero() { _mm_setcsr(saved_ | kFlushToZero); }
  ~ScopedFlushToZero() { _mm_setcsr(saved_); }

 private:
  const unsigned saved_ = _mm_getcsr();
};

void CheckShape(const dim3& grid, const dim3& shape, size_t shared_bytes, const char* name) {
  const uint64_t threads = uint64_t{shape.x} * shape.y * shape.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads > 0 && threads <= kMaxThreads && shape.z <= 64 && blocks > 0 &&
      grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 &&
      shared_bytes <= kMaxSharedBytes) {
    return;
  }
  std::ostringstream what;
  what << name << ": invalid configuration: grid " << grid.x << " x " << grid.y << " x " << grid.z
       << ", block " << shape.x << " x " << shape.y << " x " << shape.z << ", " << shared_bytes
       << " bytes of shared memory";
  throw Fault(what.str());
}

void Multiprocessor::Run(const dim3& grid, const dim3& block_shape, size_t shared_bytes,
                         const char* name, const std::function<void()>& body) {
  ScopedFlushToZero flush_to_zero;
  kernel_ = name;
  body_ = &body;
  gridDim = grid;
  blockDim = block_shape;
  num_threads_ = static_cast<int>(block_shape.x * block_shape.y * block_shape.z);
  dynamic_shared_ = {block.memory, shared_bytes, "dynamic"};
  declared_.clear();
  for (int t = static_cast<int>(threads_.size()); t < num_threads_; ++t) {
    threads_.push_back(std::make_unique<Thread>());
    threads_[t]->fiber.Start(kStackBytes, [this, t](boost::context::fiber&& from) {
      threads_[t]->fiber.Arrive(*previous_, std::move(from));
      ThreadMain(t);
    });
  }
  block.running = true;
  for (uint64_t linear : BlockOrder(uint64_t{grid.x} * grid.y * grid.z)) {
    StartBlock(linear);
    RunBlock();
    if (!fault_.empty()) break;
    ForgetCopies();
  }
  block.running = false;
  if (fault_.empty()) return;
  UnwindBlock();
  throw Fault(std::exchange(fault_, {}));
}

std::vector<uint64_t> Multiprocessor::BlockOrder(uint64_t num_blocks) {
  std::vector<uint64_t> order(num_blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (block_order_ != 0) {
    std::minstd_rand random(static_cast<unsigned>(block_order_));
    for (uint64_t i = num_blocks; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  }
  return order;
}

void Multiprocessor::StartBlock(uint64_t linear) {
  blockIdx = {static_cast<unsigned>(linear % gridDim.x),
              static_cast<unsigned>(linear / gridDim.x % gridDim.y),
              static_cast<unsigned>(linear / gridDim.x / gridDim.y)};
  for (int t = 0; t < num_threads_; ++t) {
    threads_[t]->index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  }
  for (int w = 0; w * 32 < num_threads_; ++w) {
    const int lanes = std::min(32, num_threads_ - 32 * w);
    warps_[w].alive = warps_[w].ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
  }
  num_alive_ = num_threads_;
  NextEpoch();
  block.first_epoch = block.epoch;
}

void Multiprocessor::NextEpoch() {
  ++block.epoch;
  std::memset(block.warp_epoch, 0, sizeof(block.warp_epoch));
}

void Multiprocessor::RunBlock() {
  block.thread = 0;
  SwitchTo(*NextReady());
}

// After a fault: every thread that has begun is resumed to unwind; all state is as before a block.
void Multiprocessor::UnwindBlock() {
  cancelled_ = true;
  for (int t = 0; t < num_threads_; ++t) {
    if (warps_[t / 32].alive >> (t % 32) & 1u) SwitchTo(*threads_[t]);
  }
  cancelled_ = false;
  for (Warp& w : warps_) w.arrived = w.at_barrier = 0;
  at_barrier_ = 0;
  ForgetCopies();
}

// Copies that nobody waited for end with the block.
void Multiprocessor::ForgetCopies() {
  for (int t = 0; t < num_threads_; ++t) {
    threads_[t]->copies.clear();
    threads_[t]->commits.clear();
  }
  if (block.copies_under_way == 0) return;
  block.copies_under_way = 0;
  std::memset(block.under_copy, 0, sizeof(block.under_copy));
}

void Multiprocessor::ThreadMain(int thread) {
  _mm_setcsr(_mm_getcsr() | kFlushToZero);
  for (;;) {
    Publish(thread);
    try {
      if (!cancelled_) {
        (*body_)();
        EndThread();
      }
    } catch (const Cancelled&) {
    } catch (const Fault& fault) {
      fault_ = fault.what();
    }
    warp().alive &= ~lane_bit();
    warp().ready &= ~lane_bit();
    --num_alive_;
    Thread* next = cancelled_ || !fault_.empty() ? nullptr : NextReady();
    SwitchTo(next != nullptr ? *next : host_);
  }
}

// A thread may not end while others wait for it.
void Multiprocessor::EndThread() {
  if (warp().arrived != 0) {
    Report(warp().place.site,
           "divergence: the thread ends while lanes of its warp wait in " + Name(warp().place));
  }
  if (at_barrier_ > 0) {
    Report(barrier_.site, "divergence: the thread ends while " + std::to_string(at_barrier_) +
                              " threads wait at " + Name(barrier_));
  }
}

void Multiprocessor::Publish(int thread) {
  block.thread = static_cast<uint16_t>(thread);
  threadIdx = threads_[thread]->index;
  warp().ready &= ~lane_bit();
}

// Own warp first.
Thread* Multiprocessor::NextReady() {
  const int num_warps = (num_threads_ + 31) / 32;
  for (int i = 0, w = block.thread / 32; i < num_warps; ++i, w = w + 1 == num_warps ? 0 : w + 1) {
    if (warps_[w].ready != 0) return threads_[32 * w + std::countr_zero(warps_[w].ready)].get();
  }
  return nullptr;
}

void Multiprocessor::SwitchTo(Thread& to) {
  Thread* const self = current_;
  previous_ = &self->fiber;
  current_ = &to;
  self->fiber.SwitchTo(to.fiber, &previous_);
  current_ = self;
}

void Multiprocessor::Wait() {
  const int thread = block.thread;
  Thread* next = NextReady();
  if (next == nullptr) Report(Site{}, "deadlock: no thread can go on");
  SwitchTo(*next);
  Publish(thread);
  if (cancelled_) throw Cancelled{};
}

const LaneValue* Multiprocessor::Exchange(const char* instruction, unsigned mask, const void* value,
                                          size_t bytes, const Site& site) {
  Warp& w = warp();
  if (mask != ~0u) Report(site, std::string(instruction) + ": the mask is not full");
  if (w.alive != ~0u) {
    Report(site, std::string("divergence: ") + instruction + " without lanes that have ended");
  }
  if (w.at_barrier != 0) {
    Report(site, std::string("divergence: ") + instruction + " while lanes of the warp wait at " +
                     Name(barrier_));
  }
  if (w.arrived == 0) {
    w.place = {instruction, site};
  } else if (!w.place.Is(instruction, site)) {
    Report(site, std::string("divergence: ") + instruction + " while lanes of the warp wait in " +
                     Name(w.place));
  }
  LaneValue* values = w.values[w.num_exchanges & 1];
  std::memcpy(values[block.thread % 32].bytes, value, bytes);
  w.arrived |= lane_bit();
  if (w.arrived != ~0u) {
    Wait();
    return values;
  }
  w.arrived = 0;
  ++w.num_exchanges;
  w.ready = ~lane_bit();
  return values;
}

BarrierVotes Multiprocessor::Barrier(const char* instruction, bool vote, const Site& site) {
  if (num_alive_ != num_threads_) {
    Report(site, std::string("divergence: ") + instruction + " without " +
                     std::to_string(num_threads_ - num_alive_) + " threads that have ended");
  }
  if (warp().arrived != 0) {
    Report(site, std::string("divergence: ") + instruction + " while lanes of the warp wait in " +
                     Name(warp().place));
  }
  if (at_barrier_ == 0) {
    barrier_ = {instruction, site};
    true_votes_[num_barriers_ & 1] = 0;
  } else if (!barrier_.Is(instruction, site)) {
    Report(site,
           std::string("divergence: ") + instruction + " while others wait at " + Name(barrier_));
  }
  int& true_votes = true_votes_[num_barriers_ & 1];
  true_votes += vote;
  if (++at_barrier_ < num_threads_) {
    warp().at_barrier |= lane_bit();
    Wait();
    return {true_votes, num_threads_};
  }
  at_barrier_ = 0;
  ++num_barriers_;
  NextEpoch();
  for (int w = 0; w * 32 < num_threads_; ++w) {
    warps_[w].at_barrier = 0;
    warps_[w].ready = warps_[w].alive;
  }
  warp().ready &= ~lane_bit();
  return {true_votes, num_threads_};
}

const SharedArray* Multiprocessor::Declare(const char* name, size_t bytes, const Site& site) {
  for (const DeclaredArray& d : declared_) {
    if (d.array.size == bytes && d.site.line() == site.line() &&
        std::strcmp(d.array.name, name) == 0 &&
        std::strcmp(d.site.file_name(), site.file_name()) == 0 &&
        std::strcmp(d.site.function_name(), site.function_name()) == 0) {
      return &d.array;
    }
  }
  size_t begin = dynamic_shared_.size;
  for (const DeclaredArray& d : declared_) begin += d.array.size;
  begin = (begin + 15) / 16 * 16;
  if (begin + bytes > kMaxSharedBytes ||
      begin + bytes - dynamic_shared_.size > kMaxStaticSharedBytes + 16) {
    Report(site, std::string("shared array ") + name + ": no room for " + std::to_string(bytes) +
                     " bytes");
  }
  declared_.push_back({site, {block.memory + begin, bytes, name}});
  return &declared_.back().array;
}

void Multiprocessor::Report(const Site& site, const std::string& what) {
  std::ostringstream line;
  if (block.running) {
    line << kernel_ << " block (" << blockIdx.x << ',' << blockIdx.y << ',' << blockIdx.z
         << ") thread (" << threadIdx.x << ',' << threadIdx.y << ',' << threadIdx.z << "): ";
  }
  if (site.line() != 0) line << site.file_name() << ':' << site.line() << ": ";
  throw Fault(line.str() + what);
}

}  // namespace

void LaunchKernel(cudaStream_t stream, const dim3& grid, const dim3& block_shape,
                  size_t shared_bytes, const char* name, std::function<void()> body) {
  CheckShape(grid, block_shape, shared_bytes, name);
  const uint64_t devices = ReachableDevices(CurrentDevice());
  Enqueue(stream, {.kind = OperationKind::kKernel, .name = name}, [=, body = std::move(body)] {
    block.devices = devices;
    Processor().Run(grid, block_shape, shared_bytes, name, body);
  });
}

void SetBlockOrder(uint64_t seed) { Processor().set_block_order(seed); }

void ReportFault(const Site& site, const std::string& what) { Processor().Report(site, what); }

const LaneValue* ExchangeInWarp(const char* instruction, unsigned mask, const void* value,
                                size_t bytes, const Site& site) {
  return Processor().Exchange(instruction, mask, value, bytes, site);
}

void OrderWarp(unsigned mask, const Site& site) {
  // The lanes leave one after another; each advances the epoch to the same value.
  const uint16_t before = block.warp_epoch[block.thread / 32];
  Processor().Exchange("__syncwarp", mask, &before, sizeof(before), site);
  block.warp_epoch[block.thread / 32] = static_cast<uint16_t>(before + 1);
}

BarrierVotes WaitAtBarrier(const char* instruction, bool vote, const Site& site) {
  return Processor().Barrier(instruction, vote, site);
}

const SharedArray* DeclareShared(const char* name, size_t bytes, const Site& site) {
  return Processor().Declare(name, bytes, site);
}
const SharedArray* DynamicShared() { return Processor().dynamic_shared(); }

// ---- asynchronous copies ------------------------------------------------------------------------
// The bytes are poisoned at once and arrive at the last moment, in FinishCopies.
void StartCopy(const SharedArray* to_array, std::byte* to, const Allocation* from_allocation,
               uintptr_t from, const Site& site) {
  std::byte bytes[16];
  GlobalSpace::Read<16>(from_allocation, from, 16, bytes, site);
  SharedSpace::Write<16>(to_array, reinterpret_cast<uintptr_t>(to), 16, bytes, site);
  std::memset(to, 0xff, 16);
  std::memset(block.under_copy + (to - block.memory), 1, 16);
  ++block.copies_under_way;
  Processor().running_thread().copies.push_back({to, from_allocation, from, to_array});
}

void CommitCopies() {
  Thread& thread = Processor().running_thread();
  thread.commits.push_back(thread.copies.size());
}

void FinishCopies(int num_pending_commits, const Site& site) {
  Thread& thread = Processor().running_thread();
  if (thread.commits.size() <= static_cast<size_t>(num_pending_commits)) return;
  const size_t num_done = thread.commits.size() - num_pending_commits;
  const size_t end = thread.commits[num_done - 1];
  for (size_t i = 0; i < end; ++i) {
    const CopyUnderWay& copy = thread.copies[i];
    std::memset(block.under_copy + (copy.to - block.memory), 0, 16);
    --block.copies_under_way;
    std::byte bytes[16];
    GlobalSpace::Read<16>(copy.from_allocation, copy.from, 16, bytes, site);
    SharedSpace::Write<16>(copy.to_array, reinterpret_cast<uintptr_t>(copy.to), 16, bytes, site);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + end);
  thread.commits.erase(thread.commits.begin(), thread.commits.begin() + num_done);
  for (size_t& commit : thread.commits) commit -= end;
}

}  // namespace lynx::simt
