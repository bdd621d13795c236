// SPDX-License-Identifier: Apache-2.0
// `lynx`: one program, one subcommand a role. Each builds its objects and passes them down.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "app/bench.h"
#include "app/bench_handoff.h"
#include "app/bench_serve_flags.h"
#include "app/calibrate.h"
#include "app/chat.h"
#include "app/daemon.h"
#include "app/flags.h"
#include "app/gateway_command.h"
#include "app/inspect.h"
#include "app/serve.h"

namespace lynx {
namespace {

// --max_num_seqs is --max-num-seqs; -tp, vLLM's word, is more than the one letter of a short
// option.
std::vector<std::string> NormalizeArguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "-tp") argument = "--tensor-parallel-size";
    if (argument.rfind("--", 0) == 0) {
      const size_t end = std::min(argument.find('='), argument.size());
      std::replace(argument.begin() + 2, argument.begin() + end, '_', '-');
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

// The flag that was probably meant, for the message about an unknown one.
std::string Suggestion(const CLI::App& app, const std::string& message) {
  const size_t begin = message.find("--");
  if (begin == std::string::npos) return "";
  const std::string unknown = message.substr(begin, message.find_first_of(" =]", begin) - begin);
  std::vector<std::string> names;
  const CLI::App* command = app.get_subcommands().empty() ? &app : app.get_subcommands()[0];
  if (!command->get_subcommands().empty()) command = command->get_subcommands()[0];
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  if (std::find(names.begin(), names.end(), unknown) != names.end()) return "";
  const std::string near = NearestWord(unknown, names);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

int Finish(const char* command, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "lynx %s: %s\n", command, std::string(status.message()).c_str());
  return 1;
}

// The effective configuration, once at start. API keys are not in it: they live in a file.
void PrintConfig(const ClusterConfig& config) {
  std::printf("effective configuration:\n");
  std::istringstream lines(ToYaml(config));
  for (std::string line; std::getline(lines, line);) std::printf("  %s\n", line.c_str());
  std::fflush(stdout);
}

absl::StatusOr<ClusterConfig> CheckedForRole(ClusterConfig config) {
  LYNX_RETURN_IF_ERROR(CheckClusterConfig(config));
  return config;
}

// Resolves, completes and checks the configuration, and runs the command with it unless only the
// check was asked for.
template <typename F>
int WithConfig(const char* command, const ConfigFlags& flags,
               absl::StatusOr<ClusterConfig> (*complete)(ClusterConfig), bool print, F&& run) {
  auto config = flags.Resolve();
  if (config.ok()) config = complete(*std::move(config));
  if (!config.ok()) return Finish(command, config.status());
  if (flags.check_config) {
    std::printf("%s", ToYaml(*config).c_str());
    return 0;
  }
  if (print) PrintConfig(*config);
  return Finish(command, run(*config));
}

absl::Status RunRole(ClusterConfig config, bool prefill, int index, const std::string& listen) {
  const RoleConfig& role = prefill ? config.context : config.generation;
  if (index < 0 || index >= role.num_instances) {
    return absl::InvalidArgumentError(
        absl::StrCat("--index: ", index, " is not in 0..", role.num_instances - 1));
  }
  if (prefill && config.colocated) {
    return absl::InvalidArgumentError("a colocated cluster has no prefill daemons");
  }
  DaemonOptions options{.config = std::move(config), .index = index, .listen_address = listen};
  options.role = prefill                    ? Role::kPrefill
                 : options.config.colocated ? Role::kColocated
                                            : Role::kDecode;
  return RunDaemon(options);
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Lynx: disaggregated LLM serving. Prefill and decode run apart; the KV cache travels\n"
      "in nested planes, drafts start on the first of them, and every answer is exact.\n\n"
      "Start here:  lynx serve --model PATH"};
  app.name("lynx");
  app.set_version_flag("--version", std::string("lynx ") + LYNX_VERSION);
  app.require_subcommand(1);

  CLI::App* serve = app.add_subcommand("serve", "Run a whole cluster on this machine");
  ConfigFlags serve_flags(*serve, {.gateway = true, .engine = true, .cluster = true});

  CLI::App* gateway = app.add_subcommand("gateway", "Run the HTTP front of a cluster");
  ConfigFlags gateway_flags(*gateway, {.gateway = true});

  // Daemons under `serve` leave it to their parent to print the configuration.
  bool supervised = false;
  int index = 0;
  std::string listen;
  CLI::App* prefill = app.add_subcommand("prefill", "Run one prefill daemon of a cluster");
  CLI::App* decode = app.add_subcommand("decode", "Run one decode daemon of a cluster");
  ConfigFlags prefill_flags(*prefill, {.engine = true});
  ConfigFlags decode_flags(*decode, {.engine = true});
  for (CLI::App* command : {gateway, prefill, decode}) {
    command->add_flag("--supervised", supervised)->group("");  // not in --help
  }
  for (CLI::App* role : {prefill, decode}) {
    role->add_option("--index", index, "Which of the section's urls this daemon is (from 0)");
    role->add_option("--listen", listen, "host:port to listen on instead of the url's");
  }

  ChatOptions chat_options;
  CLI::App* chat = app.add_subcommand("chat", "Talk to a running server");
  chat->add_option("prompt", chat_options.prompt, "Ask this once; without it, a conversation");
  chat->add_option("--url", chat_options.url, "The server")->capture_default_str();
  chat->add_option("--api-key", chat_options.api_key, "Key, if the server wants one")
      ->envname("LYNX_API_KEY");
  chat->add_option("--model", chat_options.model, "Served model name");
  chat->add_option("--system", chat_options.system, "System message");
  chat->add_option("--temperature", chat_options.temperature, "0 is greedy");
  chat->add_option("--max-tokens", chat_options.max_tokens, "Longest answer");
  chat->add_option("--seed", chat_options.seed, "Seed of the sampling");

  std::string inspect_path;
  bool list_tensors = false, quick = false;
  CLI::App* inspect = app.add_subcommand("inspect", "Say what a model file holds");
  inspect->add_option("model", inspect_path, "GGUF file or Hugging Face directory")->required();
  inspect->add_flag("--tensors", list_tensors, "List every tensor");
  inspect->add_flag("--quick", quick, "Do not read and check the weights");

  CalibrateOptions calibrate_options;
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "Find how many bits of each layer the anchor should hold");
  calibrate->add_option("--model", calibrate_options.config.model, "Model")->required();
  calibrate->add_option("--output", calibrate_options.output, "File for the table");
  calibrate->add_option("--bits", calibrate_options.bits, "Average code bits")
      ->check(CLI::Range(2.0, 4.0))
      ->capture_default_str();
  calibrate->add_option("--threads", calibrate_options.threads, "0: all cores")
      ->check(CLI::Range(0, 1024));
  calibrate->add_option("--prompt-tokens", calibrate_options.prompt_tokens, "Length of a prompt")
      ->capture_default_str();
  calibrate->add_option("--prompts", calibrate_options.prompts, "How many prompts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  calibrate->add_option("--corpus", calibrate_options.corpus, "Directory of text files")
      ->capture_default_str();

  CLI::App* bench = app.add_subcommand("bench", "Measure this machine; JSON lines");
  bench->require_subcommand(1);
  BenchEngineOptions engine_options;
  CLI::App* bench_engine = bench->add_subcommand("engine", "Prefill and decode speed of a model");
  bench_engine->add_option("--model", engine_options.config.model, "Model")->required();
  bench_engine->add_option("--threads", engine_options.threads, "0: all cores")
      ->check(CLI::Range(0, 1024));
  bench_engine->add_option("--prefill", engine_options.prefill, "Prompt lengths")->delimiter(',');
  bench_engine->add_option("--depth", engine_options.depth, "Context lengths")->delimiter(',');
  bench_engine->add_option("--batch", engine_options.batch, "Sequences at once")->delimiter(',');
  bench_engine->add_option("--repeats", engine_options.repeats, "Runs of each case")
      ->check(CLI::Range(1, 1000));
  BenchCodecOptions codec_options;
  CLI::App* bench_codec = bench->add_subcommand("codec", "Encode and decode speed of KV codecs");
  bench_codec->add_option("--codecs", codec_options.codecs, "Which (default: all)")->delimiter(',');
  bench_codec->add_option("--head-dim", codec_options.head_dim, "Channels of a head")
      ->check(CLI::Range(16, 256));
  bench_codec->add_option("--repeats", codec_options.repeats, "Runs of each case")
      ->check(CLI::Range(1, 1000));
  BenchAccuracyOptions accuracy_options;
  CLI::App* bench_accuracy =
      bench->add_subcommand("accuracy", "What KV codecs do to a model's answers");
  bench_accuracy->add_option("--model", accuracy_options.config.model, "Model")->required();
  bench_accuracy->add_option("--threads", accuracy_options.threads, "0: all cores")
      ->check(CLI::Range(0, 1024));
  bench_accuracy->add_option("--codecs", accuracy_options.codecs, "Which (default: all)")
      ->delimiter(',');
  bench_accuracy
      ->add_option("--planes", accuracy_options.planes,
                   "Prefixes of the planes codec: k4v2 (2, 3, 4 or 8 bits each), exact, or a\n"
                   "file of lynx calibrate")
      ->delimiter(',');
  bench_accuracy->add_option("--prompt-tokens", accuracy_options.prompt_tokens, "Prompt lengths")
      ->delimiter(',');
  bench_accuracy->add_option("--prompts", accuracy_options.prompts, "Prompts of each length")
      ->check(CLI::Range(1, 100000));
  bench_accuracy->add_option("--corpus", accuracy_options.corpus, "Directory of text files")
      ->capture_default_str();
  bench_accuracy->add_flag("--per-layer", accuracy_options.per_layer, "Error of every layer too");
  BenchIncastOptions incast_options;
  CLI::App* bench_incast = bench->add_subcommand(
      "incast", "Several prefill sides hand over to one decode side through its one link");
  bench_incast
      ->add_option("--link", incast_options.link,
                   "Rate of every link, such as 1gbit (needs root); none: loopback, as it is")
      ->capture_default_str();
  bench_incast->add_option("--rtt", incast_options.rtt, "Round trip between hosts")
      ->capture_default_str();
  bench_incast->add_option("--load", incast_options.load, "Share of the link that is asked for")
      ->check(CLI::Range(0.01, 2.0))
      ->capture_default_str();
  bench_incast->add_option("--senders", incast_options.senders, "Numbers of prefill sides")
      ->check(CLI::Range(1, 64))
      ->delimiter(',');
  bench_incast
      ->add_option("--policies", incast_options.policies,
                   "lynx, sender_strict, two_streams, fifo (default: all)")
      ->delimiter(',');
  bench_incast->add_option("--seeds", incast_options.seeds, "Of the arrivals")->delimiter(',');
  bench_incast->add_option("--requests", incast_options.requests, "Of each run")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  bench_incast->add_option("--prompt-tokens", incast_options.prompt_tokens, "Prompt lengths")
      ->check(CLI::Range(1, 1 << 20))
      ->delimiter(',');
  bench_incast->add_option("--codec", incast_options.codec, "A KV codec with more than one stage")
      ->capture_default_str();
  bench_incast->add_option("--layers", incast_options.layers, "Of the model whose KV it is")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  bench_incast->add_option("--kv-heads", incast_options.kv_heads, "Of a layer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  bench_incast->add_option("--head-dim", incast_options.head_dim, "Channels of a head")
      ->check(CLI::Range(16, 256))
      ->capture_default_str();
  bench_incast->add_option("--json", incast_options.json, "Append the lines to this file too");
  BenchHandoffOptions handoff_options;
  CLI::App* bench_handoff =
      bench->add_subcommand("handoff", "Hand-offs over given links, codecs side by side");
  AddBenchHandoffFlags(*bench_handoff, &handoff_options);
  BenchServeOptions bench_serve_options;
  CLI::App* bench_serve = bench->add_subcommand("serve", "Load on a server with an OpenAI API");
  AddBenchServeFlags(*bench_serve, &bench_serve_options);
  for (auto [command, config] : {std::pair(bench_engine, &engine_options.config),
                                 std::pair(bench_codec, &codec_options.config),
                                 std::pair(bench_accuracy, &accuracy_options.config)}) {
    command->add_option("--cpu-target", config->cpu_target, "auto, scalar, avx2, avx512 …")
        ->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512", "avx512vnni"}));
    command->add_option("--compute", config->compute, "fast or f32")
        ->check(CLI::IsMember({"fast", "f32"}));
  }

  std::vector<std::string> arguments = NormalizeArguments(argc, argv);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "lynx: %s%s\nSee lynx --help\n", e.what(),
                 Suggestion(app, e.what()).c_str());
    return 1;
  }

