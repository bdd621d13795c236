// SPDX-License-Identifier: Apache-2.0
// The architecture as a test: a file may include only headers of its own module, of the modules on
// its DEPS line in CMakeLists.txt, and of what those name in turn.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;

struct Module {
  fs::path directory;  // relative to the root
  std::set<std::string> deps;
};

std::string Read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::map<std::string, Module> ReadModuleTable() {
  std::map<std::string, Module> modules;
  const std::string text = Read(fs::path(LYNX_SOURCE_DIR) / "CMakeLists.txt");
  const std::regex call(R"(lynx_(?:cuda_)?module\(([^)]*)\))");
  for (std::sregex_iterator it(text.begin(), text.end(), call), end; it != end; ++it) {
    std::istringstream words((*it)[1].str());
    std::string name, word, section;
    words >> name;
    Module module{.directory = fs::path("src") / name, .deps = {}};
    while (words >> word) {
      if (word == "DIR" || word == "DEPS" || word == "SRC") {
        section = word;
      } else if (section == "DIR") {
        module.directory = word;
      } else if (section == "DEPS" && modules.count(word) > 0) {
        module.deps.insert(word);
        module.deps.insert(modules[word].deps.begin(), modules[word].deps.end());
      }
    }
    modules[name] = module;
  }
  return modules;
}

// The module that an include path belongs to, or "" (the vocabulary, the system, a library).
std::string ModuleOf(const std::map<std::string, Module>& modules, const std::string& include) {
  for (const auto& [name, module] : modules) {
    std::string prefix = module.directory.string() + "/";
    if (prefix.rfind("src/", 0) == 0) prefix = prefix.substr(4);
    if (include.rfind(prefix, 0) == 0) return name;
  }
  return "";
}

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

// Calls visit(file, include path) for every include of a file of this directory.
template <typename Visit>
void ForEachInclude(const fs::path& directory, Visit visit) {
  const std::regex include("#include \"([^\"]+)\"");
  for (const auto& entry : fs::recursive_directory_iterator(LYNX_SOURCE_DIR / directory)) {
    if (!IsSource(entry.path())) continue;
    const std::string text = Read(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
      visit(entry.path(), (*it)[1].str());
    }
  }
}

TEST(ModuleEdges, IncludesFollowTheDepsLines) {
  const auto modules = ReadModuleTable();
  ASSERT_GE(modules.size(), 15u);
  ASSERT_TRUE(modules.contains("kernels_cuda"));
  for (const auto& [name, module] : modules) {
    ForEachInclude(module.directory, [&](const fs::path& file, const std::string& include) {
      const std::string target = ModuleOf(modules, include);
      EXPECT_TRUE(target.empty() || target == name || module.deps.count(target) > 0)
          << file << " includes " << include << ", but module " << name << " does not depend on "
          << target;
    });
  }
}

// What every module may include stands above them all.
TEST(ModuleEdges, TheVocabularyKnowsNoModule) {
  const auto modules = ReadModuleTable();
  for (const char* directory : {"include", "kernels/common"}) {
    ForEachInclude(directory, [&](const fs::path& file, const std::string& include) {
      EXPECT_EQ(ModuleOf(modules, include), "") << file << " includes " << include;
    });
  }
}

// Kernels are arithmetic: no status, strings, containers of strings, or logs.
TEST(ModuleEdges, KernelsKnowNoServices) {
  const std::regex forbidden(
      "#include [<\"](absl/|spdlog|lynx/status|lynx/transport|lynx/request|iostream)");
  for (const auto& entry : fs::recursive_directory_iterator(LYNX_SOURCE_DIR "/kernels")) {
    if (!entry.is_regular_file()) continue;
    EXPECT_FALSE(std::regex_search(Read(entry.path()), forbidden)) << entry.path();
  }
}

TEST(ModuleEdges, EveryFileNamesItsLicence) {
  for (const char* directory : {"src", "include", "kernels", "proto", "tests", "bench", "cmake"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(LYNX_SOURCE_DIR) / directory)) {
      const std::string extension = entry.path().extension();
      if (!IsSource(entry.path()) && extension != ".proto" && extension != ".cmake" &&
          extension != ".py") {
        continue;
      }
      EXPECT_NE(Read(entry.path()).substr(0, 120).find("SPDX-License-Identifier: Apache-2.0"),
                std::string::npos)
          << entry.path();
    }
  }
}

}  // namespace
}  // namespace lynx
