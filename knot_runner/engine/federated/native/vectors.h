// Vectors as wide as the machine's registers, in the portable form of GCC and Clang. REAL is float or double.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define SUMS 25  // vectors that one loop may sum into: there are 32 registers
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define SUMS 12  // of 16
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define SUMS 25  // of 32
#else
#define VECTOR_BYTES 16
#define SUMS 12  // of 16
#endif

typedef std::conditional<sizeof(REAL) == 4, int32_t, int64_t>::type Int;
typedef REAL Vec __attribute__((vector_size(VECTOR_BYTES)));
constexpr int LANES = VECTOR_BYTES / sizeof(REAL);

// Unrolled in full, so that arrays of vectors are registers.
#define EACH(i, n) _Pragma("GCC unroll 25") for (int i = 0; i < n; i++)
// The compiler takes the pointer as it is: otherwise it computes the address of every row of a tile anew.
#define KEEP_POINTER(p) __asm__("" : "+r"(p))

static inline Vec load(const REAL* at) {
    Vec found;
    std::memcpy(&found, at, sizeof found);
    return found;
}

static inline void store(REAL* at, Vec value) { std::memcpy(at, &value, sizeof value); }

static inline Vec splat(REAL value) { return value - Vec{}; }
