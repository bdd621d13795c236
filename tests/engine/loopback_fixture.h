// SPDX-License-Identifier: Apache-2.0
// A prefill and a decode engine with the real sender, receiver, codec and kernels, over transports
// of one process. The receiving transport can be made to misbehave.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine_fixture.h"
#include "handoff/wire.h"
#include "kernels/cpu/cpu_backend.h"
#include "lynx/transport.h"
#include "transport/faulty_transport.h"

namespace lynx {

// Lets a stepping loop sleep until a transfer has news.
class Notifier {
 public:
  void Notify() {
    std::lock_guard lock(mutex_);
    notified_ = true;
    changed_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(2), [this] { return notified_; });
    notified_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
};

inline bool IsLaterStage(std::span<const std::byte> header) {
  const auto chunk = ParseChunkHeader(header);
  return chunk.ok() && chunk->stage > 0;
}

struct LoadedModel {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;

  static LoadedModel Load(const std::string& path, Compute compute = Compute::kFast,
                          int max_rows = 256) {
    return Load(path, cpu::CpuBackend::Create({.compute = compute}), max_rows);
  }
  static LoadedModel Load(const std::string& path, std::unique_ptr<Backend> backend,
                          int max_rows = 256) {
    LoadedModel m;
    m.backend = std::move(backend);
    auto model = Model::Load(path, *m.backend, max_rows);
    EXPECT_TRUE(model.ok()) << model.status();
    m.model = std::move(*model);
    return m;
  }
};

class LoopbackPair {
 public:
  struct Settings {
    EngineOptions options = SmallOptions();
    std::string codec = "planes";
    KvReceiver::Options receiver;
    DeviceChunks* device = nullptr;  // of both sides: the transports take its memory
    std::function<std::unique_ptr<Transport>()> make_transport;  // null: in this process
  };

  LoopbackPair(const Settings& settings, LoadedModel& prefill_side, LoadedModel& decode_side) {
    codec_ = std::move(*MakeCodec(settings.codec, *decode_side.backend));
    const SendPlan plan = DefaultSendPlan(*codec_, decode_side.model->kv_layout().num_layers, true);
    const auto hub = MakeLoopbackHub();
    const auto make_transport = [&] {
      return settings.make_transport != nullptr ? settings.make_transport()
                                                : MakeLoopbackTransport(hub, settings.device);
    };
    sending_ = make_transport();
    receiving_ = std::make_unique<FaultyTransport>(make_transport(), settings.device);

    EngineOptions prefill_options = settings.options;
    prefill_options.role = Role::kPrefill;
    Engine::Peers sender;
    sender.make_sender = [&](KvPoolView pool, std::function<void()> wake) {
      return KvSender::Create({}, *codec_, plan, pool, *sending_, Waker(wake));
    };
    auto p = Engine::Create(prefill_options, *prefill_side.model, sender);
    EXPECT_TRUE(p.ok()) << p.status();
    prefill = std::move(*p);
    remote.set_engine(prefill.get());

    EngineOptions decode_options = settings.options;
    decode_options.role = Role::kDecode;
    decode_options.exact_handoff = codec_->lossless();
    Engine::Peers receiver;
    receiver.make_receiver = [&](KvPoolView pool, std::function<void()> wake) {
      return KvReceiver::Create(settings.receiver, *codec_, plan, pool, *receiving_, Waker(wake));
    };
    receiver.remote = &remote;
    receiver.receiver_address = receiving_->address();
    auto d = Engine::Create(decode_options, *decode_side.model, receiver);
    EXPECT_TRUE(d.ok()) << d.status();
    decode = std::move(*d);
  }
  ~LoopbackPair() {
    decode.reset();
    prefill.reset();
  }

  FaultyTransport& link() { return *receiving_; }
  void Submit(Request request) { clients.Submit(*decode, std::move(request)); }
  void Step() {
    bool progress = prefill->Step();
    progress |= decode->Step();
    if (!progress) notifier_.Wait();
  }
  template <typename Done>
  void RunUntil(Done&& done) {
    for (int i = 0; i < 100000 && !done(); ++i) Step();
    EXPECT_TRUE(done());
  }
  void RunAll() {
    RunUntil([this] { return clients.AllFinished(); });
  }
  // Every block comes back once the transfers have ended on both sides.
  void ExpectNoLeak() {
    const auto free = [](const EngineStats& s) {
      return s.blocks_free + s.blocks_cached + s.blocks_packed == s.blocks_total;
    };
    RunUntil([&] { return free(prefill->stats()) && free(decode->stats()); });
  }

 private:
  std::function<void()> Waker(std::function<void()> wake) {
    return [this, wake = std::move(wake)] {
      wake();
      notifier_.Notify();
    };
  }

  std::unique_ptr<Codec> codec_;
  std::unique_ptr<Transport> sending_;
  std::unique_ptr<FaultyTransport> receiving_;
  Notifier notifier_;

 public:
  InProcessPrefill remote{nullptr};
  Clients clients;
  std::unique_ptr<Engine> prefill, decode;
};

}  // namespace lynx
