// SPDX-License-Identifier: Apache-2.0
#include "rpc/daemon_watch.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lynx.grpc.pb.h"
#include "rpc/channel.h"

namespace lynx {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(300);
constexpr auto kDeadline = std::chrono::milliseconds(2000);

// One question under way: owns what gRPC writes into.
template <typename Reply>
struct Question {
  // It keeps the channel alive. Its end must come before Closed is called: a channel that ends on
  // one of gRPC's own threads, as the last one, makes that thread wait for itself.
  std::optional<grpc::ClientContext> context{std::in_place};
  Reply reply;
};

class DaemonWatchImpl final : public DaemonWatch {
 public:
  DaemonWatchImpl(std::vector<std::string> addresses, bool with_stats,
                  std::function<void(const WatchedDaemon&)> on_info)
      : with_stats_(with_stats), on_info_(std::move(on_info)) {
    for (std::string& address : addresses) {
      auto entry = std::make_unique<Entry>();
      entry->channel = OpenChannel(address);
      entry->stub = v1::Daemon::NewStub(entry->channel);
      entry->daemon.address = std::move(address);
      entries_.push_back(std::move(entry));
    }
    thread_ = std::thread([this] { Loop(); });
  }

  ~DaemonWatchImpl() override {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    for (auto& entry : entries_) {
      if (entry->info) entry->info->context->TryCancel();
      if (entry->stats) entry->stats->context->TryCancel();
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_open_ == 0; });
    lock.unlock();
    thread_.join();
  }

  size_t size() const override { return entries_.size(); }

  WatchedDaemon Get(size_t index) const override {
    std::lock_guard lock(mutex_);
    return entries_[index]->daemon;
  }

  std::shared_ptr<grpc::Channel> channel(size_t index) const override {
    return entries_[index]->channel;
  }

  void MarkFailed(size_t index, const std::string& why) override {
    std::lock_guard lock(mutex_);
    entries_[index]->daemon.reachable = false;
    entries_[index]->daemon.error = why;
  }

 private:
  struct Entry {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Daemon::Stub> stub;
    WatchedDaemon daemon;
    std::shared_ptr<Question<v1::DaemonInfo>> info;  // null: none under way
    std::shared_ptr<Question<v1::StatsReply>> stats;
  };

  void Loop() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      for (auto& entry : entries_) {
        if (!entry->info) AskInfo(*entry);
        if (with_stats_ && !entry->stats && entry->daemon.reachable) AskStats(*entry);
      }
      changed_.wait_for(lock, kInterval, [&] { return stopping_; });
    }
  }

  // Needs mutex_. gRPC never runs a callback inside the call that starts it.
  void AskInfo(Entry& entry) {
    auto question = std::make_shared<Question<v1::DaemonInfo>>();
    question->context->set_deadline(std::chrono::system_clock::now() + kDeadline);
    entry.info = question;
    ++num_open_;
    static const v1::InfoRequest kRequest;
    entry.stub->async()->Info(
        &*question->context, &kRequest, &question->reply,
        [this, &entry, question](const grpc::Status& status) { OnInfo(entry, *question, status); });
  }

  void AskStats(Entry& entry) {
    auto question = std::make_shared<Question<v1::StatsReply>>();
    question->context->set_deadline(std::chrono::system_clock::now() + kDeadline);
    entry.stats = question;
    ++num_open_;
    static const v1::StatsRequest kRequest;
    entry.stub->async()->Stats(&*question->context, &kRequest, &question->reply,
                               [this, &entry, question](const grpc::Status& status) {
                                 std::lock_guard lock(mutex_);
                                 if (status.ok()) entry.daemon.stats = question->reply;
                                 entry.stats.reset();
                                 question->context.reset();
                                 Closed();
                               });
  }

  void OnInfo(Entry& entry, Question<v1::DaemonInfo>& question, const grpc::Status& status) {
    WatchedDaemon copy;
    bool report = false;
    {
      std::lock_guard lock(mutex_);
      entry.daemon.reachable = status.ok();
      entry.daemon.error = status.error_message();
      if (status.ok()) entry.daemon.info = question.reply;
      entry.info.reset();
      question.context.reset();
      report = !stopping_ && on_info_;
      if (report) copy = entry.daemon;
      if (!report) Closed();
    }
    if (!report) return;
    on_info_(copy);
    std::lock_guard lock(mutex_);
    Closed();
  }

  void Closed() {
    --num_open_;
    changed_.notify_all();
  }

  const bool with_stats_;
  std::function<void(const WatchedDaemon&)> on_info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Entry>> entries_;
  int num_open_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<DaemonWatch> DaemonWatch::Create(
    std::vector<std::string> addresses, bool with_stats,
    std::function<void(const WatchedDaemon&)> on_info) {
  return std::make_unique<DaemonWatchImpl>(std::move(addresses), with_stats, std::move(on_info));
}

}  // namespace lynx
