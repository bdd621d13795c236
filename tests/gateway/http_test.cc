// SPDX-License-Identifier: Apache-2.0
// The gateway on a real port, a generator that answers as the test says.
#include <future>
#include <thread>

#include "gateway/byte_budget.h"
#include "gateway/gateway.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/fake_generator.h"
#include "tests/gateway/http_client.h"
#include "tests/gateway/tiny_text.h"

namespace lynx {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr TokenId kEos = 2;
constexpr char kTemplate[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if messages[0].content == 'raise' %}{{ raise_exception('no such luck') }}{% endif %}";

class HttpTest : public testing::Test {
 protected:
  HttpTest() {
    options_.port = 0;
    options_.served_model_names = {"tiny", "org/tiny"};
    generator_.set_daemons({{.name = "decode0", .role = "decode", .healthy = true}});
  }
  ~HttpTest() override {
    if (gateway_ != nullptr) gateway_->Shutdown(ShutdownMode::kNow);
  }

  void Serve() {
    auto chat_template = ChatTemplate::Create(kTemplate, nullptr, nullptr);
    ASSERT_TRUE(chat_template.ok()) << chat_template.status();
    chat_template_ = *std::move(chat_template);
    const ModelCard card{.name = "tiny",
                         .max_model_len = 256,
                         .vocab_size = TinyTokenizer().vocab_size(),
                         .eos_ids = {kEos}};
    auto gateway =
        Gateway::Create(options_, generator_, TinyTokenizer(), chat_template_.get(), card);
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    gateway_ = *std::move(gateway);
    run_ = std::async(std::launch::async, [this] { gateway_->Run(); });
  }

  // Every request gets the text "Hello" in two outputs, then an eos.
  void AnswerHello() {
    generator_.set_script([](const Request&) {
      return std::vector{Tokens(ByteIds("Hel")), Tokens(ByteIds("lo")),
                         Finish(FinishReason::kStop, {kEos})};
    });
  }
  std::unique_ptr<HttpClient> Connect() { return std::make_unique<HttpClient>(gateway_->port()); }

  GatewayOptions options_;
  FakeGenerator generator_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<Gateway> gateway_;
  std::future<void> run_;
};

json ErrorOf(const ClientResponse& response) { return response.json().value("error", json()); }

TEST_F(HttpTest, SmallEndpoints) {
  Serve();
  auto client = Connect();  // one connection for all: keep-alive
  ClientResponse response = client->Get("/health");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.reason, "OK");
  EXPECT_EQ(response.body, "");
  EXPECT_FALSE(response.headers["x-request-id"].empty());
  for (const char* path : {"/live", "/ready", "/ping"}) EXPECT_EQ(client->Get(path).status, 200);
  EXPECT_EQ(client->Post("/ping", "").status, 200);
  EXPECT_TRUE(client->Get("/version").json()["version"].is_string());
  EXPECT_EQ(client->Get("/load").json(), (json{{"server_load", 0}}));
  EXPECT_TRUE(client->Get("/tokenizer_info").json().contains("eos_token"));

  const json models = client->Get("/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][1]["id"], "org/tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 256);
  for (const char* path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny?x=1"}) {
    EXPECT_EQ(client->Get(path).json()["id"], "org/tiny") << path;
  }
  response = client->Get("/v1/models/none");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(ErrorOf(response)["code"], "model_not_found");

  client->Send("HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
  response = client->Read(/*has_body=*/false);
  EXPECT_EQ(response.status, 200);
  EXPECT_NE(response.headers["content-length"], "0");
  EXPECT_EQ(client->Get("/health").status, 200);
}

TEST_F(HttpTest, WrongPathMethodAndType) {
  Serve();
  ClientResponse response = Connect()->Get("/v1/embeddings");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(ErrorOf(response)["type"], "invalid_request_error");
  response = Connect()->Get("/v1/completions");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.headers["allow"], "POST, OPTIONS");
  EXPECT_EQ(Connect()->Post("/v1/models", "{}").status, 405);
  auto client = Connect();
  client->SendPost("/v1/completions", "{}", "Content-Type: text/plain\r\n");
  EXPECT_EQ(client->Read().status, 415);
  EXPECT_TRUE(client->AtEnd());  // the body was never read
  client = Connect();
  client->SendPost("/v1/completions", R"({"prompt":"a","n":0})",
                   "Content-Type: Application/JSON; charset=utf-8\r\n");
  response = client->Read();
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorOf(response)["param"], "n");
}

