#include "check.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "runtime.h"

namespace twin {

namespace {

[[noreturn]] void raise(Check check, const char* operand, const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  if (!is_running()) {
    std::fprintf(stderr, "twin: %s outside of a launch: %s\n", name_of(check), text);
    std::abort();
  }
  Run& run = running();
  const Core& core = current();
  if (!run.failed) {
    run.failed = true;
    run.failure = {check, run.kernel, core.label(), core.op ? name_of(core.op->pipe()) : "",
                   core.op ? core.op->name() : core.doing, operand, text};
  }
  throw Cancelled{};
}

}  // namespace

const char* name_of(Check check) {
  constexpr const char* names[] = {"alignment", "range", "poison", "race", "capacity", "queue", "flag",
                                   "deadlock", "overload", "stride", "repeat", "mask", "state", "overlap", "launch"};
  static_assert(sizeof names / sizeof names[0] == static_cast<int>(Check::launch) + 1);
  return names[static_cast<int>(check)];
}

const char* name_of(Pipe pipe) {
  constexpr const char* names[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};
  return names[static_cast<int>(pipe)];
}

const char* name_of(Memory memory) {
  constexpr const char* names[] = {"GM", "UB", "L1", "L0A", "L0B", "L0C", "bias buffer", "fixpipe buffer"};
  return names[static_cast<int>(memory)];
}

void fail(Check check, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  raise(check, "", format, arguments);
}

void fail_operand(Check check, const char* operand, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  raise(check, operand, format, arguments);
}

}  // namespace twin
