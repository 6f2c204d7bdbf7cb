// A dense layer for a batch whose examples are lanes: products with its weights, and its step of SGD.
//
// Values by lanes are [blocks, units, LANES]: a lane is an example, so a weight is read once for all of a block.
#pragma once

#include <algorithm>

#include "vectors.h"

// Rows of a weight matrix that are done together.
constexpr int ROWS = 8;

// W [outputs, inputs], b [outputs]; the velocities of momentum, and `pull` = mu w_start - control, each as W and b or null.
struct Layer {
    REAL *weight, *bias, *weight_velocity, *bias_velocity;
    const REAL *weight_pull, *bias_pull;
    int32_t inputs, outputs, learns;
};

static int blocks_of(int count) { return (count + LANES - 1) / LANES; }

// out [units, LANES] = begin + W x for N rows of W: x [inputs, LANES]; `begin` [N, LANES]
template <int N>
static void multiply_rows(const REAL* weight, int inputs, const REAL* x, REAL* out) {
    Vec sums[N];
    const REAL* rows[N];
    EACH(o, N) sums[o] = load(out + o * LANES);
    EACH(o, N) rows[o] = weight + (long)o * inputs;
    for (int i = 0; i < inputs; i++) {
        Vec value = load(x + (long)i * LANES);
        EACH(o, N) sums[o] += value * splat(rows[o][i]);
    }
    EACH(o, N) store(out + o * LANES, sums[o]);
}

// out [outputs, LANES] += W x
static void multiply(const REAL* weight, int inputs, int outputs, const REAL* x, REAL* out) {
    int o = 0;
    for (; o + ROWS <= outputs; o += ROWS) multiply_rows<ROWS>(weight + (long)o * inputs, inputs, x, out + o * LANES);
    for (; o + 2 <= outputs; o += 2) multiply_rows<2>(weight + (long)o * inputs, inputs, x, out + o * LANES);
    for (; o < outputs; o++) multiply_rows<1>(weight + (long)o * inputs, inputs, x, out + o * LANES);
}

// out [inputs, LANES] += W' d for N rows of W: d [N, LANES]
template <int N>
static void multiply_back_rows(const REAL* weight, int inputs, const REAL* gradient, REAL* out) {
    Vec own[N];
    const REAL* rows[N];
    EACH(o, N) own[o] = load(gradient + o * LANES);
    EACH(o, N) rows[o] = weight + (long)o * inputs;
    for (int i = 0; i < inputs; i++) {
        Vec sum = load(out + (long)i * LANES), other = {};
        EACH(o, N / 2) sum += own[o] * splat(rows[o][i]);
        EACH(o, N - N / 2) other += own[o + N / 2] * splat(rows[o + N / 2][i]);
        store(out + (long)i * LANES, sum + other);
    }
}

static void multiply_back(const REAL* weight, int inputs, int outputs, const REAL* gradient, REAL* out) {
    int o = 0;
    for (; o + ROWS <= outputs; o += ROWS)
        multiply_back_rows<ROWS>(weight + (long)o * inputs, inputs, gradient + o * LANES, out);
    for (; o < outputs; o++) multiply_back_rows<1>(weight + (long)o * inputs, inputs, gradient + o * LANES, out);
}

// A step of SGD: with momentum v <- m v + g + rate w - pull, w <- w - lr v.
struct Sgd {
    REAL lr, momentum, rate;

    Vec step(Vec weight, Vec gradient, const REAL* pull, REAL* velocity) const {
        gradient += splat(rate) * weight;
        if (pull) gradient -= load(pull);
        if (velocity) {
            gradient += splat(momentum) * load(velocity);
            store(velocity, gradient);
        }
        return weight - splat(lr) * gradient;
    }

    REAL step(REAL weight, REAL gradient, const REAL* pull, REAL* velocity) const {
        gradient += rate * weight - (pull ? *pull : 0);
        if (velocity) *velocity = gradient += momentum * *velocity;
        return weight - lr * gradient;
    }
};

// What the gradient of a layer's weights is the product of: pointers to the rows of its inputs, and the gradient of its
// outputs [blocks, outputs, LANES].
struct Factors {
    const REAL* const* inputs;
    const REAL* gradient;
    int count;
};

// The gradient sum_b d_b x_b' of N rows of W from row `o`, V vectors of each from column `i`.
template <int N, int V>
static inline void tile_gradient(const Factors& factors, int outputs, int o, int i, Vec (&sums)[N][V]) {
    EACH(n, N) EACH(v, V) sums[n][v] = Vec{};
    for (int b = 0; b < factors.count; b++) {
        const REAL* own = factors.gradient + ((long)(b / LANES) * outputs + o) * LANES + b % LANES;
        const REAL* row = factors.inputs[b] + i;
        EACH(n, N) {
            Vec gradient = splat(own[n * LANES]);
            EACH(v, V) sums[n][v] += gradient * load(row + v * LANES);
        }
    }
}