TEST_F(HttpTest, KeysGuardTheV1Paths) {
  options_.api_keys = {"secret", "other"};
  options_.allowed_origins = {"https://ok.example"};
  Serve();
  ClientResponse response = Connect()->Get("/v1/models");
  EXPECT_EQ(response.status, 401);
  EXPECT_EQ(response.headers["www-authenticate"], "Bearer");
  EXPECT_EQ(ErrorOf(response)["code"], "invalid_api_key");
  EXPECT_EQ(Connect()->Get("/v1/models", "Authorization: Bearer secreT\r\n").status, 401);
  EXPECT_EQ(Connect()->Get("/%76%31/models").status, 401);
  EXPECT_EQ(Connect()->Get("/v1/nothing").status, 401);
  EXPECT_EQ(Connect()->Get("/v1/models", "Authorization: Bearer other\r\n").status, 200);
  EXPECT_EQ(Connect()->Get("/health").status, 200);
  EXPECT_EQ(Connect()->Get("/metrics").status, 200);

  auto client = Connect();
  client->Send("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://ok.example\r\n\r\n");
  response = client->Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers["access-control-allow-origin"], "https://ok.example");
  EXPECT_THAT(response.headers["access-control-allow-headers"], HasSubstr("Authorization"));
  client->Send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://ok.example\r\n"
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\n\r\n");
  EXPECT_EQ(client->Read().headers["access-control-allow-headers"],
            "authorization,content-type,x-stainless-lang");
  response = client->Get("/health", "Origin: https://evil.example\r\n");
  EXPECT_FALSE(response.headers.contains("access-control-allow-origin"));
}

TEST_F(HttpTest, CompletionsAndChat) {
  AnswerHello();
  Serve();
  auto client = Connect();
  json answer = client->Post("/v1/completions", R"({"prompt":"a","model":"org/tiny"})").json();
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "org/tiny");
  EXPECT_EQ(answer["choices"][0]["text"], "Hello");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 6);

  answer = client
               ->Post("/v1/chat/completions",
                      R"({"messages":[{"role":"user","content":"a"}],"logprobs":true})")
               .json();
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["content"][0]["bytes"], json({'H'}));
  // The chat prompt is what the template wrote; max_tokens is the rest of the context.
  const Request request = generator_.WaitForCall(1);
  EXPECT_EQ(TinyTokenizer().Decode(request.prompt_ids, false), "<user>a\n<assistant>");
  EXPECT_EQ(request.sampling.max_tokens, 256 - static_cast<int>(request.prompt_ids.size()));
}

TEST_F(HttpTest, StreamedChat) {
  AnswerHello();
  Serve();
  auto client = Connect();
  client->SendPost("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"a"}],"stream":true})");
  const ClientResponse response = client->Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(response.headers.at("content-type"), HasSubstr("text/event-stream"));
  std::vector<json> deltas;
  std::string finish;
  std::istringstream lines(response.body);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line == "data: [DONE]") continue;
    ASSERT_THAT(line, testing::StartsWith("data: {"));
    const json choice = json::parse(line.substr(6))["choices"][0];
    deltas.push_back(choice["delta"]);
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(deltas, (std::vector<json>{{{"role", "assistant"}, {"content", ""}},
                                       {{"content", "Hel"}},
                                       {{"content", "lo"}},
                                       json::object()}));
  EXPECT_EQ(finish, "stop");
  EXPECT_THAT(response.body, testing::EndsWith("\n\ndata: [DONE]\n\n"));
  EXPECT_EQ(client->Get("/health").status, 200);  // the connection lives on
}

