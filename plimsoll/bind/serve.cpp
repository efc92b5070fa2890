// serve::Engine for plimsoll.serve, as torch.classes.plimsoll.ServeEngine and ServeReply. torch releases the GIL around
// each call of theirs, so a call may wait.
#include <sys/eventfd.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "plimsoll/app/text/sampling.h"
#include "plimsoll/app/text/stop_texts.h"
#include "plimsoll/app/text/text_writer.h"
#include "plimsoll/bind/named_option.h"
#include "plimsoll/io/file_descriptor.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/models/t5/paged.h"
#include "plimsoll/serve/engine.h"
#include "plimsoll/serve/http/api_error.h"
#include "plimsoll/serve/http/json_formats.h"
#include "plimsoll/tokenize/load.h"
#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

namespace plimsoll::bind {
namespace {

constexpr int64_t kLongestWait = 60'000;  // milliseconds

// The process that made an object. A fork has copied its locks as they were, and none of the threads that it works with.
class OwnProcess {
 public:
  bool is_other() const { return ::getpid() != process_; }
  // Leaves what this points to to the end of a forked process, where its destructor would wait for threads.
  template <class T>
  void leave_if_other(std::shared_ptr<T>& pointer) const {
    if (is_other()) new std::shared_ptr<T>(std::move(pointer));
  }

 private:
  const pid_t process_ = ::getpid();
};

struct ServeEngine : torch::CustomClassHolder {
  explicit ServeEngine(std::filesystem::path path) : directory(std::move(path)) {}
  ~ServeEngine() override { process.leave_if_other(engine); }

  std::shared_ptr<serve::Engine> get() const {
    const std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(engine != nullptr, "serve: expected an engine that is open, got one that is closed");
    return engine;
  }
  // Ends all replies.
  void close() {
    if (process.is_other()) return;
    std::shared_ptr<serve::Engine> last;
    const std::lock_guard<std::mutex> lock(mutex);
    last.swap(engine);
  }

  // The format of a response_format in JSON; none of an empty text. The tokenizer is read when the first is asked for.
  std::shared_ptr<const serve::JsonFormat> format_of(const std::string& response_format) {
    if (response_format.empty()) return nullptr;
    const int64_t vocabulary = get()->vocabulary();
    const std::lock_guard<std::mutex> lock(mutex);
    if (formats == nullptr) {
      if (t5_vocabulary > 0) {
        tokenizer = std::make_unique<tokenize::T5Tokenizer>(directory, t5_vocabulary);
      } else {
        tokenizer = tokenize::load(directory, vocabulary);
      }
      formats = std::make_unique<serve::JsonFormats>(*tokenizer, vocabulary);
    }
    try {
      return formats->read(nlohmann::json::parse(response_format), R"({"response_format": )" + response_format + "}");
    } catch (const serve::ApiError& error) {
      TORCH_CHECK_VALUE(false, "submit: ", error.what());
    }
  }

  const OwnProcess process;
  mutable std::mutex mutex;  // of what follows
  std::shared_ptr<serve::Engine> engine;
  std::unique_ptr<tokenize::Tokenizer> tokenizer;
  std::unique_ptr<serve::JsonFormats> formats;

  const std::filesystem::path directory;
  models::GenerationDefaults defaults;
  std::vector<int64_t> ends;
  int64_t context = 0, t5_vocabulary = 0;  // of a decoder-only model 0
  std::string warning;                     // of loading, or empty
};

// Becomes readable when its reply has something to be read.
class Signal {
 public:
  Signal() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    TORCH_CHECK(event_, "serve: expected a file descriptor that is free, got none");
  }
  void set() const { eventfd_write(event_.get(), 1); }
  void clear() const {
    eventfd_t count = 0;
    eventfd_read(event_.get(), &count);
  }
  int descriptor() const { return event_.get(); }

