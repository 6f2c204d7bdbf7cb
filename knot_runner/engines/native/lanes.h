// Values of a batch by lanes and by rows, and the way from one to the other.
//
// By lanes they are [blocks, units, LANES]: a lane is an example, so a weight is read once for all of a block.
#pragma once

#include <algorithm>

#include "vectors.h"

static int blocks_of(int count) { return (count + LANES - 1) / LANES; }

static int padded_to_vectors(int units) { return blocks_of(units) * LANES; }

// lanes [blocks, units, LANES] of values at rows[b] [units], 0 beyond the batch
static void to_lanes(const REAL* const* rows, int count, int units, REAL* lanes) {
    for (int s = 0; s < blocks_of(count); s++) {
        const REAL* const* own = rows + s * LANES;
        REAL* to = lanes + (long)s * units * LANES;
        int held = std::min(count - s * LANES, LANES), i = 0;
        for (; i + LANES <= units; i += LANES) {
            Vec tile[LANES];
            for (int b = 0; b < held; b++) tile[b] = load(own[b] + i);
            for (int b = held; b < LANES; b++) tile[b] = Vec{};
            transpose(tile);
            EACH(j, LANES) store(to + (long)(i + j) * LANES, tile[j]);
        }
        for (; i < units; i++)
            for (int b = 0; b < LANES; b++) to[(long)i * LANES + b] = b < held ? own[b][i] : 0;
    }
}

// For each example of block s of a batch, from its lanes [units, LANES]: take(example, unit, values) for a vector of
// units, and take(example, unit, value) for each of the last ones.
template <typename Take>
static inline void each_row(const REAL* lanes, int held, int units, Take take) {
    int i = 0;
    for (; i + LANES <= units; i += LANES) {
        Vec tile[LANES];
        EACH(j, LANES) tile[j] = load(lanes + (long)(i + j) * LANES);
        transpose(tile);
        for (int b = 0; b < held; b++) take(b, i, tile[b]);
    }
    for (; i < units; i++)
        for (int b = 0; b < held; b++) take(b, i, lanes[(long)i * LANES + b]);
}

static inline void store(REAL* at, REAL value) { *at = value; }

// rows [B, units padded to vectors] of block s of a batch, from its lanes [units, LANES]
static void to_rows(const REAL* lanes, int s, int count, int units, REAL* rows) {
    long wide = padded_to_vectors(units);
    REAL* first = rows + s * LANES * wide;
    each_row(lanes, std::min(count - s * LANES, LANES), units,
             [&](int b, int i, auto value) { store(first + b * wide + i, value); });
}