TEST_F(HttpTest, TemplateErrors) {
  Serve();
  const ClientResponse response = Connect()->Post(
      "/v1/chat/completions", R"({"messages":[{"role":"user","content":"raise"}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorOf(response)["code"], "template_error");
  EXPECT_THAT(ErrorOf(response)["message"].get<std::string>(), HasSubstr("no such luck"));
}

TEST_F(HttpTest, TokenizeAndDetokenize) {
  Serve();
  auto client = Connect();
  json answer = client->Post("/tokenize", R"({"prompt":"hello","return_token_strs":true})").json();
  EXPECT_EQ(answer["count"], answer["tokens"].size());
  EXPECT_EQ(answer["token_strs"].size(), answer["tokens"].size());
  EXPECT_EQ(answer["tokens"], json(TinyTokenizer().Encode("hello", {})));
  answer = client->Post("/v1/tokenize", R"({"prompt":"","add_special_tokens":false})").json();
  EXPECT_EQ(answer["count"], 0);
  answer = client->Post("/tokenize", R"({"messages":[{"role":"user","content":"a"}]})").json();
  answer = client->Post("/detokenize", json{{"tokens", answer["tokens"]}}.dump()).json();
  EXPECT_EQ(answer["prompt"], "<user>a\n<assistant>");
  // Whatever the tokenizer puts around any text.
  answer = client
               ->Post("/tokenize",
                      R"({"messages":[{"role":"user","content":"a"}],"add_special_tokens":true})")
               .json();
  EXPECT_EQ(answer["tokens"], json(TinyTokenizer().Encode("<user>a\n<assistant>", {})));
  const json long_document = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
                              {"documents", {std::string(8 << 20, 'a')}}};
  EXPECT_EQ(client->Post("/v1/chat/completions", long_document.dump()).status, 400);
  const std::string long_text = json{{"prompt", std::string((8 << 20) + 1, 'a')}}.dump();
  EXPECT_EQ(ErrorOf(client->Post("/tokenize", long_text))["param"], "prompt");
  EXPECT_EQ(client->Post("/detokenize", R"({"tokens":[512]})").status, 400);
  EXPECT_EQ(ErrorOf(client->Post("/detokenize", R"({})"))["param"], "tokens");
  EXPECT_EQ(client->Post("/detokenize", R"({"tokens":[]})").json()["prompt"], "");
  EXPECT_EQ(client->Post("/detokenize", R"({"model":"tiny","tokens":[5]})").status, 200);
  for (const char* path : {"/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize"}) {
    const ClientResponse unknown =
        client->Post(path, R"({"model":"zz","prompt":"a","tokens":[1]})");
    EXPECT_EQ(unknown.status, 404) << path;
    EXPECT_EQ(ErrorOf(unknown)["code"], "model_not_found") << path;
  }
  EXPECT_EQ(ErrorOf(client->Post("/tokenize", R"({"prompt":3})"))["param"], "prompt");
}

TEST_F(HttpTest, TokenizerInfoShowsTheTemplateInUse) {
  Serve();
  EXPECT_TRUE(Connect()->Get("/tokenizer_info").json()["chat_template"].is_null());
  gateway_->Shutdown(ShutdownMode::kNow);
  run_.wait();
  options_.chat_template_source = kTemplate;
  Serve();
  json config = Connect()->Get("/tokenizer_info").json();
  EXPECT_EQ(config["chat_template"], kTemplate);
  EXPECT_TRUE(config.contains("eos_token") && config.contains("tokenizer_class"));
  gateway_->Shutdown(ShutdownMode::kNow);
  run_.wait();
  options_.tokenizer_config_json = R"({"eos_token":"</s>","chat_template":"old"})";
  Serve();
  config = Connect()->Get("/tokenizer_info").json();
  EXPECT_EQ(config, (json{{"eos_token", "</s>"}, {"chat_template", kTemplate}}));
}

