// SPDX-License-Identifier: Apache-2.0
#include "bench/commands.h"

#include <memory>

#include "bench/accuracy/accuracy.h"
#include "bench/accuracy/calibrate.h"
#include "bench/codec.h"
#include "bench/engine.h"
#include "bench/handoff/handoff.h"
#include "bench/incast/incast.h"
#include "bench/serve/flags.h"
#include "lynx/cpu_target.h"

namespace lynx {
namespace {

void AddKernelFlags(CLI::App& command, ClusterConfig* config) {
  command.add_option("--cpu-target", config->cpu_target, "Instruction set of the kernels")
      ->check(CLI::IsMember(cpu::kTargetNames));
  command.add_option("--compute", config->compute, "fast or f32")
      ->check(CLI::IsMember({"fast", "f32"}));
}

void AddEngine(CLI::App& bench, Commands* commands) {
  auto options = std::make_shared<BenchEngineOptions>();
  CLI::App* command = bench.add_subcommand("engine", "Prefill and decode speed of a model");
  command->add_option("--model", options->config.model, "Model")->required();
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 1024));
  command->add_option("--prefill", options->prefill, "Prompt lengths")->delimiter(',');
  command->add_option("--depth", options->depth, "Context lengths")->delimiter(',');
  command->add_option("--batch", options->batch, "Sequences at once")->delimiter(',');
  command->add_option("--repeats", options->repeats, "Runs of each case")
      ->check(CLI::Range(1, 1000));
  AddKernelFlags(*command, &options->config);
  commands->push_back({"bench engine", command, [options] { return RunBenchEngine(*options); }});
}

void AddCodec(CLI::App& bench, Commands* commands) {
  auto options = std::make_shared<BenchCodecOptions>();
  CLI::App* command = bench.add_subcommand("codec", "Encode and decode speed of KV codecs");
  command->add_option("--codecs", options->codecs, "Which (default: all)")->delimiter(',');
  command->add_option("--head-dim", options->head_dim, "Channels of a head")
      ->check(CLI::Range(16, 256));
  command->add_option("--repeats", options->repeats, "Runs of each case")
      ->check(CLI::Range(1, 1000));
  AddKernelFlags(*command, &options->config);
  commands->push_back({"bench codec", command, [options] { return RunBenchCodec(*options); }});
}

void AddAccuracy(CLI::App& bench, Commands* commands) {
  auto options = std::make_shared<BenchAccuracyOptions>();
  CLI::App* command = bench.add_subcommand("accuracy", "What KV codecs do to a model's answers");
  command->add_option("--model", options->config.model, "Model")->required();
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 1024));
  command->add_option("--codecs", options->codecs, "Which (default: all)")->delimiter(',');
  command
      ->add_option("--planes", options->planes,
                   "Prefixes of the planes codec: k4v2 (2, 3, 4 or 8 bits each), exact, or a\n"
                   "file of lynx calibrate")
      ->delimiter(',');
  command->add_option("--prompt-tokens", options->prompt_tokens, "Prompt lengths")->delimiter(',');
  command->add_option("--prompts", options->prompts, "Prompts of each length")
      ->check(CLI::Range(1, 100000));
  command->add_option("--corpus", options->corpus, "Directory of text files")
      ->capture_default_str();
  command->add_flag("--per-layer", options->per_layer, "Error of every layer too");
  AddKernelFlags(*command, &options->config);
  commands->push_back(
      {"bench accuracy", command, [options] { return RunBenchAccuracy(*options); }});
}

void AddIncast(CLI::App& bench, Commands* commands) {
  auto options = std::make_shared<BenchIncastOptions>();
  CLI::App* command = bench.add_subcommand(
      "incast", "Several prefill sides hand over to one decode side through its one link");
  command
      ->add_option("--link", options->link,
                   "Rate of every link, such as 1gbit (needs root); none: loopback, as it is")
      ->capture_default_str();
  command->add_option("--rtt", options->rtt, "Round trip between hosts")->capture_default_str();
  command->add_option("--load", options->load, "Share of the link that is asked for")
      ->check(NumberIn(0.01, 2))
      ->capture_default_str();
  command->add_option("--senders", options->senders, "Numbers of prefill sides")
      ->check(CLI::Range(1, 64))
      ->delimiter(',');
  command
      ->add_option("--policies", options->policies,
                   "lynx, sender_strict, two_streams, fifo (default: all)")
      ->delimiter(',');
  command->add_option("--seeds", options->seeds, "Of the arrivals")->delimiter(',');
  command->add_option("--requests", options->requests, "Of each run")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--prompt-tokens", options->prompt_tokens, "Prompt lengths")
      ->check(CLI::Range(1, 1 << 20))
      ->delimiter(',');
  command->add_option("--codec", options->codec, "A KV codec with more than one stage")
      ->capture_default_str();
  command->add_option("--layers", options->layers, "Of the model whose KV it is")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--kv-heads", options->kv_heads, "Of a layer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--head-dim", options->head_dim, "Channels of a head")
      ->check(CLI::Range(16, 256))
      ->capture_default_str();
  command->add_option("--json", options->json, "Append the lines to this file too");
  commands->push_back({"bench incast", command, [options] { return RunBenchIncast(*options); }});
}

void AddHandoff(CLI::App& bench, Commands* commands) {
  auto options = std::make_shared<BenchHandoffOptions>();
  CLI::App* command =
      bench.add_subcommand("handoff", "Hand-offs over given links, codecs side by side");
  AddBenchHandoffFlags(*command, options.get());
  commands->push_back({"bench handoff", command, [options] { return RunBenchHandoff(*options); }});
}

void AddServe(CLI::App& bench, Commands* commands) {
  auto options = std::make_shared<BenchServeOptions>();
  CLI::App* command = bench.add_subcommand("serve", "Load on a server with an OpenAI API");
  AddBenchServeFlags(*command, options.get());
  commands->push_back({"bench serve", command, [options] { return RunBenchServe(*options); }});
}

void AddCalibrate(CLI::App& app, Commands* commands) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command =
      app.add_subcommand("calibrate", "Find how many bits of each layer the anchor should hold");
  command->add_option("--model", options->config.model, "Model")->required();
  command->add_option(
      "--output", options->output,
      "File for the table (default: where the daemons look for it, in --cache-dir)");
  command->add_option("--cache-dir", options->config.cache_dir,
                      "As of the daemons (default $XDG_CACHE_HOME/lynx or ~/.cache/lynx; off: the "
                      "table is only printed)");
  command->add_option("--bits", options->bits, "Average code bits")
      ->check(NumberIn(2, 4))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 1024));
  command->add_option("--prompt-tokens", options->prompt_tokens, "Length of a prompt")
      ->capture_default_str();
  command->add_option("--prompts", options->prompts, "How many prompts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--corpus", options->corpus, "Directory of text files")
      ->capture_default_str();
  commands->push_back({"calibrate", command, [options] { return RunCalibrate(*options); }});
}

}  // namespace

void AddBenchCommands(CLI::App& app, Commands* commands) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine; JSON lines");
  bench->require_subcommand(1);
  AddEngine(*bench, commands);
  AddCodec(*bench, commands);
  AddAccuracy(*bench, commands);
  AddIncast(*bench, commands);
  AddHandoff(*bench, commands);
  AddServe(*bench, commands);
  AddCalibrate(app, commands);
}

}  // namespace lynx