 private:
  io::FileDescriptor event_;
};

using ReadToken = std::tuple<int64_t, bool, bool, double, std::vector<int64_t>, std::vector<double>>;

struct ServeReply : torch::CustomClassHolder {
  explicit ServeReply(std::shared_ptr<serve::Reply> of) : reply(std::move(of)) {}
  ~ServeReply() override {
    reply->cancel();  // nobody will read it
    process.leave_if_other(reply);
  }

  // id, whether it ends the text, whether none follows, log probability; ids and log probabilities of the likeliest.
  std::optional<ReadToken> next() const {
    const auto token = reply->next();
    if (!token) return std::nullopt;
    ReadToken read{token->token.id, token->ends_text, token->is_last, token->token.log_probability, {}, {}};
    for (const serve::LikelyToken& other : token->top) {
      std::get<4>(read).push_back(other.id);
      std::get<5>(read).push_back(other.log_probability);
    }
    return read;
  }

  // A file descriptor for event loops: readable from the next token on until clear().
  int64_t descriptor() {
    if (signal == nullptr) {
      signal = std::make_shared<const Signal>();
      reply->when_ready([signal = signal] { signal->set(); });
    }
    return signal->descriptor();
  }

  // Name of the way in which it ended; the error that ended it is thrown.
  std::string end() const {
    const models::TextEnd how = reply->end();
    TORCH_CHECK(how != models::TextEnd::kNotFinite, "serve: expected finite logits, got Inf or NaN");
    if (how == models::TextEnd::kLength) return "length";
    if (how != models::TextEnd::kInterrupted) return "stop";
    const std::string error = reply->error();
    TORCH_CHECK(error.empty(), "serve: ", error);
    return "cancelled";
  }