TEST_F(HttpTest, BodiesWhoseEndOrCodingIsUnknownAreRefused) {
  AnswerHello();
  Serve();
  const std::string body = R"({"prompt":"a"})";
  const std::string smuggled = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
  auto post = [&](const std::string& version, const std::string& headers) {
    auto client = Connect();
    client->Send("POST /v1/completions HTTP/" + version + "\r\nHost: x\r\n" +
                 "Content-Type: application/json\r\n" + headers + "\r\n" + smuggled);
    const ClientResponse response = client->Read();
    EXPECT_EQ(response.headers.at("connection"), "close") << headers;
    EXPECT_TRUE(client->AtEnd()) << headers;
    return response.status;
  };
  EXPECT_EQ(post("1.1", "Transfer-Encoding: gzip\r\n"), 501);
  EXPECT_EQ(post("1.1", "Transfer-Encoding: identity\r\n"), 501);
  EXPECT_EQ(post("1.1", "Transfer-Encoding: gzip, chunked\r\n"), 501);
  EXPECT_EQ(post("1.1", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(post("1.1", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400);
  EXPECT_EQ(post("1.0", "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(post("1.1", "Content-Encoding: gzip\r\nContent-Length: 5\r\n"), 415);
  EXPECT_EQ(post("1.1", "Content-Encoding: br\r\nTransfer-Encoding: chunked\r\n"), 415);
  auto client = Connect();
  client->SendPost("/v1/completions", body,
                   "Content-Type: application/json\r\nContent-Encoding: identity\r\n");
  EXPECT_EQ(client->Read().status, 200);
  client->Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: Chunked\r\n\r\ne\r\n" +
      body + "\r\n0\r\n\r\n");
  EXPECT_EQ(client->Read().status, 200);
}

TEST_F(HttpTest, EmptyLinesBeforeARequestAreSkipped) {
  AnswerHello();
  Serve();
  auto client = Connect();
  client->Send("\r\n");
  client->SendGet("/version");
  EXPECT_EQ(client->Read().status, 200);
  client->SendPost("/v1/completions", R"({"prompt":"a"})");
  client->Send("\r\n\r\n");  // as old clients do after a body
  client->SendGet("/version");
  EXPECT_EQ(client->Read().status, 200);
  EXPECT_EQ(client->Read().status, 200);
  client->Send("\r");
  client->Send("\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client->Read().status, 200);
}

TEST_F(HttpTest, BodyLimits) {
  options_.limits.max_body_bytes = 1000;
  Serve();
  auto client = Connect();  // only announced, never sent
  client->Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n");
  ClientResponse response = client->Read();
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(response.headers["connection"], "close");
  EXPECT_EQ(ErrorOf(response)["type"], "invalid_request_error");

  client = Connect();  // not announced
  client->Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n800\r\n" +
      std::string(0x800, ' ') + "\r\n");
  EXPECT_EQ(client->Read().status, 413);

  client = Connect();  // a client that sends everything before it reads still sees the answer
  client->SendPost("/v1/completions", std::string(4 << 20, ' '));
  EXPECT_EQ(client->Read().status, 413);
}

TEST_F(HttpTest, BodiesOfAllConnectionsShareABudget) {
  options_.limits.max_pending_body_bytes = 200'000;
  Serve();
  AnswerHello();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 150000\r\n\r\n{";
  auto first = Connect();
  first->Send(head);
  // Whichever of the two is read second is refused; an ended connection gives its share back.
  auto second = Connect();
  second->Send(head);
  auto third = Connect();
  third->SendPost("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(third->Read().status, 200) << "small bodies fit beside a large one";
  second.reset();
  first.reset();
  int status = 503;
  for (int i = 0; i < 200 && status == 503; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    auto client = Connect();
    client->SendPost("/v1/completions", R"({"prompt": "a")" + std::string(150'000, ' ') + "}");
    status = client->Read().status;
  }
  EXPECT_EQ(status, 200);
}

TEST(ByteBudget, SharesAddUpAndComeBack) {
  ByteBudget budget(100);
  ByteBudget::Share a(budget);
  EXPECT_TRUE(a.Resize(60));
  {
    ByteBudget::Share b(budget);
    EXPECT_TRUE(b.Resize(40));
    EXPECT_FALSE(b.Resize(41));
    EXPECT_TRUE(b.Resize(10));
    EXPECT_TRUE(a.Resize(90));
  }
  EXPECT_TRUE(a.Resize(100));
  EXPECT_FALSE(a.Resize(101));
}

TEST_F(HttpTest, HeaderLimitsAndMalformedRequests) {
  options_.limits.max_header_bytes = 2000;
  Serve();
  auto client = Connect();
  client->SendGet("/health", "X-Long: " + std::string(3000, 'x') + "\r\n");
  EXPECT_EQ(client->Read().status, 431);
  for (const char* bytes : {"hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                            "POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n"}) {
    client = Connect();
    client->Send(bytes);
    const ClientResponse response = client->Read();
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_TRUE(ErrorOf(response).contains("message"));
  }
}

TEST_F(HttpTest, ExpectContinue) {
  AnswerHello();
  Serve();
  auto client = Connect();
  const std::string body = R"({"prompt":"a"})";
  client->Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client->Read().status, 100);
  client->Send(body);
  EXPECT_EQ(client->Read().json()["choices"][0]["text"], "Hello");
}

TEST_F(HttpTest, PipelinedRequestsAreAnsweredInOrder) {
  Serve();
  auto client = Connect();
  client->SendPost("/v1/completions", R"({"prompt":"a"})");
  client->SendGet("/version");
  client->SendPost("/v1/completions", R"({"prompt":"b","stream":true})");
  generator_.Send(0, Finish(FinishReason::kLength, ByteIds("one")));
  EXPECT_EQ(client->Read().json()["choices"][0]["text"], "one");
  EXPECT_TRUE(client->Read().json().contains("version"));
  generator_.Send(1, Finish(FinishReason::kLength, ByteIds("two")));
  EXPECT_THAT(client->Read().body, HasSubstr("two"));
}

TEST_F(HttpTest, OldClients) {
  AnswerHello();
  Serve();
  auto client = Connect();
  const std::string body = R"({"prompt":"a","stream":true})";
  client->Send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const ClientResponse response = client->Read();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_THAT(response.body, testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(HttpTest, RequestIds) {
  AnswerHello();
  Serve();
  auto client = Connect();
  client->SendPost("/v1/completions", R"({"prompt":"a"})",
                   "Content-Type: application/json\r\nX-Request-Id: my-id<script>\r\n");
  ClientResponse response = client->Read();
  EXPECT_EQ(response.headers["x-request-id"], "my-idscript");
  EXPECT_EQ(response.json()["id"], "cmpl-my-idscript");
  response = client->Get("/health", "X-Request-Id: " + std::string(500, 'a') + "\r\n");
  EXPECT_EQ(response.headers["x-request-id"], std::string(128, 'a'));
}

TEST_F(HttpTest, EachEventIsForwardedAtOnce) {
  Serve();
  auto client = Connect();
  client->SendPost("/v1/completions", R"({"prompt":"a","stream":true})");
  generator_.Send(0, Tokens(ByteIds("x")));
  EXPECT_EQ(client->ReadHead().status, 200);
  EXPECT_THAT(client->ReadChunk(), HasSubstr("\"text\":\"x\""));
  generator_.Send(0, Tokens(ByteIds("y")));
  EXPECT_THAT(client->ReadChunk(), HasSubstr("\"text\":\"y\""));
  generator_.Send(0, Failure(absl::UnavailableError("decode0 has gone")));
  const std::string last = client->ReadChunk();
  EXPECT_THAT(last, HasSubstr("{\"error\":{"));
  EXPECT_THAT(last, HasSubstr("decode0 has gone"));
  EXPECT_THAT(last, testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_EQ(client->ReadChunk(), "");
  EXPECT_TRUE(client->AtEnd());
}

TEST_F(HttpTest, AnEngineThatDoesNotStopDoesNotHoldTheAnswer) {
  options_.limits.settle_timeout = milliseconds(50);
  Serve();
  auto client = Connect();
  client->SendPost("/v1/completions", R"({"prompt":"a","stop":"x","lynx":{"timeline":true}})");
  generator_.Send(0, Tokens(ByteIds("yx")));
  const json answer = client->Read().json();
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["lynx"]["events_ms"], json::object());
  EXPECT_TRUE(generator_.WaitForDrop(0));
}

TEST_F(HttpTest, TheStatusWaitsForTheFirstEvent) {
  Serve();
  auto client = Connect();
  client->SendPost("/v1/completions", R"({"prompt":"a","stream":true})");
  generator_.Send(0, Failure(absl::UnavailableError("no decode daemon")));
  const ClientResponse response = client->Read();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.reason, "Service Unavailable");
  EXPECT_TRUE(response.headers.contains("retry-after"));
  EXPECT_EQ(ErrorOf(response)["type"], "unavailable_error");
}

TEST_F(HttpTest, AClientThatLeavesIsNoticedInEveryPhase) {
  Serve();
  size_t call = 0;
  for (const char* stream : {"true", "false"}) {
    for (bool has_tokens : {false, true}) {
      for (bool has_sent_ahead : {false, true}) {
        auto client = Connect();
        client->SendPost("/v1/completions",
                         std::string(R"({"prompt":"a","stream":)") + stream + "}");
        if (has_sent_ahead) client->SendGet("/version");
        generator_.WaitForCall(call);
        if (has_tokens) generator_.Send(call, Tokens(ByteIds("x")));
        client->Close();
        EXPECT_TRUE(generator_.WaitForDrop(call)) << stream << has_tokens << has_sent_ahead;
        ++call;
      }
    }
  }
  EXPECT_THAT(Connect()->Get("/metrics").body, HasSubstr("lynx:disconnected_clients_total"));
}

TEST_F(HttpTest, TooManyRequests) {
  options_.limits.max_num_requests = 1;
  Serve();
  auto first = Connect();
  first->SendPost("/v1/completions", R"({"prompt":"a"})");
  generator_.WaitForCall(0);
  const ClientResponse response = Connect()->Post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(response.status, 429);
  EXPECT_TRUE(response.headers.contains("retry-after"));
  EXPECT_EQ(ErrorOf(response)["code"], "rate_limit_exceeded");
  generator_.Send(0, Finish(FinishReason::kLength));
  EXPECT_EQ(first->Read().status, 200);
}

// Beast throws for a field of 64 KiB, and takes no limit for trailers.
TEST_F(HttpTest, LongTrailersAndChunkExtensionsAreRefused) {
  Serve();
  const std::string head =
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  const std::string chunk = "e\r\n{\"prompt\":\"a\"}\r\n";
  for (const size_t size : {size_t{100}, size_t{70'000}, size_t{300'000}}) {
    for (const std::string& rest :
         {chunk + "0\r\nA: " + std::string(size, 'b') + "\r\n\r\n",
          chunk + "0\r\n" + std::string(size, 'b') + ": a\r\n\r\n",
          "e;" + std::string(size, 'b') + chunk.substr(1) + "0\r\n\r\n"}) {
      auto client = Connect();
      client->Send(head + rest);
      EXPECT_EQ(client->Read().status, size == 100 ? 200 : 400) << rest.substr(0, 30);
    }
  }
  EXPECT_EQ(Connect()->Get("/health").status, 200);
}

TEST_F(HttpTest, TheSmallestPoolOfAllDaemonsLimitsTheContext) {
  Serve();
  auto client = Connect();
  const auto limit = [&] { return client->Get("/v1/models").json()["data"][0]["max_model_len"]; };
  EXPECT_EQ(limit(), 256);
  const std::string body = R"({"prompt":[5,5,5,5,5,5,5,5],"max_tokens":100})";
  generator_.set_daemons({{.name = "decode0", .role = "decode", .max_model_len = 512},
                          {.name = "decode1", .role = "decode", .max_model_len = 8},
                          {.name = "prefill0", .role = "prefill", .max_model_len = 0}});
  EXPECT_EQ(limit(), 8);
  ClientResponse response = client->Post("/v1/completions", body);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorOf(response)["code"], "context_length_exceeded");
  EXPECT_THAT(response.body, HasSubstr("maximum context length is 8 tokens"));
  generator_.set_daemons({{.name = "prefill0", .role = "prefill", .max_model_len = 10}});
  client->SendPost("/v1/completions", body);
  EXPECT_EQ(generator_.WaitForCall(0).sampling.max_tokens, 2);
  generator_.Send(0, Finish(FinishReason::kLength, {6}));
  EXPECT_EQ(client->Read().status, 200);
}

TEST_F(HttpTest, AnEnginesQueueIsAnsweredInItsWords) {
  const struct {
    absl::Status status;
    int http_status;
    const char *type, *code;
  } cases[] = {
      {absl::ResourceExhaustedError("the waiting queue is full"), 429, "rate_limit_error",
       "rate_limit_exceeded"},
      {absl::DeadlineExceededError("waited 300 s in the queue"), 503, "unavailable_error",
       "queue_timeout"},
  };
  Serve();
  size_t call = 0;
  for (const auto& c : cases) {
    for (const char* stream : {"true", "false"}) {
      auto client = Connect();
      client->SendPost("/v1/completions", std::string(R"({"prompt":"a","stream":)") + stream + "}");
      generator_.Send(call++, Failure(c.status));
      const ClientResponse response = client->Read();
      EXPECT_EQ(response.status, c.http_status);
      EXPECT_TRUE(response.headers.contains("retry-after"));
      EXPECT_EQ(ErrorOf(response)["type"], c.type);
      EXPECT_EQ(ErrorOf(response)["code"], c.code);
      EXPECT_THAT(response.body, HasSubstr("queue"));
    }
  }
}

TEST_F(HttpTest, TheUserIsTheClientOfASharedKey) {
  options_.accepts_priority = true;
  AnswerHello();
  Serve();
  for (const char* body :
       {R"({"prompt":"a","user":"ann","priority":-4})", R"({"prompt":"b","user":"ann"})",
        R"({"prompt":"a","user":"bob"})", R"({"prompt":"a"})"}) {
    EXPECT_EQ(Connect()->Post("/v1/completions", body).status, 200);
  }
  const uint64_t ann = generator_.WaitForCall(0).client;
  EXPECT_EQ(generator_.WaitForCall(0).priority, -4);
  EXPECT_EQ(generator_.WaitForCall(1).client, ann);
  EXPECT_EQ(generator_.WaitForCall(1).priority, 0);
  EXPECT_NE(generator_.WaitForCall(2).client, ann);
  EXPECT_EQ(generator_.WaitForCall(3).client, 0u);
}

TEST_F(HttpTest, OfSeveralKeysEachIsAClientWhateverItsUsers) {
  options_.api_keys = {"secret", "other"};
  AnswerHello();
  Serve();
  for (const char* key : {"secret", "other", "other"}) {
    auto client = Connect();
    client->SendPost(
        "/v1/completions", R"({"prompt":"a","user":"someone"})",
        std::string("Content-Type: application/json\r\nAuthorization: Bearer ") + key + "\r\n");
    EXPECT_EQ(client->Read().status, 200);
  }
  EXPECT_NE(generator_.WaitForCall(0).client, generator_.WaitForCall(1).client);
  EXPECT_EQ(generator_.WaitForCall(1).client, generator_.WaitForCall(2).client);
}

TEST_F(HttpTest, TooManyConnections) {
  options_.limits.max_num_connections = 1;
  Serve();
  auto first = Connect();
  EXPECT_EQ(first->Get("/live").status, 200);
  EXPECT_EQ(Connect()->Read().status, 503);
}

TEST_F(HttpTest, ReadinessAndLiveness) {
  generator_.set_ready(false);
  generator_.set_daemons({{.name = "decode0", .role = "decode", .detail = "loading weights"}});
  Serve();
  EXPECT_EQ(Connect()->Get("/live").status, 200);
  for (const char* path : {"/ready", "/health", "/ping"}) {
    const ClientResponse response = Connect()->Get(path);
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_TRUE(response.headers.contains("retry-after"));
    EXPECT_THAT(response.body, HasSubstr("decode0: loading weights"));
  }
  EXPECT_EQ(Connect()->Post("/v1/completions", R"({"prompt":"a"})").status, 503);

  generator_.set_ready(true);
  generator_.set_daemons({{.name = "decode0", .role = "decode", .stuck = true},
                          {.name = "prefill0", .role = "prefill"}});
  for (const char* path : {"/live", "/ready", "/health"}) {
    EXPECT_EQ(Connect()->Get(path).status, 503) << path;
  }
  generator_.set_daemons({{.name = "decode0", .role = "decode", .stuck = true},
                          {.name = "decode1", .role = "decode"}});
  EXPECT_EQ(Connect()->Get("/health").status, 200);
}

TEST_F(HttpTest, DeepHealthDecodesOneToken) {
  generator_.set_script([](const Request& request) {
    EXPECT_EQ(request.sampling.max_tokens, 1);
    return std::vector{Finish(FinishReason::kLength, {5})};
  });
  Serve();
  EXPECT_EQ(Connect()->Get("/health_generate").status, 200);
  EXPECT_EQ(generator_.num_calls(), 1u);
}

TEST_F(HttpTest, Metrics) {
  AnswerHello();
  options_.vllm_metric_names = true;
  DaemonState daemon{.name = "decode0", .role = "decode", .healthy = true};
  daemon.stats.num_running = 3;
  daemon.stats.num_waiting = 5;
  daemon.stats.num_deferred = 1;
  daemon.stats.blocks_free = 11;
  daemon.stats.blocks_total = 40;
  daemon.stats.queue_rejections = 7;
  daemon.stats.accepted_at[15] = 6;
  daemon.stats.step_rows_le[1] = 2;
  *std::rbegin(daemon.stats.step_rows_le) = 4;
  daemon.stats.step_rows = 900;
  daemon.block_size = 32;
  daemon.kv_dtype = "bf16";
  daemon.kv_resident = "exact";
  daemon.codec = "none";
  generator_.set_daemons({daemon});
  Serve();
  auto client = Connect();
  client->Post("/v1/completions", R"({"prompt":"a"})");
  client->Get("/nowhere/12345");
  const ClientResponse response = client->Get("/metrics");
  EXPECT_THAT(response.headers.at("content-type"), HasSubstr("text/plain; version=0.0.4"));
  for (const char* line :
       {"lynx:num_requests_running{model_name=\"tiny\",engine=\"0\",role=\"decode\"} 3",
        "state=\"free\"} 11", "lynx:time_to_first_token_seconds_count{", "finished_reason=\"stop\"",
        "lynx:e2e_request_latency_seconds_bucket{",
        "vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 3",
        "role=\"decode\",reason=\"capacity\"} 4", "role=\"decode\",reason=\"deferred\"} 1",
        "role=\"decode\",reason=\"max_queue_size\"} 7",
        "role=\"gateway\",reason=\"max_num_requests\"} 0", "finished_reason=\"error\"} 0",
        "position=\"15\"} 6",
        "role=\"decode\",block_size=\"32\",num_blocks=\"40\",cache_dtype=\"bf16\","
        "resident=\"exact\",codec=\"none\"} "
        "1",
        "lynx:iteration_tokens_total_sum{model_name=\"tiny\",engine=\"0\",role=\"decode\"} 900",
        "vllm:iteration_tokens_total_bucket{model_name=\"tiny\",engine=\"0\",le=\"8\"} 2",
        "block_size=\"32\",num_gpu_blocks=\"40\"",
        "vllm:iteration_tokens_total_bucket{model_name=\"tiny\",engine=\"0\",le=\"+Inf\"} 4",
        "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"200\"} 1",
        "http_requests_total{handler=\"none\",method=\"GET\",status=\"404\"} 1"}) {
    EXPECT_THAT(response.body, HasSubstr(line));
  }
  EXPECT_THAT(response.body, Not(HasSubstr("12345")));
}

TEST_F(HttpTest, SlowClientsAreDropped) {
  options_.limits.idle_timeout = options_.limits.header_timeout = options_.limits.body_timeout =
      options_.limits.write_timeout = milliseconds(150);
  Serve();
  auto idle = Connect();
  auto header = Connect();
  header->Send("GET /health HTT");
  auto body = Connect();
  body->Send(
      "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
      "Content-Length: 10\r\n\r\n{");
  EXPECT_TRUE(idle->AtEnd());
  EXPECT_TRUE(header->AtEnd());
  EXPECT_TRUE(body->AtEnd());

  auto reader = Connect();  // takes no bytes
  reader->SendPost("/v1/completions", R"({"prompt":"a","stream":true,"logprobs":0})");
  generator_.Send(0, Tokens(std::vector<TokenId>(200'000, ByteId('x'))));
  EXPECT_TRUE(generator_.WaitForDrop(0));
}

TEST_F(HttpTest, AGracefulShutdownFinishesWhatRuns) {
  Serve();
  auto idle = Connect();
  EXPECT_EQ(idle->Get("/ready").status, 200);
  auto running = Connect();
  running->SendPost("/v1/completions", R"({"prompt":"a","stream":true})");
  generator_.Send(0, Tokens(ByteIds("x")));
  running->ReadHead();
  running->ReadChunk();

  gateway_->Shutdown(ShutdownMode::kGraceful);
  EXPECT_TRUE(idle->AtEnd());
  EXPECT_EQ(Connect()->Get("/ready").status, 503);
  EXPECT_EQ(Connect()->Get("/live").status, 200);
  const ClientResponse refused = Connect()->Post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");

  generator_.Send(0, Finish(FinishReason::kStop, {kEos}));
  EXPECT_THAT(running->ReadChunk(), testing::EndsWith("data: [DONE]\n\n"));
  run_.wait();
  EXPECT_TRUE(running->AtEnd() || running->ReadChunk().empty());
}

TEST_F(HttpTest, AShutdownNowEndsStreamsWithAnError) {
  options_.shutdown_timeout = std::chrono::hours(1);
  Serve();
  auto streaming = Connect(), waiting = Connect();
  streaming->SendPost("/v1/completions", R"({"prompt":"a","stream":true})");
  generator_.Send(0, Tokens(ByteIds("x")));
  streaming->ReadHead();
  streaming->ReadChunk();
  waiting->SendPost("/v1/completions", R"({"prompt":"b"})");
  generator_.WaitForCall(1);
  gateway_->Shutdown(ShutdownMode::kGraceful);
  gateway_->Shutdown(ShutdownMode::kNow);
  const std::string last = streaming->ReadChunk();
  EXPECT_THAT(last, HasSubstr("shutting down"));
  EXPECT_THAT(last, testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_EQ(waiting->Read().status, 503);
  run_.wait();
  EXPECT_TRUE(generator_.WaitForDrop(0) && generator_.WaitForDrop(1));
}

TEST_F(HttpTest, ANameOfBothKindsListensOnItsIpv4Address) {
  options_.host = "localhost";
  Serve();
  EXPECT_EQ(Connect()->Get("/live").status, 200);
}

TEST_F(HttpTest, AUsedPortIsAnError) {
  Serve();
  GatewayOptions options = options_;
  options.port = gateway_->port();
  const auto second = Gateway::Create(options, generator_, TinyTokenizer(), nullptr, ModelCard{});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lynx
