// What Python reads of the last launch; mirrored by twin/library.py.
#include "runtime.h"

namespace twin {
const Run* last_run();
}

#define EXPORT extern "C" __attribute__((visibility("default")))

// Sizes of what crosses the border: launch options, region, trace record.
EXPORT uint32_t twin_size(int what) {
  constexpr uint32_t sizes[] = {sizeof(twin::Launch), sizeof(twin::Region), sizeof(twin::Record)};
  return sizes[what];
}

// 0 check, 1 kernel, 2 core, 3 pipe, 4 op, 5 operand, 6 message; null if the last launch did not fail.
EXPORT const char* twin_failure(int field) {
  const twin::Run* run = twin::last_run();
  if (!run || !run->failed) return nullptr;
  const twin::Failure& failure = run->failure;
  if (field == 0) return twin::name_of(failure.check);
  const std::string* fields[] = {&failure.kernel, &failure.core, &failure.pipe,
                                 &failure.op, &failure.operand, &failure.message};
  return fields[field - 1]->c_str();
}

EXPORT uint64_t twin_instructions() { return twin::last_run() ? twin::last_run()->issued : 0; }

EXPORT const void* twin_trace_records(uint64_t* count) {
  const twin::Run* run = twin::last_run();
  *count = run ? run->trace.records.size() : 0;
  return *count ? run->trace.records.data() : nullptr;
}

EXPORT const void* twin_trace_edges(uint64_t* count) {
  const twin::Run* run = twin::last_run();
  *count = run ? run->trace.edges.size() : 0;
  return *count ? run->trace.edges.data() : nullptr;
}

EXPORT const void* twin_trace_cores(uint64_t* count) {
  const twin::Run* run = twin::last_run();
  *count = run ? run->trace.cores.size() : 0;
  return *count ? run->trace.cores.data() : nullptr;
}

EXPORT const char* twin_trace_name(uint64_t index) {
  const twin::Run* run = twin::last_run();
  return run && index < run->trace.names.size() ? run->trace.names[index] : nullptr;
}
