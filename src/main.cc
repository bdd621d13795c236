// SPDX-License-Identifier: Apache-2.0
// `lynx`: one program, one subcommand a role. Each builds its objects and passes them down.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "app/arguments.h"
#include "app/chat.h"
#include "app/command.h"
#include "app/daemon.h"
#include "app/flags.h"
#include "app/gateway_command.h"
#include "app/inspect.h"
#include "app/serve.h"
#include "bench/commands.h"

namespace lynx {
namespace {

// The effective configuration, once at start. API keys are not in it: they live in a file.
void PrintConfig(const ClusterConfig& config) {
  std::printf("effective configuration:\n");
  std::istringstream lines(ToYaml(config));
  for (std::string line; std::getline(lines, line);) std::printf("  %s\n", line.c_str());
  std::fflush(stdout);
}

absl::StatusOr<ClusterConfig> CheckedForRole(ClusterConfig config) {
  LYNX_RETURN_IF_ERROR(CheckClusterConfig(config));
  LYNX_RETURN_IF_ERROR(CheckConfigFiles(config));
  return config;
}

// Resolves, completes and checks the configuration, and runs the command with it unless only the
// check was asked for.
template <typename F>
absl::Status WithConfig(const ConfigFlags& flags,
                        absl::StatusOr<ClusterConfig> (*complete)(ClusterConfig), bool print,
                        F&& run) {
  LYNX_ASSIGN_OR_RETURN(ClusterConfig config, flags.Resolve());
  LYNX_ASSIGN_OR_RETURN(config, complete(std::move(config)));
  if (flags.check_config) {
    std::printf("%s", ToYaml(config).c_str());
    return absl::OkStatus();
  }
  if (print) PrintConfig(config);
  return run(config);
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

void AddServe(CLI::App& app, Commands* commands) {
  CLI::App* command = app.add_subcommand("serve", "Run a whole cluster on this machine");
  auto flags = std::make_shared<ConfigFlags>(
      *command, ConfigFlags::Groups{.gateway = true, .engine = true, .cluster = true});
  const auto run = [flags](const ClusterConfig& config) -> absl::Status {
    LYNX_ASSIGN_OR_RETURN(const auto keys, flags->ApiKeys(config));
    return RunServe(config, keys);
  };
  commands->push_back({"serve", command, [flags, run] {
                         return WithConfig(*flags, CompleteForServe, /*print=*/true, run);
                       }});
}

// Processes under `serve` leave it to their parent to print the configuration.
void AddSupervised(CLI::App& command, bool* supervised) {
  command.add_flag("--supervised", *supervised)->group("");  // not in --help
}

void AddGateway(CLI::App& app, Commands* commands) {
  CLI::App* command = app.add_subcommand("gateway", "Run the HTTP front of a cluster");
  auto flags = std::make_shared<ConfigFlags>(*command, ConfigFlags::Groups{.gateway = true});
  auto supervised = std::make_shared<bool>(false);
  AddSupervised(*command, supervised.get());
  const auto run = [flags](const ClusterConfig& config) -> absl::Status {
    LYNX_ASSIGN_OR_RETURN(const auto keys, flags->ApiKeys(config));
    return RunGateway(config, keys);
  };
  commands->push_back({"gateway", command, [flags, supervised, run] {
                         return WithConfig(*flags, CheckedForRole, !*supervised, run);
                       }});
}

void AddRole(CLI::App& app, const char* name, const char* help, bool is_prefill,
             Commands* commands) {
  struct Options {
    bool supervised = false;
    int index = 0;
    std::string listen;
  };
  CLI::App* command = app.add_subcommand(name, help);
  auto flags = std::make_shared<ConfigFlags>(*command, ConfigFlags::Groups{.engine = true});
  auto options = std::make_shared<Options>();
  AddSupervised(*command, &options->supervised);
  command->add_option("--index", options->index,
                      "Which of the section's urls this daemon is (from 0)");
  command->add_option("--listen", options->listen, "host:port to listen on instead of the url's");
  const auto run = [options, is_prefill](const ClusterConfig& config) {
    return RunRole(config, is_prefill, options->index, options->listen);
  };
  commands->push_back({name, command, [flags, options, run] {
                         return WithConfig(*flags, CheckedForRole, !options->supervised, run);
                       }});
}

void AddChat(CLI::App& app, Commands* commands) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a running server");
  command->add_option("prompt", options->prompt, "Ask this once; without it, a conversation");
  command->add_option("--url", options->url, "The server")->capture_default_str();
  command->add_option("--api-key", options->api_key, "Key, if the server wants one")
      ->envname("LYNX_API_KEY");
  command->add_option("--model", options->model, "Served model name");
  command->add_option("--system", options->system, "System message");
  command->add_option("--temperature", options->temperature, "0 is greedy")
      ->check(NumberIn(0, 100));
  command->add_option("--max-tokens", options->max_tokens, "Longest answer");
  command->add_option("--seed", options->seed, "Seed of the sampling");
  commands->push_back({"chat", command, [options] { return RunChat(*options); }});
}

void AddInspect(CLI::App& app, Commands* commands) {
  struct Options {
    std::string path;
    bool tensors = false, quick = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a model file holds");
  command->add_option("model", options->path, "GGUF file or Hugging Face directory")->required();
  command->add_flag("--tensors", options->tensors, "List every tensor");
  command->add_flag("--quick", options->quick, "Do not read and check the weights");
  commands->push_back({"inspect", command, [options] {
                         return RunInspect(options->path, options->tensors, options->quick);
                       }});
}

int Run(const Command& command) {
  const absl::Status status = command.run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "lynx %s: %s\n", command.name.c_str(),
               std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Lynx: disaggregated LLM serving. Prefill and decode run apart; the KV cache travels\n"
      "in nested planes, drafts start on the first of them, and every answer is exact.\n\n"
      "Start here:  lynx serve --model PATH"};
  app.name("lynx");
  app.set_version_flag("--version", std::string("lynx ") + LYNX_VERSION);
  app.require_subcommand(1);
  Commands commands;
  AddServe(app, &commands);
  AddGateway(app, &commands);
  AddRole(app, "prefill", "Run one prefill daemon of a cluster", /*is_prefill=*/true, &commands);
  AddRole(app, "decode", "Run one decode daemon of a cluster", /*is_prefill=*/false, &commands);
  AddChat(app, &commands);
  AddInspect(app, &commands);
  AddBenchCommands(app, &commands);

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
  return Run(*std::find_if(commands.begin(), commands.end(),
                           [](const Command& command) { return command.app->parsed(); }));
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) { return lynx::Main(argc, argv); }
