// Repeats recorded calls (see recorded_calls.py) with the library of argv[1] and compares every buffer bit by bit.
// Any NaN equals any NaN. Prints the first differences of each call and ends with 1 if there is one.
#include <dlfcn.h>

#include <cstdint>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

using u64 = uint64_t;

template <class T> T take(std::istream& in) {
    T value{};
    in.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
}

struct Pointer {
    u64 place;
    uint32_t target;
    int64_t offset;
};

struct Buffer {
    uint8_t dtype;
    u64 size;
    char* data;
    std::vector<char> after;
    std::vector<Pointer> pointers;
};

// Both ABIs (SysV x86-64, AAPCS64) pass up to eight floats in registers of their own and every integer in its register
// or 8-byte stack slot, so one signature calls any function of fewer arguments.
using Any = int (*)(double, double, double, double, double, double, double, double, u64, u64, u64, u64, u64, u64, u64,
                    u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
                    u64, u64, u64, u64, u64);
constexpr size_t kIntegers = 32, kFloats = 8;

int call(void* function, const std::vector<u64>& integers, const std::vector<float>& floats) {
    u64 i[kIntegers] = {};
    double f[kFloats] = {};
    std::copy(integers.begin(), integers.end(), i);
    for (size_t j = 0; j < floats.size(); ++j) std::memcpy(&f[j], &floats[j], sizeof(float));
    return reinterpret_cast<Any>(function)(f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], i[0], i[1], i[2], i[3], i[4],
                                           i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14], i[15], i[16],
                                           i[17], i[18], i[19], i[20], i[21], i[22], i[23], i[24], i[25], i[26], i[27],
                                           i[28], i[29], i[30], i[31]);
}

bool both_nan(uint8_t dtype, const char* a, const char* b) {
    uint32_t x = 0, y = 0, limit = 0, mask = 0;
    const size_t width = dtype == 0 ? 4 : 2;
    std::memcpy(&x, a, width);
    std::memcpy(&y, b, width);
    mask = dtype == 0 ? 0x7fffffffu : 0x7fffu;
    limit = dtype == 0 ? 0x7f800000u : dtype == 1 ? 0x7f80u : 0x7c00u;
    return (x & mask) > limit && (y & mask) > limit;
}

int64_t compare(const std::string& name, u64 number, size_t which, const Buffer& buffer) {
    const size_t width = buffer.dtype == 0 ? 4 : buffer.dtype <= 2 ? 2 : 1;
    int64_t differing = 0;
    for (size_t at = 0; at + width <= buffer.size; at += width) {
        const char *a = buffer.data + at, *b = buffer.after.data() + at;
        if (std::memcmp(a, b, width) == 0 || (buffer.dtype <= 2 && both_nan(buffer.dtype, a, b))) continue;
        if (differing++ == 0) std::printf("%s: call %llu, buffer %zu, element %zu\n", name.c_str(), (unsigned long long)number, which, at / width);
    }
    if (differing > 1) std::printf("%s: call %llu, buffer %zu: %lld elements differ\n", name.c_str(), (unsigned long long)number, which, (long long)differing);
    return differing;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    void* library = dlopen(argv[1], RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    for (const char* check : {"ld_self_probe", "ld_bf16_dot_probe"}) {
        auto probe = reinterpret_cast<int (*)()>(dlsym(library, check));
        const int failed = probe ? probe() : 0;
        if (failed) {
            std::fprintf(stderr, "%s: check %d fails\n", check, failed);
            return 2;
        }
    }
    std::ifstream in(argv[2], std::ios::binary);
    int64_t differing = 0;
    u64 calls = 0;
    for (; in.peek() != EOF; ++calls) {
        std::string name(take<uint32_t>(in), '\0');
        in.read(&name[0], std::streamsize(name.size()));
        struct Argument {
            uint8_t pointer;
            int64_t value, offset;
        };
        std::vector<Argument> arguments(take<uint32_t>(in));
        for (Argument& a : arguments) {
            a.pointer = take<uint8_t>(in);
            a.value = take<int64_t>(in);
            a.offset = take<int64_t>(in);
        }
        std::vector<float> floats(take<uint32_t>(in));
        for (float& f : floats) f = take<float>(in);
        const int expected = take<int32_t>(in);
        std::vector<Buffer> buffers(take<uint32_t>(in));
        for (Buffer& b : buffers) {
            b.dtype = take<uint8_t>(in);
            b.size = take<u64>(in);
            b.data = static_cast<char*>(aligned_alloc(64, (b.size + 127) / 64 * 64));
            b.after.resize(b.size);
            in.read(b.data, std::streamsize(b.size));
            in.read(b.after.data(), std::streamsize(b.size));
            b.pointers.resize(take<uint32_t>(in));
            for (Pointer& p : b.pointers) {
                p.place = take<u64>(in);
                p.target = take<uint32_t>(in);
                p.offset = take<int64_t>(in);
            }
        }
        for (Buffer& b : buffers)
            for (const Pointer& p : b.pointers) {
                char* address = buffers[p.target].data + p.offset;
                std::memcpy(b.data + p.place, &address, sizeof address);
            }
        std::vector<u64> integers;
        for (const Argument& a : arguments)
            integers.push_back(a.pointer ? u64(uintptr_t(buffers[size_t(a.value)].data + a.offset)) : u64(a.value));
        void* function = dlsym(library, name.c_str());
        if (function == nullptr || integers.size() > kIntegers || floats.size() > kFloats || !in) {
            std::fprintf(stderr, "%s can't be replayed\n", name.c_str());
            return 2;
        }
        if (call(function, integers, floats) != expected) {
            std::printf("%s: call %llu returns another status\n", name.c_str(), (unsigned long long)calls);
            ++differing;
        }
        for (size_t i = 0; i < buffers.size(); ++i) {
            if (buffers[i].dtype != 4) differing += compare(name, calls, i, buffers[i]);
            std::free(buffers[i].data);
        }
    }
    std::printf("%llu calls, %lld elements differ\n", (unsigned long long)calls, (long long)differing);
    return calls == 0 ? 2 : differing != 0;
}
