// What the twin remembers about memory: which bytes were written, and who touched them last.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "launch.h"
#include "memory.h"

namespace twin {

// One bit per byte: has it been written?
class Written {
 public:
  void resize(uint64_t bytes) { bits_.assign((bytes + 31) / 32, 0); }
  bool sized() const { return !bits_.empty(); }
  void mark(uint64_t begin, uint64_t end, bool written);
  // First byte of [begin, end) that was not written, or `end`.
  uint64_t first_missing(uint64_t begin, uint64_t end) const;
  void forget(uint64_t end);  // of [0, end)

 private:
  std::vector<uint32_t> bits_;
};

// An earlier access: pipe and the number of its instruction. Number 0: none.
struct Access {
  uint32_t core = 0;
  uint32_t number = 0;
  uint8_t pipe = 0;
};

// One on-chip memory of one core. The race tables hold one entry per 32-byte cell.
class Arena {
 public:
  explicit Arena(Memory memory);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Memory memory() const { return memory_; }
  uint8_t* data() { return data_; }
  Written& written() { return written_; }
  void reset();
  void touched(uint64_t end) { touched_ = end > touched_ ? end : touched_; }

  using Allowed = std::array<uint32_t, kPipes>;  // per pipe: instructions up to this number are in order
  // An access to [begin, end) that is not in order with the one that wants it, or one with number 0.
  Access find_write(uint64_t begin, uint64_t end, const Allowed& allowed) const;
  Access find_read(uint64_t begin, uint64_t end, const Allowed& allowed) const;
  void note(uint64_t begin, uint64_t end, bool write, Pipe pipe, uint32_t number);

 private:
  Memory memory_;
  uint8_t* data_;
  uint64_t touched_ = 0;
  Written written_;
  std::vector<uint32_t> writer_;                       // pipe << 29 | number
  std::array<std::vector<uint32_t>, kPipes> readers_;  // newest number per pipe; empty until the pipe reads
};

// The GM accesses of one region, byte-exact.
class Accesses {
 public:
  // `ordered(access)`: the access is in order with the one at hand. Returns one that is not, or one with number 0.
  template <typename Ordered>
  Access read(const Access& by, uint64_t begin, uint64_t end, const Ordered& ordered);
  template <typename Ordered>
  Access write(const Access& by, uint64_t begin, uint64_t end, const Ordered& ordered);

 private:
  struct Segment {
    uint64_t end;
    Access writer;
    std::vector<Access> readers;
  };
  struct Read {
    uint64_t begin, end;
    Access by;
  };
  using Segments = std::map<uint64_t, Segment>;

  Segments::iterator split(uint64_t at);
  Segments::iterator cover(uint64_t begin, uint64_t end);  // no gaps in [begin, end), borders split
  void replay();

  Segments segments_;
  std::vector<Read> reads_;  // while nothing is written, reads are only listed
  bool listed_ = true;
};

struct RegionShadow {
  uint64_t begin, end;  // host addresses
  std::string name;
  bool initialised, read_only;
  Written written;
  Accesses accesses;
};

template <typename Ordered>
Access Accesses::read(const Access& by, uint64_t begin, uint64_t end, const Ordered& ordered) {
  if (listed_) {
    reads_.push_back({begin, end, by});
    if (reads_.size() > (1u << 20)) replay();
    return {};
  }
  for (auto at = cover(begin, end); at != segments_.end() && at->first < end; ++at) {
    Segment& segment = at->second;
    if (segment.writer.number && !ordered(segment.writer)) return segment.writer;
    bool found = false;
    for (Access& reader : segment.readers) {
      if (reader.core == by.core && reader.pipe == by.pipe) {
        reader.number = by.number;
        found = true;
        break;
      }
    }
    if (!found) segment.readers.push_back(by);
  }
  return {};
}

template <typename Ordered>
Access Accesses::write(const Access& by, uint64_t begin, uint64_t end, const Ordered& ordered) {
  if (listed_) replay();
  auto first = cover(begin, end);
  for (auto at = first; at != segments_.end() && at->first < end; ++at) {
    if (at->second.writer.number && !ordered(at->second.writer)) return at->second.writer;
    for (const Access& reader : at->second.readers) {
      if (!ordered(reader)) return reader;
    }
  }
  first->second.writer = by;
  first->second.readers.clear();
  first->second.end = end;
  auto next = std::next(first);
  while (next != segments_.end() && next->first < end) next = segments_.erase(next);
  return {};
}

}  // namespace twin
