// SPDX-License-Identifier: Apache-2.0
// The weights of a model, packed by a back-end and ready for the forward pass.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/model_files.h"
#include "lynx/backend.h"
#include "lynx/status.h"
#include "model/model.h"
#include "model/packed_file.h"

namespace lynx {

// Which part of a model a rank holds; {0, 1}: all of it. Matrices that make heads or inner channels
// (q, k, v, gate, up) and the head are split by outputs, those that take them in (o, down) by
// inputs.
struct ShardSpec {
  int rank = 0;
  int size = 1;
};

// float32 in the back-end's memory, or nothing.
struct Vector {
  Buffer memory;
  const float* data() const { return reinterpret_cast<const float*>(memory.get()); }
  bool empty() const { return memory == nullptr; }
};

struct Linear {
  std::unique_ptr<Weight> weight;  // [n, k]
  Vector bias;                     // [n] or empty

  // y = this · x, [rows, n]; kAccumulate adds to y instead.
  enum class Into { kReplace, kAccumulate };
  GemmOutput To(float* y, Into into = Into::kReplace) const;
};

struct LayerWeights {
  Vector input_norm;  // [hidden_size]
  Linear q, k, v, o;
  Vector q_norm, k_norm;  // [head_dim], Qwen3 only
  Vector post_attention_norm;
  Linear gate, up, down;
};

struct ModelWeights {
  std::unique_ptr<PackedFile> packed_file;  // what the matrices are read from; null: memory
  std::unique_ptr<Weight> embedding;        // [vocab_size, hidden_size]; may read the mapped file
  std::vector<LayerWeights> layers;
  Vector norm;             // [hidden_size]
  Linear head;             // [vocab_size, hidden_size]; packed from the embedding when tied
  int64_t head_begin = 0;  // the token of its first row
  std::unique_ptr<PackedFileWriter> packed_file_writer;  // of the matrices above; may be null
};

// kInvalidArgument, naming the sizes, when the model cannot be divided among so many ranks: its KV
// heads or its inner channels do not come out even, or a quantized block would be cut.
absl::Status CheckShards(const ModelFiles& files, int num_ranks);

// Packs the shard's part of every tensor; rank 0 checks all for NaN and infinity. `files` outlives
// the result. kResourceExhausted when the back-end's memory does not hold it.
//
// With a cache directory, packed matrices are mapped from a file there if it has them, and written
// to it if not (packed_file.h). The file's name says what it was made from: the model's path, its
// hash, sizes and times of its files, the layout of the back-end and the shard. A file that is
// damaged, or cannot be written, is a line in the log and nothing else.
absl::StatusOr<ModelWeights> LoadWeights(const ModelFiles& files, Backend& backend,
                                         const ShardSpec& shard,
                                         const std::function<void(const LoadProgress&)>& progress,
                                         const std::string& cache_directory);

// Bytes of matrices that one decode step reads.
size_t DecodeBytes(const ModelWeights& weights);

}  // namespace lynx