  if (serve->parsed()) {
    return WithConfig("serve", serve_flags, CompleteForServe, /*print=*/true,
                      [&](const ClusterConfig& config) -> absl::Status {
                        LYNX_ASSIGN_OR_RETURN(const auto keys, serve_flags.ApiKeys(config));
                        return RunServe(config, keys);
                      });
  }
  if (gateway->parsed()) {
    return WithConfig("gateway", gateway_flags, CheckedForRole, !supervised,
                      [&](const ClusterConfig& config) -> absl::Status {
                        LYNX_ASSIGN_OR_RETURN(const auto keys, gateway_flags.ApiKeys(config));
                        return RunGateway(config, keys);
                      });
  }
  if (prefill->parsed() || decode->parsed()) {
    const bool is_prefill = prefill->parsed();
    return WithConfig(is_prefill ? "prefill" : "decode", is_prefill ? prefill_flags : decode_flags,
                      CheckedForRole, !supervised, [&](const ClusterConfig& config) {
                        return RunRole(config, is_prefill, index, listen);
                      });
  }
  if (chat->parsed()) return Finish("chat", RunChat(chat_options));
  if (inspect->parsed()) return Finish("inspect", RunInspect(inspect_path, list_tensors, quick));
  if (calibrate->parsed()) return Finish("calibrate", RunCalibrate(calibrate_options));
  if (bench_engine->parsed()) return Finish("bench engine", RunBenchEngine(engine_options));
  if (bench_accuracy->parsed()) {
    return Finish("bench accuracy", RunBenchAccuracy(accuracy_options));
  }
  if (bench_incast->parsed()) return Finish("bench incast", RunBenchIncast(incast_options));
  if (bench_handoff->parsed()) return Finish("bench handoff", RunBenchHandoff(handoff_options));
  if (bench_serve->parsed()) return Finish("bench serve", RunBenchServe(bench_serve_options));
  return Finish("bench codec", RunBenchCodec(codec_options));
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) { return lynx::Main(argc, argv); }