  const OwnProcess process;
  std::shared_ptr<serve::Reply> reply;
  std::shared_ptr<const Signal> signal;
};

struct BoundStopTexts : torch::CustomClassHolder {
  explicit BoundStopTexts(std::vector<std::string> texts) : stops(std::move(texts)) {}
  app::StopTexts stops;
};

c10::intrusive_ptr<ServeEngine> serve_engine(const std::string& directory, const std::string& dtype,
                                             const std::string& kv, int64_t max_batch, int64_t max_context,
                                             int64_t memory, int64_t queue,
                                             const std::vector<std::string>& adapter_names,
                                             const std::vector<std::string>& adapter_directories) {
  TORCH_CHECK(adapter_names.size() == adapter_directories.size(), "serve_engine: expected a directory for each of ",
              adapter_names.size(), " adapters, got ", adapter_directories.size());
  auto bound = c10::make_intrusive<ServeEngine>(directory);
  const nn::CacheFormat cache = named_option(app::kCacheFormats, "kv", kv);
  const models::WeightDtype weights = named_option(models::kWeightDtypes, "dtype", dtype);
  const models::Warn warn = [&](const std::string& text) {
    bound->warning += (bound->warning.empty() ? "" : "; ") + text;
  };
  std::shared_ptr<models::PagedModel> model;
  std::map<std::string, std::shared_ptr<const nn::LoraSet>> adapters;
  if (models::is_t5_directory(directory)) {
    TORCH_CHECK_VALUE(adapter_names.empty(), "Engine: expected no adapters for a T5, which has none, got ",
                      adapter_names.size());
    const auto t5 = models::load_paged_t5(directory, weights, warn);
    bound->ends = {t5->config().eos_token_id};
    bound->t5_vocabulary = t5->config().vocab_size;
    model = t5;
  } else {
    models::LoadedModel loaded =
        models::load(directory, {.dtype = weights, .coded = models::CodedWeights::kHeld, .warn = warn});
    for (size_t i = 0; i < adapter_names.size(); ++i) {
      adapters[adapter_names[i]] = models::read_adapter(*loaded.model, adapter_directories[i]);
    }
    bound->ends = std::move(loaded.eos_token_ids);
    model = std::move(loaded.model);
  }
  bound->defaults = models::read_generation_defaults(directory);
  bound->engine =
      std::make_shared<serve::Engine>(std::move(model), serve::EngineOptions{.max_batch = max_batch,
                                                                             .max_context = max_context,
                                                                             .memory = memory,
                                                                             .queue = queue,
                                                                             .cache = cache,
                                                                             .adapters = std::move(adapters)});
  bound->context = bound->engine->context();
  return bound;
}

// None: the queue is full.
std::optional<c10::intrusive_ptr<ServeReply>> serve_submit(
    const c10::intrusive_ptr<ServeEngine>& engine, std::vector<int64_t> prompt, int64_t max_new_tokens,
    std::optional<double> temperature, std::optional<int64_t> top_k, std::optional<double> top_p,
    std::optional<double> min_p, std::optional<double> repetition_penalty, double frequency_penalty,
    double presence_penalty, std::vector<int64_t> ends, int64_t seed, std::optional<int64_t> top_log_probabilities,
    std::string adapter, const std::string& response_format) {
  serve::Request request{.prompt = std::move(prompt), .adapter = std::move(adapter), .max_new_tokens = max_new_tokens};
  request.sampling = app::chosen_sampling(engine->defaults,
                                          {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
  request.rules = engine->defaults.rules;
  request.rules.repetition_penalty = repetition_penalty.value_or(request.rules.repetition_penalty);
  request.rules.frequency_penalty = frequency_penalty;
  request.rules.presence_penalty = presence_penalty;
  request.ends = std::move(ends);
  request.seed = seed;
  request.top_log_probabilities = top_log_probabilities;
  request.format = engine->format_of(response_format);
  try {
    return c10::make_intrusive<ServeReply>(engine->get()->submit(std::move(request)));
  } catch (const serve::QueueFull&) {
    return std::nullopt;
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  using Engine = c10::intrusive_ptr<ServeEngine>;
  using Reply = c10::intrusive_ptr<ServeReply>;
  library.class_<ServeEngine>("ServeEngine")
      .def("warning", [](const Engine& self) { return self->warning; })
      .def("ends", [](const Engine& self) { return self->ends; })
      .def("context", [](const Engine& self) { return self->context; })
      .def("vocabulary", [](const Engine& self) { return self->get()->vocabulary(); })
      .def("t5_vocabulary", [](const Engine& self) { return self->t5_vocabulary; })
      .def("close", [](const Engine& self) { self->close(); });
  library.class_<ServeReply>("ServeReply")
      .def(
          "wait_for",
          [](const Reply& self, int64_t milliseconds) {
            return self->reply->wait_for(std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 0, kLongestWait)));
          })
      .def("next", [](const Reply& self) { return self->next(); })
      .def("cancel", [](const Reply& self) { self->reply->cancel(); })
      .def("end", [](const Reply& self) { return self->end(); })
      .def("descriptor", [](const Reply& self) { return self->descriptor(); })
      .def("clear", [](const Reply& self) {
        if (self->signal != nullptr) self->signal->clear();
      });
  using Stops = c10::intrusive_ptr<BoundStopTexts>;
  library.class_<BoundStopTexts>("StopTexts")
      .def(torch::init<std::vector<std::string>>())
      .def("add", [](const Stops& self, const std::string& piece) { return self->stops.add(piece); })
      .def("finish", [](const Stops& self) { return self->stops.finish(); })
      .def("reached", [](const Stops& self) { return self->stops.reached(); });
  library.def(
      "serve_engine(str directory, *, str dtype, str kv, int max_batch, int max_context, int memory, int queue, "
      "str[] adapter_names, str[] adapter_directories) -> "
      "__torch__.torch.classes.plimsoll.ServeEngine",
      &serve_engine);
  library.def(
      "serve_submit(__torch__.torch.classes.plimsoll.ServeEngine engine, int[] prompt, *, int max_new_tokens, "
      "float? temperature, int? top_k, float? top_p, float? min_p, float? repetition_penalty, float frequency_penalty, "
      "float presence_penalty, int[] ends, int seed, int? top_log_probabilities, str adapter, str response_format) "
      "-> "
      "__torch__.torch.classes.plimsoll.ServeReply?",
      &serve_submit);
}

}  // namespace plimsoll::bind
