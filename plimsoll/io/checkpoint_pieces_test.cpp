// Checkpoints of several ranks, and ranges of them.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/checkpoint_writer.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

const at::Tensor& weight() {
  static const at::Tensor values = at::arange(35, at::kFloat).view({7, 5});
  return values;
}

TensorPiece piece_of_weight(int64_t begin, int64_t end) {
  return {
      .name = "weight", .shape = {7, 5}, .begin = begin, .end = end, .values = weight().flatten().slice(0, begin, end)};
}

// As so many ranks save it, each with an equal part of the padded whole.
fs::path save_by(int64_t world_size, const fs::path& run) {
  const CheckpointPlace place{.run = run, .step = 1};
  begin_checkpoint(place);
  Manifest manifest{.step = 1, .world_size = world_size, .files = {}, .sections = {}};
  const int64_t part = (35 + world_size - 1) / world_size;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const int64_t begin = std::min<int64_t>(35, rank * part), end = std::min<int64_t>(35, begin + part);
    PieceMap sections = {{"model", {piece_of_weight(begin, end)}}};
    if (rank == 0) {
      sections["model"].push_back(whole_piece("nothing", at::empty({0, 3})));
      sections["optimizer"].push_back(whole_piece("step", at::arange(1)));
    }
    manifest.merge(write_pieces(place, sections, {.rank = rank, .world_size = world_size}));
  }
  commit_checkpoint(place, manifest, {{"seed", 1}});
  return place.final_name();
}

TEST(CheckpointPieces, EveryRangeOfWhatAnyNumberOfRanksSaved) {
  for (const int64_t world_size : {1, 2, 3, 8, 40}) {
    const TemporaryDirectory run;
    const CheckpointReader reader(save_by(world_size, run.path()));
    reader.verify(reader.files());
    EXPECT_EQ(reader.manifest().world_size, world_size);
    EXPECT_TRUE(at::equal(reader.read("model", "weight"), weight()));
    for (int64_t begin = 0; begin <= 35; ++begin) {
      for (int64_t end = begin; end <= 35; ++end) {
        const at::Tensor found = reader.read("model", "weight", begin, end);
        ASSERT_TRUE(at::equal(found, weight().flatten().slice(0, begin, end))) << begin << " " << end;
      }
    }
    EXPECT_EQ(reader.read("model", "nothing").sizes(), at::IntArrayRef({0, 3}));
    EXPECT_THROW(reader.read("model", "weight", 1, 36), Error);
    EXPECT_THROW(reader.read("model", "bias"), Error);
    const Checkpoint whole = load_checkpoint(reader.directory());
    EXPECT_TRUE(at::equal(whole.sections.at("model").at("weight"), weight()));
    EXPECT_EQ(whole.state.at("seed"), 1);
  }
}

TEST(CheckpointPieces, TheDamagedRanksFileIsNamed) {
  for (const char* file : {"model.rank-00001.safetensors", "optimizer.rank-00000.safetensors"}) {
    const TemporaryDirectory run;
    const fs::path saved = save_by(2, run.path());
    std::string bytes = read_plainly(saved / file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_plainly(saved / file, bytes);
    EXPECT_THAT([&] { load_checkpoint(saved); }, ThrowsMessage<Error>(HasSubstr(file)));
    fs::remove(saved / file);
    EXPECT_THAT([&] { load_checkpoint(saved); }, ThrowsMessage<Error>(HasSubstr(file)));
  }
}

class Contradiction : public testing::Test {
 protected:
  void SetUp() override { begin_checkpoint(place_); }

  Manifest write(int64_t rank, std::vector<TensorPiece> pieces) const {
    return write_pieces(place_, {{"model", std::move(pieces)}}, {.rank = rank, .world_size = 2});
  }
  void commit(const Manifest& first, const Manifest& second) const {
    Manifest both = first;
    both.merge(second);
    commit_checkpoint(place_, both, {});
  }

  TemporaryDirectory run_;
  CheckpointPlace place_{.run = run_.path(), .step = 1};
};

TEST_F(Contradiction, HoleOverlapAndAnotherShapeAreRefused) {
  const Manifest first = write(0, {piece_of_weight(0, 20)});
  EXPECT_THAT([&] { commit(first, write(1, {piece_of_weight(21, 35)})); },
              ThrowsMessage<Error>(HasSubstr("begins at element 20, got 21")));
  EXPECT_THAT([&] { commit(first, write(1, {piece_of_weight(19, 35)})); },
              ThrowsMessage<Error>(HasSubstr("begins at element 20, got 19")));
  EXPECT_THAT([&] { commit(first, write(1, {})); }, ThrowsMessage<Error>(HasSubstr("got 20 elements")));
  TensorPiece other = piece_of_weight(20, 35);
  other.shape = {35};
  EXPECT_THAT([&] { commit(first, write(1, {other})); }, ThrowsMessage<Error>(HasSubstr("one dtype and shape")));
  EXPECT_TRUE(list_checkpoints(run_.path()).empty());
  commit(first, write(1, {piece_of_weight(20, 35)}));
  EXPECT_EQ(list_checkpoints(run_.path()).size(), 1u);
}

TEST_F(Contradiction, APieceOutsideOfItsTensorOrTwiceIsRefused) {
  TensorPiece outside = piece_of_weight(30, 35);
  outside.begin += 1, outside.end += 1;
  EXPECT_THAT([&] { write(0, {outside}); }, ThrowsMessage<Error>(HasSubstr("inside of 35 elements")));
  EXPECT_THAT(
      [&] {
        write(0, {piece_of_weight(0, 5), piece_of_weight(5, 35)});
      },
      ThrowsMessage<Error>(HasSubstr("each name once")));
}

}  // namespace
}  // namespace plimsoll::io
