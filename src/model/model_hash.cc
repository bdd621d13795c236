// SPDX-License-Identifier: Apache-2.0
#include "model/model_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace lynx {
namespace {

class Hash {
 public:
  Hash() : state_(XXH64_createState()) { XXH64_reset(state_.get(), 0); }

  void Bytes(const void* data, size_t size) { XXH64_update(state_.get(), data, size); }
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void Add(T value) { Bytes(&value, sizeof(value)); }
  uint64_t Value() const { return XXH64_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH64_state_t* state) const { XXH64_freeState(state); }
  };
  std::unique_ptr<XXH64_state_t, Free> state_;
};

void AddConfig(const ModelConfig& config, Hash& hash) {
  hash.Add(config.architecture);
  for (int number : {config.num_layers, config.hidden_size, config.intermediate_size,
                     config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size,
                     config.max_model_len, config.sliding_window}) {
    hash.Add(number);
  }
  hash.Add(config.rms_norm_eps);
  hash.Add(config.tie_word_embeddings);
  const RopeConfig& rope = config.rope;
  hash.Add(rope.scaling);
  hash.Add(rope.original_max_position);
  for (double number : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                        rope.beta_fast, rope.beta_slow, rope.attention_factor}) {
    hash.Add(number);
  }
  for (float divisor : rope.freq_divisors) hash.Add(divisor);
}

void AddTensor(const TensorInfo& tensor, Hash& hash) {
  constexpr size_t kSample = 4096;
  hash.Bytes(tensor.name.data(), tensor.name.size());
  hash.Add(tensor.type);
  for (int64_t extent : tensor.shape) hash.Add(extent);
  const size_t size = std::min(tensor.bytes, kSample);
  for (size_t begin : {size_t{0}, (tensor.bytes - size) / 2, tensor.bytes - size}) {
    hash.Bytes(tensor.data + begin, size);
  }
}

}  // namespace

uint64_t HashModel(const ModelFiles& files) {
  std::vector<const TensorInfo*> tensors;  // by name: how a checkpoint is sharded says nothing
  for (const TensorInfo& tensor : files.tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, [](const TensorInfo* tensor) { return tensor->name; });
  Hash hash;
  AddConfig(files.config(), hash);
  for (const TensorInfo* tensor : tensors) AddTensor(*tensor, hash);
  return hash.Value();
}

}  // namespace lynx
