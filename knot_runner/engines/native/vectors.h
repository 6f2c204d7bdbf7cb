// Vectors as wide as the machine's registers, in the portable form of GCC and Clang. REAL is float or double.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

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
typedef Int IntVec __attribute__((vector_size(VECTOR_BYTES)));
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

// Bit of each lane whose value is not 0.
static inline uint32_t other_than_zero(Vec value) {
#if defined(__AVX512F__)
    if constexpr (sizeof(REAL) == 4)
        return _mm512_cmp_ps_mask((__m512)value, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    else
        return _mm512_cmp_pd_mask((__m512d)value, _mm512_setzero_pd(), _CMP_NEQ_UQ);
#else
    uint32_t found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= (uint32_t)(value[lane] != 0) << lane;
    return found;
#endif
}

// exp(x) for x <= 0, to about a unit of rounding: exp(r) 2^n with n whole and |r| <= ln(2) / 2, by Taylor's sum. Below
// the smallest normal number, that number.
static inline Vec exponential(Vec x) {
    constexpr bool single = sizeof(REAL) == 4;
    constexpr int terms = single ? 7 : 13, bias = single ? 127 : 1023, shift = single ? 23 : 52;
    constexpr REAL lowest = single ? -87 : -708;
    constexpr REAL whole_ones = single ? 12582912.0 : 6755399441055744.0;  // 1.5 * 2^shift: adding it rounds
    constexpr REAL high = 0.693359375, low = -2.121944400546905827679e-4;  // ln(2), in two parts
    x = x < splat(lowest) ? splat(lowest) : x;  // what is not a number stays so
    Vec n = (x * splat((REAL)1.4426950408889634074) + splat(whole_ones)) - splat(whole_ones);
    Vec r = (x - n * splat(high)) - n * splat(low), sum = splat(1);
    EACH(k, terms) sum = splat(1) + sum * r * splat((REAL)1 / (terms - k));
    IntVec exponent = (__builtin_convertvector(n, IntVec) + bias) << shift;
    Vec power;
    std::memcpy(&power, &exponent, sizeof power);
    return sum * power;
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif

#ifdef SHUFFLES
// Of two rows of a matrix, STEP apart: swaps the blocks of STEP columns that are not on its diagonal.
template <int STEP, int... J>
static inline void swap_blocks(Vec& above, Vec& below, std::integer_sequence<int, J...>) {
    Vec first = __builtin_shufflevector(above, below, (J & STEP ? LANES + J - STEP : J)...);
    below = __builtin_shufflevector(above, below, (J & STEP ? LANES + J : J + STEP)...);
    above = first;
}

template <int STEP>
static inline void transpose_from(Vec (&rows)[LANES]) {
    if constexpr (STEP < LANES) {
        EACH(i, LANES) if (!(i & STEP)) swap_blocks<STEP>(rows[i], rows[i + STEP], std::make_integer_sequence<int, LANES>());
        transpose_from<2 * STEP>(rows);
    }
}

// A square matrix of values becomes its transpose.
static inline void transpose(Vec (&rows)[LANES]) { transpose_from<1>(rows); }
#else
static inline void transpose(Vec (&rows)[LANES]) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) std::swap(rows[i][j], rows[j][i]);
}
#endif
