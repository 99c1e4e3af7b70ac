#include "shadow.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace twin {

namespace {

constexpr uint32_t kNumber = (1u << 29) - 1;

// Bits [begin % 32, ...) of the word that `begin` lies in, up to `end`.
uint32_t edge(uint64_t begin, uint64_t end) {
  const uint64_t count = std::min<uint64_t>(end - begin, 32 - begin % 32);
  const uint32_t ones = count == 32 ? ~0u : (1u << count) - 1u;
  return ones << (begin % 32);
}

}  // namespace

void Written::mark(uint64_t begin, uint64_t end, bool written) {
  const auto put = [&](uint64_t at, uint32_t mask) {
    if (written) bits_[at / 32] |= mask;
    else bits_[at / 32] &= ~mask;
  };
  if (begin >= end) return;
  if (begin % 32 || end - begin < 32) {
    put(begin, edge(begin, end));
    begin = std::min(end, (begin / 32 + 1) * 32);
  }
  const uint64_t whole = (end - begin) / 32;
  std::fill_n(bits_.begin() + static_cast<int64_t>(begin / 32), whole, written ? ~0u : 0u);
  begin += whole * 32;
  if (begin < end) put(begin, edge(begin, end));
}

uint64_t Written::first_missing(uint64_t begin, uint64_t end) const {
  for (uint64_t at = begin; at < end;) {
    if (at % 32 == 0 && end - at >= 32) {  // whole words
      const uint64_t words = (end - at) / 32;
      const uint32_t* word = bits_.data() + at / 32;
      uint32_t all = ~0u;
      for (uint64_t i = 0; i < words; ++i) all &= word[i];
      if (all == ~0u) {
        at += words * 32;
        continue;
      }
    }
    const uint32_t mask = edge(at, end);
    const uint32_t missing = mask & ~bits_[at / 32];
    if (missing) return at / 32 * 32 + static_cast<uint64_t>(__builtin_ctz(missing));
    at = at / 32 * 32 + 32;
  }
  return end;
}

void Written::forget(uint64_t end) {
  std::fill_n(bits_.begin(), std::min<uint64_t>(bits_.size(), (end + 31) / 32), 0u);
}

Arena::Arena(Memory memory) : memory_(memory) {
  const uint64_t bytes = (capacity_of(memory) + 511) / 512 * 512;
  data_ = static_cast<uint8_t*>(std::aligned_alloc(512, bytes));
  if (!data_) throw std::bad_alloc();
  written_.resize(bytes);
  writer_.assign(bytes / kCell, 0);
}

Arena::~Arena() { std::free(data_); }

void Arena::reset() {
  const uint64_t cells = std::min<uint64_t>(writer_.size(), (touched_ + kCell - 1) / kCell);
  written_.forget(touched_);
  std::fill_n(writer_.begin(), cells, 0u);
  for (auto& readers : readers_) std::fill_n(readers.begin(), std::min<uint64_t>(cells, readers.size()), 0u);
  touched_ = 0;
}

Access Arena::find_write(uint64_t begin, uint64_t end, const Allowed& allowed) const {
  constexpr uint64_t kChunk = 64;
  const uint64_t last = (end + kCell - 1) / kCell;
  uint32_t fine = 0;  // neighbours mostly have one writer
  for (uint64_t cell = begin / kCell; cell < last;) {
    const uint64_t stop = std::min(last, cell + kChunk);
    uint32_t other = 0;
    for (uint64_t i = cell; i < stop; ++i) other |= writer_[i] ^ fine;
    for (; other && cell < stop; ++cell) {
      const uint32_t tag = writer_[cell];
      if (tag == fine) continue;
      if ((tag & kNumber) > allowed[tag >> 29]) return {0, tag & kNumber, static_cast<uint8_t>(tag >> 29)};
      fine = tag;
      other = 0;
      for (uint64_t i = cell; i < stop; ++i) other |= writer_[i] ^ fine;
    }
    cell = stop;
  }
  return {};
}

Access Arena::find_read(uint64_t begin, uint64_t end, const Allowed& allowed) const {
  const uint64_t first = begin / kCell, count = (end + kCell - 1) / kCell - first;
  for (int pipe = 0; pipe < kPipes; ++pipe) {
    if (readers_[pipe].empty()) continue;
    const uint32_t* numbers = readers_[pipe].data() + first;
    uint32_t newest = 0;
    for (uint64_t i = 0; i < count; ++i) newest = std::max(newest, numbers[i]);
    if (newest > allowed[pipe]) return {0, newest, static_cast<uint8_t>(pipe)};
  }
  return {};
}

void Arena::note(uint64_t begin, uint64_t end, bool write, Pipe pipe, uint32_t number) {
  const int index = static_cast<int>(pipe);
  if (!write && readers_[index].empty()) readers_[index].assign(writer_.size(), 0);
  auto& table = write ? writer_ : readers_[index];
  const uint64_t first = begin / kCell, last = (end + kCell - 1) / kCell;
  const uint32_t tag = write ? (static_cast<uint32_t>(index) << 29) | number : number;
  std::fill(table.begin() + static_cast<int64_t>(first), table.begin() + static_cast<int64_t>(last), tag);
}

Accesses::Segments::iterator Accesses::split(uint64_t at) {
  auto next = segments_.lower_bound(at);
  if (next != segments_.end() && next->first == at) return next;
  if (next == segments_.begin()) return next;
  auto before = std::prev(next);
  if (before->second.end <= at) return next;
  Segment tail = before->second;
  before->second.end = at;
  return segments_.emplace_hint(next, at, std::move(tail));
}

Accesses::Segments::iterator Accesses::cover(uint64_t begin, uint64_t end) {
  split(end);
  auto at = split(begin);
  for (uint64_t next = begin; next < end;) {
    if (at == segments_.end() || at->first > next) {
      const uint64_t stop = at == segments_.end() ? end : std::min(end, at->first);
      at = segments_.emplace_hint(at, next, Segment{stop, {}, {}});
    }
    next = at->second.end;
    ++at;
  }
  return segments_.find(begin);
}

void Accesses::replay() {
  listed_ = false;
  for (const Read& read : reads_) {
    this->read(read.by, read.begin, read.end, [](const Access&) { return true; });
  }
  reads_.clear();
  reads_.shrink_to_fit();
}

}  // namespace twin
