// A dense layer for a batch whose examples are lanes: products with its weights, and its step of SGD.
#pragma once

#include <algorithm>

#include "lanes.h"

// Rows of a weight matrix that are done together.
constexpr int ROWS = 8;

// W [outputs, inputs], b [outputs]; the velocities of momentum, and `pull` = mu w_start - control, each as W and b or null.
struct Layer {
    REAL *weight, *bias, *weight_velocity, *bias_velocity;
    const REAL *weight_pull, *bias_pull;
    int32_t inputs, outputs, learns;
};

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

// out [N, LANES] += W' d for N columns of W: d [outputs, LANES]
template <int N>
static void multiply_back_columns(const REAL* weight, int inputs, int outputs, const REAL* gradient, REAL* out) {
    Vec sums[N];
    EACH(i, N) sums[i] = load(out + i * LANES);
    for (int o = 0; o < outputs; o++) {
        Vec own = load(gradient + (long)o * LANES);
        const REAL* row = weight + (long)o * inputs;
        KEEP_POINTER(row);
        EACH(i, N) sums[i] += own * splat(row[i]);
    }
    EACH(i, N) store(out + i * LANES, sums[i]);
}

// out [inputs, LANES] += W' d
static void multiply_back(const REAL* weight, int inputs, int outputs, const REAL* gradient, REAL* out) {
    constexpr int COLUMNS = SUMS < 16 ? 8 : 16;
    int i = 0;
    for (; i + COLUMNS <= inputs; i += COLUMNS)
        multiply_back_columns<COLUMNS>(weight + i, inputs, outputs, gradient, out + i * LANES);
    for (; i + 4 <= inputs; i += 4) multiply_back_columns<4>(weight + i, inputs, outputs, gradient, out + i * LANES);
    for (; i < inputs; i++) multiply_back_columns<1>(weight + i, inputs, outputs, gradient, out + i * LANES);
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

// The step of `columns` weights of one output from place `at` of the layer's, by their gradient.
static void step_weights(const Layer& layer, const Sgd& sgd, long at, int columns, const REAL* gradient) {
    REAL *weight = layer.weight + at, *velocity = layer.weight_velocity ? layer.weight_velocity + at : nullptr;
    const REAL* pull = layer.weight_pull ? layer.weight_pull + at : nullptr;
    int j = 0;
    for (; j + LANES <= columns; j += LANES) {
        Vec value = sgd.step(load(weight + j), load(gradient + j), pull ? pull + j : pull, velocity ? velocity + j : velocity);
        store(weight + j, value);
    }
    for (; j < columns; j++)
        weight[j] = sgd.step(weight[j], gradient[j], pull ? pull + j : pull, velocity ? velocity + j : velocity);
}

// The step of the weights of output `o` in at most V vectors of columns from `i`, by the examples whose gradient is not
// 0: ReLU closes a unit for about half of them.
template <int V>
static void update_open(const Layer& layer, const Sgd& sgd, const Factors& factors, int o, int i) {
    Vec sums[V];
    EACH(v, V) sums[v] = Vec{};
    for (int s = 0; s < blocks_of(factors.count); s++) {
        const REAL* own = factors.gradient + ((long)s * layer.outputs + o) * LANES;
        uint32_t open = other_than_zero(load(own));
        if (factors.count < (s + 1) * LANES) open &= (1u << (factors.count - s * LANES)) - 1;
        for (; open; open &= open - 1) {
            int lane = __builtin_ctz(open);
            const REAL* row = factors.inputs[s * LANES + lane] + i;
            KEEP_POINTER(row);
            Vec gradient = splat(own[lane]);
            EACH(v, V) sums[v] += gradient * load(row + v * LANES);
        }
    }
    REAL gradient[V * LANES];
    EACH(v, V) store(gradient + v * LANES, sums[v]);
    step_weights(layer, sgd, (long)o * layer.inputs + i, std::min(V * LANES, layer.inputs - i), gradient);
}

// Vectors of columns that update_open() takes at a time, and those below which it does not pay.
constexpr int MOST_OPEN = SUMS / 2 + 1, LEAST_OPEN = 6;

// update_open() for `wide` vectors, a number that it knows when it is compiled.
template <int V = MOST_OPEN>
static void update_columns(const Layer& layer, const Sgd& sgd, const Factors& factors, int o, int i, int wide) {
    if constexpr (V > 1)
        if (wide < V) return update_columns<V - 1>(layer, sgd, factors, o, i, wide);
    update_open<V>(layer, sgd, factors, o, i);
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

// The step of one layer; behind each row of its inputs a vector may be read. `gated`: a ReLU reads its outputs.
static void update_layer(const Layer& layer, const Sgd& weights, const Sgd& biases, const Factors& factors, bool gated) {
    int vectors = (layer.inputs + LANES - 1) / LANES, parts = (vectors + MOST_OPEN - 1) / MOST_OPEN;
    int wide = (vectors + parts - 1) / parts, o = 0;
    for (; gated && wide >= LEAST_OPEN && o < layer.outputs; o++)
        for (int v = 0; v < vectors; v += wide)
            update_columns(layer, weights, factors, o, v * LANES, std::min(wide, vectors - v));
    for (; o + 4 <= layer.outputs; o += 4) update_rows<4>(layer, weights, factors, o);
    for (; o < layer.outputs; o++) update_rows<1>(layer, weights, factors, o);
    for (o = 0; o < layer.outputs; o++) {
        REAL sum = 0;
        for (int s = 0; s < blocks_of(factors.count); s++) {  // beyond the batch it is 0
            const REAL* own = factors.gradient + ((long)s * layer.outputs + o) * LANES;
            EACH(lane, LANES) sum += own[lane];
        }
        const REAL* pull = layer.bias_pull ? layer.bias_pull + o : nullptr;
        REAL* velocity = layer.bias_velocity ? layer.bias_velocity + o : nullptr;
        layer.bias[o] = biases.step(layer.bias[o], sum, pull, velocity);
    }
}