// The step of these weights.
template <int N, int V>
static void update_tile(const Layer& layer, const Sgd& sgd, const Factors& factors, int o, int i) {
    Vec sums[N][V];
    tile_gradient<N, V>(factors, layer.outputs, o, i, sums);
    bool plain = sgd.rate == 0 && !layer.weight_pull && !layer.weight_velocity;
    EACH(n, N) {
        long at = (long)(o + n) * layer.inputs + i;
        REAL* weight = layer.weight + at;
        if (plain) {
            EACH(v, V) store(weight + v * LANES, load(weight + v * LANES) - splat(sgd.lr) * sums[n][v]);
            continue;
        }
        const REAL* pull = layer.weight_pull ? layer.weight_pull + at : nullptr;
        REAL* velocity = layer.weight_velocity ? layer.weight_velocity + at : nullptr;
        EACH(v, V) {
            Vec value = load(weight + v * LANES);
            store(weight + v * LANES, sgd.step(value, sums[n][v], pull ? pull + v * LANES : nullptr,
                                               velocity ? velocity + v * LANES : nullptr));
        }
    }
}

// The step of the last columns, fewer than a vector, from column `i`.
template <int N>
static void update_rest(const Layer& layer, const Sgd& sgd, const Factors& factors, int o, int i) {
    Vec sums[N][1];
    tile_gradient<N, 1>(factors, layer.outputs, o, i, sums);
    EACH(n, N) for (int j = i; j < layer.inputs; j++) {
        long at = (long)(o + n) * layer.inputs + j;
        const REAL* pull = layer.weight_pull ? layer.weight_pull + at : nullptr;
        REAL* velocity = layer.weight_velocity ? layer.weight_velocity + at : nullptr;
        layer.weight[at] = sgd.step(layer.weight[at], sums[n][0][j - i], pull, velocity);
    }
}

template <int N>
static void update_rows(const Layer& layer, const Sgd& sgd, const Factors& factors, int o) {
    constexpr int MOST = SUMS / N < 5 ? SUMS / N : 5;
    int i = 0;
    for (; i + MOST * LANES <= layer.inputs; i += MOST * LANES) update_tile<N, MOST>(layer, sgd, factors, o, i);
    for (; i + 2 * LANES <= layer.inputs; i += 2 * LANES) update_tile<N, 2>(layer, sgd, factors, o, i);
    for (; i + LANES <= layer.inputs; i += LANES) update_tile<N, 1>(layer, sgd, factors, o, i);
    if (i < layer.inputs) update_rest<N>(layer, sgd, factors, o, i);
}

// The step of one layer; behind each row of its inputs a vector may be read.
static void update_layer(const Layer& layer, const Sgd& weights, const Sgd& biases, const Factors& factors) {
    int o = 0;
    for (; o + 4 <= layer.outputs; o += 4) update_rows<4>(layer, weights, factors, o);
    for (; o < layer.outputs; o++) update_rows<1>(layer, weights, factors, o);
    for (o = 0; o < layer.outputs; o++) {
        REAL sum = 0;
        for (int b = 0; b < factors.count; b++)
            sum += factors.gradient[((long)(b / LANES) * layer.outputs + o) * LANES + b % LANES];
        const REAL* pull = layer.bias_pull ? layer.bias_pull + o : nullptr;
        REAL* velocity = layer.bias_velocity ? layer.bias_velocity + o : nullptr;
        layer.bias[o] = biases.step(layer.bias[o], sum, pull, velocity);
    }
}

// lanes [blocks, units, LANES] of values at rows[b] [units], 0 beyond the batch
static void to_lanes(const REAL* const* rows, int count, int units, REAL* lanes) {
    for (int b = 0; b < blocks_of(count) * LANES; b++) {
        REAL* to = lanes + (long)(b / LANES) * units * LANES + b % LANES;
        for (int i = 0; i < units; i++) to[(long)i * LANES] = b < count ? rows[b][i] : 0;
    }
}

// rows [B, units] of block s of a batch, from its lanes [units, LANES]
static void to_rows(const REAL* lanes, int s, int count, int units, REAL* rows) {
    for (int b = s * LANES; b < std::min(count, (s + 1) * LANES); b++)
        for (int i = 0; i < units; i++) rows[(long)b * units + i] = lanes[i * LANES + b % LANES];
}
