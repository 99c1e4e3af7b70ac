// What ran: one record per instruction, flag and barrier, for the cost model and for tests. Mirrored by twin/trace.py.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "memory.h"

namespace twin {

enum class Event : uint8_t { op, set_flag, wait_flag, barrier, cross_set, cross_wait, sync_all };

// `pipe`: where it runs; 7 for all. `detail`: event id of a flag, cross-core flag, generation of a SyncAll.
struct Record {
  uint32_t core;  // index into the cores
  uint16_t name;  // index into the names
  Event event;
  uint8_t pipe;
  uint32_t detail;
  uint32_t reserved;
  uint64_t elements;
  uint64_t read[kMemories];  // bytes
  uint64_t written[kMemories];
};

// `to` can't start before `from` has ended: a wait and the set that released it. Indices of records.
struct Edge {
  uint64_t from, to;
};

struct TraceCore {
  uint32_t block, sub, cube;
};

struct Trace {
  std::vector<Record> records;
  std::vector<Edge> edges;
  std::vector<TraceCore> cores;
  std::vector<const char*> names;
  std::unordered_map<std::string_view, uint16_t> name_index;

  uint64_t add(uint32_t core, const char* name, Event event, uint8_t pipe, uint32_t detail, uint64_t elements) {
    auto [at, fresh] = name_index.try_emplace(name, static_cast<uint16_t>(names.size()));
    if (fresh) names.push_back(name);
    Record record{};
    record.core = core;
    record.name = at->second;
    record.event = event;
    record.pipe = pipe;
    record.detail = detail;
    record.elements = elements;
    records.push_back(record);
    return records.size() - 1;
  }
};

}  // namespace twin
