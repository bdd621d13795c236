// SPDX-License-Identifier: Apache-2.0
#include "app/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace lynx {

namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::vector<std::string>& added) {
  std::vector<std::string> environment = added;  // the first of a name counts
  for (char** e = environ; *e != nullptr; ++e) environment.push_back(*e);
  return environment;
}

// `ip netns exec` also mounts the namespace's own /sys, where UCX looks for devices.
std::vector<std::string> CommandOf(const std::vector<std::string>& arguments,
                                   const std::string& network_namespace) {
  std::error_code ignored;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  std::vector<std::string> command;
  if (!network_namespace.empty()) command = {"ip", "netns", "exec", network_namespace};
  command.push_back(self);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

absl::StatusOr<pid_t> SpawnSelf(const std::vector<std::string>& arguments,
                                const SpawnOptions& options) {
  // Everything is prepared before fork: between fork and exec only async-signal-safe calls are
  // made.
  std::vector<std::string> command = CommandOf(arguments, options.network_namespace);
  std::vector<std::string> environment = Environment(options.environment);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : options.cores) CPU_SET(core, &cores);
  const std::vector<char*> argv = Pointers(command), envp = Pointers(environment);
  const int log = options.log_file.empty() ? -1
                                           : open(options.log_file.c_str(),
                                                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0 && !options.log_file.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(options.log_file, ": ", std::strerror(errno)));
  }

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    setpgid(0, 0);  // Ctrl-C goes to the parent, which stops its children in order
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    if (!options.cores.empty() && sched_setaffinity(0, sizeof cores, &cores) != 0) _exit(1);
    if (log >= 0 && (dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)) _exit(1);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  const int why = errno;
  if (log >= 0) close(log);
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(why)));
  return pid;
}

std::string DescribeExit(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("was killed by signal ", WTERMSIG(status));
  return absl::StrCat("exited with code ", WEXITSTATUS(status));
}

absl::StatusOr<int> FindFreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ResourceExhaustedError(absl::StrCat("socket: ", std::strerror(errno)));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  if (!ok) return absl::ResourceExhaustedError("no free port on 127.0.0.1");
  return ntohs(address.sin_port);
}

absl::Status CheckCanListen(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("host ", host, ": ", gai_strerror(error)));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
  ok = ok && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int why = errno;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  if (ok) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", host, ":", port, ": ", std::strerror(why)));
}

}  // namespace lynx
