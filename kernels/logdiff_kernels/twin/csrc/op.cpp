#include "op.h"

#include <algorithm>
#include <exception>

#include "runtime.h"

namespace twin {

namespace {

constexpr size_t kRecent = 4096;  // names kept per pipe, for the message of a race
constexpr uint32_t kMost = (1u << 29) - 1;

unsigned long long plain(uint64_t value) { return value; }

}  // namespace

void issue(Core& core, Pipe pipe) {
  if (pipe == Pipe::S) return;
  PipeState& state = core.pipes[static_cast<int>(pipe)];
  if (state.seen_scalar == core.scalar_version) return;
  state.clock.join(core.pipes[0].clock);
  state.seen_scalar = core.scalar_version;
}

Op::Op(const char* name, Pipe pipe, uint64_t elements)
    : core_(current()), name_(name), pipe_(pipe), elements_(elements), exceptions_(std::uncaught_exceptions()),
      spans_(core_.spans) {
  Run& run = running();
  if (++run.issued > run.options.instruction_limit && run.options.instruction_limit) {
    fail(Check::launch, "more than %llu instructions", plain(run.options.instruction_limit));
  }
  const uint32_t every = run.options.switch_every;
  if (every && run.random.below(every) == 0) yield_core();
  if (core_.op) fail(Check::overload, "%s begins inside %s", name, core_.op->name());
  core_.op = this;
  spans_.clear();
  if (!core_.has(pipe)) {
    fail(Check::overload, "%s runs on %s, which a %s core lacks", name, name_of(pipe), core_.cube ? "cube" : "vector");
  }
  PipeState& state = core_.pipes[static_cast<int>(pipe)];
  if (state.count == kMost) fail(Check::launch, "more than %u instructions on one pipe", kMost);
  number_ = ++state.count;
  if (run.options.check_races) {
    if (state.recent.empty()) state.recent.assign(kRecent, "");
    state.recent[number_ % kRecent] = name;
    issue(core_, pipe);
  }
}

Op::~Op() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) {
    core_.op = nullptr;
    return;
  }
  Run& run = running();
  if (run.options.check_races) {
    for (const Span& span : spans_) check_span(span);
    for (const Span& span : spans_) {
      if (span.memory != Memory::GM) core_.arena(span.memory).note(span.begin, span.end, span.write, pipe_, number_);
    }
  }
  if (run.options.trace) {
    const uint64_t at = run.trace.add(core_.index, name_, Event::op, static_cast<uint8_t>(pipe_), 0, elements_);
    for (int i = 0; i < kMemories; ++i) {
      run.trace.records[at].read[i] = read_bytes_[i];
      run.trace.records[at].written[i] = written_bytes_[i];
    }
  }
  core_.op = nullptr;
}

void Op::align(const Operand& operand, uint64_t boundary) const {
  if (operand.base % boundary == 0) return;
  fail_operand(Check::alignment, operand.label, "%s address %llu is not a multiple of %llu", name_of(operand.memory),
               plain(operand.base), plain(boundary));
}

const uint8_t* Op::read(const Operand& operand, uint64_t offset, uint64_t bytes) {
  return touch(operand, offset, bytes, false, true);
}

uint8_t* Op::write(const Operand& operand, uint64_t offset, uint64_t bytes) {
  return touch(operand, offset, bytes, true, true);
}

void Op::write_unspecified(const Operand& operand, uint64_t offset, uint64_t bytes) {
  touch(operand, offset, bytes, true, false);
}

const uint8_t* Op::read_strided(const Operand& operand, uint64_t offset, uint64_t bytes, uint64_t stride,
                                uint64_t count) {
  const uint8_t* first = nullptr;
  for (uint64_t i = 0; i < count; ++i) {
    const uint8_t* run = read(operand, offset + i * stride, bytes);
    if (i == 0) first = run;
  }
  return first;
}

uint8_t* Op::write_strided(const Operand& operand, uint64_t offset, uint64_t bytes, uint64_t stride, uint64_t count) {
  uint8_t* first = nullptr;
  for (uint64_t i = 0; i < count; ++i) {
    uint8_t* run = write(operand, offset + i * stride, bytes);
    if (i == 0) first = run;
  }
  return first;
}

