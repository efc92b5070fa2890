// Reads damaged files in one process, as many as it can: attack_files FOLDER SEED FIRST COUNT SECONDS
// Case n is the same in every run with the same SEED. Before each its number goes into FOLDER/case, so that who started
// this program knows at which it ended. Prints a line "failed: NUMBER KIND: what" for each error that is none of ours
// or not one line, and at the end "done: NUMBER" with the number of the case that comes next.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "damage.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/app/t5/mmlu_questions.h"
#include "plimsoll/app/t5/t5_inputs.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/io/sha256.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/models/t5/config.h"
#include "plimsoll/models/t5/read_config.h"
#include "plimsoll/tokenize/sentencepiece/charsmap_testing.h"
#include "plimsoll/tokenize/sentencepiece/sentencepiece_model_testing.h"
#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

namespace plimsoll::attack {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kVocabulary = 600;
constexpr unsigned kSecondsOfACase = 60;  // what takes longer hangs
constexpr rlim_t kMemory = rlim_t{16} << 30;

// A file that is damaged, and what reads it.
struct Target {
  std::string kind;
  fs::path file;
  std::string good;
  std::function<std::string(Random&, const std::string&)> damage;
  std::function<void()> read;
};

std::string damage_json_or_bytes(Random& random, const std::string& text) {
  if (random() % 3 == 0) return damage_bytes(random, text);
  return damage_json(random, json::parse(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string damage_lines(Random& random, const std::string& text) {
  if (random() % 2 == 0) return damage_bytes(random, text);
  const std::string line = text.substr(0, text.find('\n'));
  return damage_json(random, json::parse(line)).dump() + text.substr(line.size());
}

// The header's JSON, or any bytes.
std::string damage_safetensors(Random& random, const std::string& file) {
  if (random() % 3 == 0) return damage_bytes(random, file);
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  const std::string header = damage_json(random, json::parse(file.substr(sizeof(size), size))).dump();
  const std::string length = tokenize::bytes_of({static_cast<uint32_t>(header.size()), 0});
  return length + header + file.substr(sizeof(size) + size);
}

// Words of the charsmap, or any bytes.
std::string damage_tokenizer(Random& random, const std::string& model) {
  if (random() % 2 == 0) return damage_bytes(random, model);
  std::string damaged = model;
  for (uint64_t i = random() % 20 + 1; i-- > 0;) {
    const auto word = static_cast<uint32_t>(random() % 2 == 0 ? random() : random() % (1 << 20));
    std::memcpy(damaged.data() + random() % (damaged.size() - sizeof(word)), &word, sizeof(word));
  }
  return damaged;
}

void read_model(const fs::path& directory) {
  const io::HuggingFaceDirectory model(directory);
  for (const std::string& name : model.names()) model.tensor(name).sum();
  models::check(models::t5_config(model));
}

void read_tokenizer(const fs::path& directory) {
  const tokenize::T5Tokenizer tokenizer(directory, kVocabulary);
  const auto ids = tokenizer.encode("ABCD A fox <extra_id_0> \xff</s> über 狐 aab");
  for (const int64_t id : ids) {
    if (id < 0 || id >= kVocabulary) throw std::logic_error("an id beyond the vocabulary");
  }
  tokenizer.decode(ids);
}

void read_examples(const fs::path& file) {
  app::T5Texts texts(file.parent_path(), kVocabulary);
  for (const app::T5Example& example : texts.read_examples(file)) texts.decode(example.input);
}

std::string config_text() {
  return R"({"model_type":"t5","vocab_size":600,"d_model":8,"d_kv":4,"d_ff":16,"num_layers":1,"num_decoder_layers":1,"num_heads":2,)"
         R"("relative_attention_num_buckets":8,"relative_attention_max_distance":16,"layer_norm_epsilon":1e-6,"dropout_rate":0.1,)"
         R"("feed_forward_proj":"gated-gelu","tie_word_embeddings":false,"pad_token_id":0,"eos_token_id":1,"decoder_start_token_id":0,)"
         R"("initializer_factor":1.0,"is_encoder_decoder":true,"architectures":["T5ForConditionalGeneration"]})";
}

std::string tokenizer_model() {
  const std::string replacements("a\0b\0cd\0", 7);
  const auto units = tokenize::DoubleArrayBuilder().build({{"A", 0}, {"BC", 2}, {"BCD", 4}, {"\xc3\xbc", 0}});
  return tokenize::first_pieces() + tokenize::piece("aa", tokenize::PieceType::kUserDefined) +
         tokenize::piece("aab", tokenize::PieceType::kUnused) +
         tokenize::normalizer(tokenize::charsmap_of(units, replacements)) +
         tokenize::denormalizer(tokenize::charsmap_of(units, replacements));
}

class Targets {
 public:
  explicit Targets(const fs::path& folder) : folder_(folder) {
    add_model();
    add_sharded();
    add_step();
    add_texts();
  }
  const std::vector<Target>& list() const { return targets_; }

 private:
  using Damage = std::function<std::string(Random&, const std::string&)>;

  void add(const std::string& kind, const fs::path& file, const Damage& damage, const std::function<void()>& read) {
    targets_.push_back({kind, file, io::read_plainly(file), damage, read});
  }

  void add_model() {
    const fs::path model = folder_ / "model";
    io::write_plainly(model / "config.json", config_text());
    io::write_plainly(model / "spiece.model", tokenizer_model());
    io::write_plainly(model / "tokenizer_config.json", R"({"extra_ids":100,"model_max_length":512})");
    io::save_safetensors(model / "model.safetensors",
                         {{"shared.weight", at::zeros({600, 8})},
                          {"lm_head.weight", at::arange(24).to(at::kHalf)},
                          {"encoder.final_layer_norm.weight", at::zeros({8}, at::kBFloat16)}});
    add("config", model / "config.json", damage_json_or_bytes, [model] { read_model(model); });
    add("safetensors", model / "model.safetensors", damage_safetensors, [model] { read_model(model); });
    add("tokenizer", model / "spiece.model", damage_tokenizer, [model] { read_tokenizer(model); });
    add("tokenizer config", model / "tokenizer_config.json", damage_json_or_bytes, [model] { read_tokenizer(model); });
  }

  void add_sharded() {
    const fs::path model = folder_ / "sharded";
    io::write_plainly(model / "config.json", config_text());
    io::save_safetensors(model / "a.safetensors", {{"shared.weight", at::zeros({3, 8})}});
    io::save_safetensors(model / "b.safetensors", {{"lm_head.weight", at::zeros({3, 8})}});
    io::write_plainly(
        model / "model.safetensors.index.json",
        R"({"metadata":{"total_size":192},"weight_map":{"shared.weight":"a.safetensors","lm_head.weight":"b.safetensors"}})");
    add("index", model / "model.safetensors.index.json", damage_json_or_bytes, [model] { read_model(model); });
  }

  // Damage to the state and the tensors is sealed with digests of its own, or the digests alone would be tried.
  void add_step() {
    const fs::path step =
        io::save_checkpoint(folder_ / "run", {.step = 1,
                                              .sections = {{"model", {{"w", at::arange(6)}, {"b", at::zeros({2, 3})}}}},
                                              .state = {{"shape", {{"layers", 1}}}, {"recipe", "fp8"}}});
    const auto read = [step] { io::load_checkpoint(step); };
    add("manifest", step / "manifest.json", damage_json_or_bytes, read);
    for (const char* name : {"state.json", "model.safetensors"}) {
      const bool is_state = name == std::string("state.json");
      const fs::path manifest = step / "manifest.json";
      const auto seal = [manifest, name, is_state, good = io::read_plainly(manifest)](Random& random,
                                                                                      const std::string& bytes) {
        std::string damaged = is_state ? damage_json_or_bytes(random, bytes) : damage_safetensors(random, bytes);
        json sealed = json::parse(good);
        sealed["files"][name] = {{"bytes", damaged.size()}, {"sha256", io::digest_of(damaged).sha256}};
        io::write_plainly(manifest, sealed.dump());
        return damaged;
      };
      const auto read_and_unseal = [manifest, read, good = io::read_plainly(manifest)] {
        try {
          read();
        } catch (...) {
          io::write_plainly(manifest, good);
          throw;
        }
        io::write_plainly(manifest, good);
      };
      add(name, step / name, seal, read_and_unseal);
    }
  }

  void add_texts() {
    const fs::path texts = folder_ / "texts";
    io::write_plainly(texts / "spiece.model", tokenizer_model());
    io::write_plainly(texts / "examples.jsonl", R"({"text":"A fox","target":"abc","decoder_input_ids":[0,4]})"
                                                "\n"
                                                R"({"input_ids":[4,5,1],"target":[4,1]})"
                                                "\n");
    io::write_plainly(texts / "lines.txt", "A fox\nab <extra_id_0>\n\nüber\n");
    io::write_plainly(texts / "train.jsonl", R"({"step":1,"loss":2.5,"slots":{"x":{"amax":1.0}}})"
                                             "\n"
                                             R"({"step":2,"loss":2.25})"
                                             "\n");
    io::write_plainly(texts / "test" / "a_test.csv", "\"What, then?\",1,2,\"3\"\"\",4,A\nq,a,b,c,d,D\n");
    const auto examples = texts / "examples.jsonl", lines = texts / "lines.txt", log = texts / "train.jsonl";
    add("examples", examples, damage_lines, [examples] { read_examples(examples); });
    add("lines", lines, damage_bytes, [lines] { read_examples(lines); });
    add("questions", texts / "test" / "a_test.csv", damage_bytes, [texts] { app::read_mmlu(texts); });
    add("log", log, damage_lines, [log] {
      app::last_json_line(log);
      app::JsonLines::resume(log, 1).write({{"step", 2}});
    });
  }

  fs::path folder_;
  std::vector<Target> targets_;
};

// Fault in how reading ended; empty where there is none.
std::string complaint(const std::function<void()>& read) {
  std::string said;
  try {
    read();
    return "";
  } catch (const app::Error& error) {
    said = error.what();
  } catch (const io::Error& error) {
    said = error.what();
  } catch (const c10::Error& error) {
    said = error.what_without_backtrace();
  } catch (const std::exception& error) {
    return fmt::format("an error that is none of ours: {}", error.what());
  }
  if (said.empty() || said.find('\n') != said.npos) return fmt::format("an error that is not one line: {}", said);
  return "";
}

int run(const fs::path& folder, uint64_t seed, uint64_t first, uint64_t count, double seconds) {
  const rlimit memory{.rlim_cur = kMemory, .rlim_max = kMemory};
  ::setrlimit(RLIMIT_AS, &memory);
  const Targets targets(folder);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t number = first;
  for (; number < first + count && std::chrono::steady_clock::now() < end; ++number) {
    Random random(seed * 0x9e3779b97f4a7c15 + number);
    const Target& target = targets.list()[number % targets.list().size()];
    io::write_plainly(folder / "case", fmt::format("{} {}", number, target.kind));
    io::write_plainly(target.file, target.damage(random, target.good));
    ::alarm(kSecondsOfACase);
    const std::string wrong = complaint(target.read);
    ::alarm(0);
    if (!wrong.empty()) fmt::print("failed: {} {}: {}\n", number, target.kind, wrong.substr(0, wrong.find('\n')));
    io::write_plainly(target.file, target.good);
  }
  fmt::print("done: {}\n", number);
  return 0;
}

}  // namespace
}  // namespace plimsoll::attack

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "expected FOLDER SEED FIRST COUNT SECONDS\n");
    return 2;
  }
  return plimsoll::attack::run(argv[1], std::stoull(argv[2]), std::stoull(argv[3]), std::stoull(argv[4]),
                               std::stod(argv[5]));
}
