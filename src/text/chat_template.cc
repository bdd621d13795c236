// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <pybind11/pybind11.h>

#include "text/chat_renderer_source.h"
#include "text/python_thread.h"
#include "text/utf8.h"

namespace lynx {
namespace {

namespace py = pybind11;

// The module of chat_renderer_source.h, made anew for every template: nothing is shared.
absl::StatusOr<py::dict> LoadRendererModule() {
  py::dict module;
  module["__builtins__"] = py::module_::import("builtins");
  module["__name__"] = "lynx_chat_renderer";
  const py::object code = py::reinterpret_steal<py::object>(
      Py_CompileString(kChatRendererSource, "chat_renderer", Py_file_input));
  if (!code) throw py::error_already_set();
  const py::object done =
      py::reinterpret_steal<py::object>(PyEval_EvalCode(code.ptr(), module.ptr(), module.ptr()));
  if (done) return module;
  py::error_already_set error;
  if (!error.matches(PyExc_ImportError)) throw error;
  return absl::FailedPreconditionError(
      absl::StrCat("chat templates need Debian's python3-jinja2: ", error.what()));
}

// A lone surrogate, which JSON can spell and UTF-8 cannot, becomes U+FFFD.
std::string ToUtf8(const py::handle& text) {
  const py::object bytes = py::reinterpret_steal<py::object>(
      PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
  if (!bytes) throw py::error_already_set();
  return ToValidUtf8(
      {PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))});
}

// Calls `guarded` of the module: its result, or kInvalidArgument with "KIND: message".
template <typename... Args>
absl::StatusOr<py::object> CallGuarded(const py::handle& guarded, Args&&... args) {
  const py::tuple outcome = guarded(std::forward<Args>(args)...);
  if (outcome[0].cast<bool>()) return py::object(outcome[1]);
  return absl::InvalidArgumentError(ToUtf8(outcome[1]));
}

// A template that ran out of time has itself to blame.
absl::Status Explain(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("runtime: the template takes too long (", std::string(status.message()), ")"));
}

// The Python objects of one template. Made, used and let go on the interpreter's thread only.
struct PythonTemplate {
  PyObject* guarded = nullptr;  // owned
  PyObject* render = nullptr;   // owned
};

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(PythonThread* python, PythonTemplate objects)
      : python_(python), objects_(objects) {}

  ~JinjaTemplate() override {
    python_->Post([objects = objects_] {
      Py_DECREF(objects.render);
      Py_DECREF(objects.guarded);
    });
  }

  absl::StatusOr<std::string> Render(const ChatTemplateInput& input) const override {
    const auto text = std::make_shared<std::string>();
    const absl::Status status = python_->Run([objects = objects_, input, text]() -> absl::Status {
      const auto rendered = CallGuarded(
          py::handle(objects.guarded), py::handle(objects.render), py::str(input.messages_json),
          py::str(input.tools_json), py::str(input.kwargs_json), py::str(input.now),
          py::bool_(input.add_generation_prompt), py::bool_(input.continue_final_message));
      if (!rendered.ok()) return rendered.status();
      *text = ToUtf8(*rendered);
      return absl::OkStatus();
    });
    if (!status.ok()) return Explain(status);
    return std::move(*text);
  }

 private:
  PythonThread* const python_;
  const PythonTemplate objects_;
};

absl::StatusOr<PythonTemplate> Compile(const std::string& source, const py::dict& special_tokens) {
  LYNX_ASSIGN_OR_RETURN(const py::dict module, LoadRendererModule());
  const py::object guarded = module["guarded"];
  LYNX_ASSIGN_OR_RETURN(const py::object renderer,
                        CallGuarded(guarded, module["Renderer"], py::str(source), special_tokens));
  PythonTemplate objects;
  objects.render = py::object(renderer.attr("render")).release().ptr();
  objects.guarded = py::object(guarded).release().ptr();
  return objects;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(std::string source,
                                                                   const std::string* bos_token,
                                                                   const std::string* eos_token) {
  if (!IsValidUtf8(source)) {
    return absl::InvalidArgumentError("syntax: the template is not UTF-8");
  }
  std::vector<std::pair<std::string, std::string>> tokens;
  if (bos_token != nullptr) tokens.emplace_back("bos_token", *bos_token);
  if (eos_token != nullptr) tokens.emplace_back("eos_token", *eos_token);
  LYNX_ASSIGN_OR_RETURN(PythonThread* const python, PythonThread::Get());
  const auto objects = std::make_shared<PythonTemplate>();
  const absl::Status status =
      python->Run([objects, source = std::move(source), tokens]() -> absl::Status {
        py::dict special_tokens;
        for (const auto& [name, text] : tokens) special_tokens[py::str(name)] = py::str(text);
        LYNX_ASSIGN_OR_RETURN(*objects, Compile(source, special_tokens));
        return absl::OkStatus();
      });
  if (!status.ok()) return Explain(status);
  return std::make_unique<JinjaTemplate>(python, *objects);
}

}  // namespace lynx
