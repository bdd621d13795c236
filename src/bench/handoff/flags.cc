// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/handoff.h"
#include "lynx/cpu_target.h"

namespace lynx {

void AddBenchHandoffFlags(CLI::App& command, BenchHandoffOptions* o) {
  command.add_option("--model", o->config.model, "Model")->required();
  command
      .add_option("--link", o->link,
                  "Link rates, such as 200mbit (network namespaces; needs root), or none: loopback")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--rtt", o->rtt, "Round trips of the links")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--prompt-tokens", o->prompt_tokens, "Prompt lengths")
      ->delimiter(',')
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  command.add_option("--codecs", o->codecs, "Which, side by side")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--verify", o->verify, "residual, source, hold, auto: for codec planes")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--anchor", o->anchor, "Values of kv.anchor: for codec planes")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--anchor-table", o->config.kv.anchor_table,
                     "File of lynx calibrate, for anchors default, table and auto");
  command.add_option("--busy", o->busy, "The prefill daemon is idle, busy, or both in turn")
      ->capture_default_str();
  command.add_flag("--prefill-cached", o->prefill_cached,
                   "The prefill daemon has every prompt in its prefix cache: only its KV's way is "
                   "left");
  command.add_option("--threads", o->threads, "Compute threads of each daemon")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_flag("--own-cores", o->own_cores,
                   "Each daemon runs on as many cores as --threads says, and no other daemon on "
                   "them, as on hosts of their own");
  command.add_option("--repeat", o->repeat, "Prompts of each cell")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--max-tokens", o->max_tokens, "Length of the answers")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  command.add_option("--corpus", o->corpus, "Directory of text files")->capture_default_str();
  command.add_option("--json", o->json, "Append the JSON lines to this file too");
  command.add_flag("--list", o->list, "List the cells and measure nothing");
  command.add_option("--cpu-target", o->config.cpu_target, "Instruction set of the kernels")
      ->check(CLI::IsMember(cpu::kTargetNames));
}

}  // namespace lynx
