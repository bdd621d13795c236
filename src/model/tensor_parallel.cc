// SPDX-License-Identifier: Apache-2.0
#include "model/tensor_parallel.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "formats/model_files.h"
#include "model/transformer.h"

namespace lynx {
namespace {

using Shards = std::vector<std::unique_ptr<Transformer>>;

class TensorParallelModel final : public Model {
 public:
  TensorParallelModel(std::shared_ptr<const ModelFiles> files, Collectives collectives,
                      Shards shards);
  ~TensorParallelModel() override;

  Backend& backend() const override { return shards_[0]->backend(); }
  std::vector<Backend*> backends() const override;
  // A choice needs a whole row of logits; each rank computes a part of it.
  bool chooses_tokens() const override { return false; }
  const ModelConfig& config() const override { return files_->config(); }
  KvLayout kv_layout() const override;
  uint64_t hash() const override { return shards_[0]->hash(); }
  size_t weight_bytes() const override;

  void Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
               const std::function<void(int layer)>& after_layer) override;

 private:
  struct Step {
    const ForwardBatch* batch = nullptr;
    const KvPoolView* pool = nullptr;
    float* logits = nullptr;
  };
  void RunRank(int rank);

  const std::shared_ptr<const ModelFiles> files_;
  const Collectives collectives_;
  const Shards shards_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Step step_;
  uint64_t num_steps_ = 0;
  int num_running_ = 0;  // of the ranks with a thread
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // of ranks 1 and up
};

TensorParallelModel::TensorParallelModel(std::shared_ptr<const ModelFiles> files,
                                         Collectives collectives, Shards shards)
    : files_(std::move(files)), collectives_(std::move(collectives)), shards_(std::move(shards)) {
  // Signals belong to the program's own threads.
  sigset_t all, saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  for (size_t rank = 1; rank < shards_.size(); ++rank) {
    threads_.emplace_back([this, rank] { RunRank(static_cast<int>(rank)); });
  }
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
}

TensorParallelModel::~TensorParallelModel() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<Backend*> TensorParallelModel::backends() const {
  std::vector<Backend*> backends;
  for (const auto& shard : shards_) backends.push_back(&shard->backend());
  return backends;
}

KvLayout TensorParallelModel::kv_layout() const {
  KvLayout layout = shards_[0]->kv_layout();
  layout.num_kv_heads = config().num_kv_heads;
  return layout;
}

size_t TensorParallelModel::weight_bytes() const {
  size_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->weight_bytes();
  return bytes;
}

void TensorParallelModel::Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
                                  const std::function<void(int layer)>& after_layer) {
  LYNX_CHECK(pool.layout == kv_layout() && pool.num_shards() == static_cast<int>(shards_.size()));
  {
    std::lock_guard lock(mutex_);
    step_ = {&batch, &pool, logits};
    num_running_ = static_cast<int>(threads_.size());
    ++num_steps_;
  }
  changed_.notify_all();
  shards_[0]->Forward(batch, pool.shard(0), logits, after_layer);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return num_running_ == 0; });
}

void TensorParallelModel::RunRank(int rank) {
  for (uint64_t seen = 0;;) {
    Step step;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || num_steps_ != seen; });
      if (stopping_) return;
      seen = num_steps_;
      step = step_;
    }
    shards_[rank]->Forward(*step.batch, step.pool->shard(rank), step.logits, nullptr);
    {
      std::lock_guard lock(mutex_);
      --num_running_;
    }
    changed_.notify_all();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadTensorParallel(
    const std::string& path, std::span<Backend* const> backends,
    const std::function<absl::StatusOr<Collectives>(int64_t max_count)>& make_collectives,
    int max_rows, std::function<void(const LoadProgress&)> progress, int max_model_len,
    const std::string& cache_directory) {
  const int size = static_cast<int>(backends.size());
  LYNX_CHECK(size > 0 && max_rows > 0);
  LYNX_ASSIGN_OR_RETURN(std::shared_ptr<const ModelFiles> files, ModelFiles::Open(path));
  LYNX_RETURN_IF_ERROR(CheckShards(*files, size));
  LYNX_ASSIGN_OR_RETURN(Collectives collectives,
                        make_collectives(int64_t{max_rows} * files->config().hidden_size));

  Shards shards(size);
  std::vector<absl::Status> statuses(size);
  const auto load = [&](int rank) {
    auto shard = Transformer::Create(files, *backends[rank],
                                     {.shard = {rank, size},
                                      .collective = collectives[rank].get(),
                                      .max_rows = max_rows,
                                      .max_model_len = max_model_len,
                                      .progress = rank == 0 ? progress : nullptr,
                                      .cache_directory = cache_directory});
    statuses[rank] = shard.status();
    if (shard.ok()) shards[rank] = *std::move(shard);
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) threads.emplace_back(load, rank);
  load(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) LYNX_RETURN_IF_ERROR(status);
  return std::make_unique<TensorParallelModel>(std::move(files), std::move(collectives),
                                               std::move(shards));
}

}  // namespace lynx