uint8_t* Op::touch(const Operand& operand, uint64_t offset, uint64_t bytes, bool write, bool specified) {
  if (offset > operand.bytes || bytes > operand.bytes - offset) {
    fail_operand(Check::range, operand.label, "%s of bytes [%llu, %llu) of a %s tensor of %llu bytes",
                 write ? "write" : "read", plain(offset), plain(offset + bytes), name_of(operand.memory),
                 plain(operand.bytes));
  }
  const uint64_t begin = operand.base + offset, end = begin + bytes;
  uint8_t* data;
  Written* written = nullptr;
  uint64_t base = 0;
  bool watched = running().options.check_races;
  if (operand.memory == Memory::GM) {
    data = reinterpret_cast<uint8_t*>(begin);
    if (bytes == 0) return data;
    RegionShadow* region = find_region(begin, end);
    if (!region) {
      fail_operand(Check::range, operand.label, "%s of %llu bytes of GM at %p, outside of every tensor of the launch",
                   write ? "write" : "read", plain(bytes), static_cast<void*>(data));
    }
    if (write && region->read_only) {
      fail_operand(Check::range, operand.label, "write to %s, an input", region->name.c_str());
    }
    if (region->read_only) watched = false;
    if (region->written.sized()) written = &region->written;
    base = region->begin;
  } else {
    if (!core_.has(operand.memory)) {
      fail_operand(Check::overload, operand.label, "a %s core has no %s", core_.cube ? "cube" : "vector",
                   name_of(operand.memory));
    }
    if (pipe_ == Pipe::S && operand.memory != Memory::UB) {
      fail_operand(Check::overload, operand.label, "the scalar unit has no way to %s", name_of(operand.memory));
    }
    Arena& arena = core_.arena(operand.memory);
    data = arena.data() + begin;
    if (bytes == 0) return data;
    arena.touched(end);
    written = &arena.written();
  }
  if (written && write) {
    written->mark(begin - base, end - base, specified);
  } else if (written) {
    const uint64_t missing = written->first_missing(begin - base, end - base);
    if (missing != end - base) {
      fail_operand(Check::poison, operand.label, "read of byte %llu of bytes [%llu, %llu), which nothing has written",
                   plain(missing + base - operand.base), plain(offset), plain(offset + bytes));
    }
  }
  (write ? written_bytes_ : read_bytes_)[static_cast<int>(operand.memory)] += bytes;
  if (watched) note(operand, begin, end, write);
  return data;
}

void Op::note(const Operand& operand, uint64_t begin, uint64_t end, bool write) {
  // A strided instruction alternates between its operands: look at the last span of each.
  const size_t back = std::min<size_t>(spans_.size(), 3);
  for (size_t i = 1; i <= back; ++i) {
    Span& span = spans_[spans_.size() - i];
    if (span.memory != operand.memory || span.write != write || begin < span.begin || begin > span.end) continue;
    if (operand.memory == Memory::GM && span.begin < running().last_region->begin) continue;
    if (end > span.end) span.end = end;
    return;
  }
  spans_.push_back({operand.memory, write, begin, end, operand.label});
}

void Op::check_span(const Span& span) {
  const Clock& clock = core_.pipes[static_cast<int>(pipe_)].clock;
  if (span.memory != Memory::GM) {
    Arena::Allowed allowed = clock.local;
    if (pipe_ == Pipe::S || in_order_ == span.memory) allowed[static_cast<int>(pipe_)] = kMost;
    const Arena& arena = core_.arena(span.memory);
    Access bad = arena.find_write(span.begin, span.end, allowed);
    if (!bad.number && span.write) bad = arena.find_read(span.begin, span.end, allowed);
    if (bad.number) report(span, core_.index, bad.pipe, bad.number);
    return;
  }
  RegionShadow* region = find_region(span.begin, span.end);
  const auto ordered = [&](const Access& access) {
    if (access.core != core_.index) {
      return clock.remote && (*clock.remote)[access.core * kPipes + access.pipe] >= access.number;
    }
    const bool own = access.pipe == static_cast<uint8_t>(pipe_);
    return clock.local[access.pipe] >= access.number || (own && (access.number == number_ || pipe_ == Pipe::S));
  };
  // The scalar unit reads GM through a data cache that no other unit writes to.
  const auto cached = [&](const Access& access) { return ordered(access) && pipe_ != Pipe::S; };
  const Access by{core_.index, number_, static_cast<uint8_t>(pipe_)};
  const Access bad = span.write ? region->accesses.write(by, span.begin, span.end, ordered)
                                : region->accesses.read(by, span.begin, span.end, cached);
  if (bad.number) report(span, bad.core, bad.pipe, bad.number);
}

void Op::report(const Span& span, uint32_t other, uint8_t pipe, uint32_t number) {
  const Run& run = running();
  const Core& core = *run.cores[other];
  const PipeState& state = core.pipes[pipe];
  const bool recent = !state.recent.empty() && state.count - number < kRecent;
  const char* earlier = recent ? state.recent[number % kRecent] : "an earlier instruction";
  const char* from = name_of(static_cast<Pipe>(pipe));
  std::string remedy;
  if (other != core_.index) {
    remedy = "CrossCoreSetFlag and CrossCoreWaitFlag, or SyncAll, must lie between";
  } else if (pipe_ == Pipe::S && span.memory == Memory::GM) {
    remedy = "the scalar unit may not read through its cache what this launch writes";
  } else if (pipe == static_cast<uint8_t>(pipe_)) {
    remedy = std::string("PipeBarrier<PIPE_") + from + "> must lie between";
  } else {
    remedy = std::string("a flag ") + from + "_" + name_of(pipe_) + " must lie between";
  }
  fail_operand(Check::race, span.label, "%s of %s bytes [%llu, %llu) is not in order with %s on %s of %s: %s",
               span.write ? "write" : "read", name_of(span.memory),
               plain(span.memory == Memory::GM ? span.begin - find_region(span.begin, span.end)->begin : span.begin),
               plain(span.memory == Memory::GM ? span.end - find_region(span.begin, span.end)->begin : span.end),
               earlier, from, core.label().c_str(), remedy.c_str());
}

}  // namespace twin
