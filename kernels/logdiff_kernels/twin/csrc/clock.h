// What a pipe knows to be complete: the vector clock of the race check.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"

namespace twin {

// `local[p]`: number of the newest instruction of this core's pipe p that is known to be complete. `remote`: the same
// for all pipes of all cores, index core * kPipes + pipe; it changes only where cores meet, so clocks share it.
struct Clock {
  using Remote = std::shared_ptr<const std::vector<uint32_t>>;

  std::array<uint32_t, kPipes> local{};
  Remote remote;

  void join(const Clock& other) {
    for (int i = 0; i < kPipes; ++i) local[i] = std::max(local[i], other.local[i]);
    join_remote(other.remote);
  }

  void join_remote(const Remote& other) {
    if (!other || other == remote) return;
    if (!remote || covers(*other, *remote)) {
      remote = other;
    } else if (!covers(*remote, *other)) {
      auto both = std::make_shared<std::vector<uint32_t>>(*remote);
      for (size_t i = 0; i < both->size(); ++i) (*both)[i] = std::max((*both)[i], (*other)[i]);
      remote = std::move(both);
    }
  }

  // What another core learns from this one, which is core `index` of `cores`.
  Remote published(uint32_t index, uint32_t cores) const {
    auto all = remote ? std::make_shared<std::vector<uint32_t>>(*remote)
                      : std::make_shared<std::vector<uint32_t>>(static_cast<size_t>(cores) * kPipes);
    for (int i = 0; i < kPipes; ++i) {
      uint32_t& known = (*all)[static_cast<size_t>(index) * kPipes + i];
      known = std::max(known, local[i]);
    }
    return all;
  }

  // Takes over what core `index` learns from others, about itself too.
  void learn(const Remote& other, uint32_t index) {
    join_remote(other);
    if (!other) return;
    for (int i = 0; i < kPipes; ++i) {
      local[i] = std::max(local[i], (*other)[static_cast<size_t>(index) * kPipes + i]);
    }
  }

 private:
  static bool covers(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
    bool all = true;
    for (size_t i = 0; i < a.size(); ++i) all &= a[i] >= b[i];
    return all;
  }
};

}  // namespace twin
