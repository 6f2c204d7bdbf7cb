// An epoch of SGD on a perceptron's cross-entropy: forward, backward and update of all its batches in one call.
//
// Activations are kept twice: by lanes ([blocks, units, LANES]: a lane is an example, so a weight is read once for all
// of a block) for what multiplies by weights, and by rows ([B, units]) for the gradient of the weights.

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

// Rows of a weight matrix that are done together.
constexpr int ROWS = 8;

// W [outputs, inputs], b [outputs]; the velocities of momentum, and `pull` = mu w_start - control, each as W and b or null.
struct Layer {
    REAL *weight, *bias, *weight_velocity, *bias_velocity;
    const REAL *weight_pull, *bias_pull;
    int32_t inputs, outputs, learns;
};

// What a client's epochs share. `images` [n, inputs] with a slack of a vector behind the last.
// With `gram` [n, n] the first layer is in Gram form: `start` [n, outputs] are its outputs under the first weights, and
// `changes` [n, outputs] is what it has learnt since, by example.
struct Client {
    const REAL *images, *gram, *start;
    REAL* changes;
    const int64_t* labels;
    int64_t examples;
    int32_t layers, batch;
    REAL lr, momentum, rate, bias_rate, inverse_temperature;
};

typedef std::vector<REAL> Values;

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
static void update_layer(const Client& client, const Layer& layer, const Factors& factors) {
    const Sgd weights = {client.lr, client.momentum, client.rate}, biases = {client.lr, client.momentum, client.bias_rate};
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

// Training of one client on one batch after another.
class Perceptron {
   public:
    Perceptron(const Client& client, const Layer* layers) : client(client), layers(layers), depth(client.layers), lowest(depth) {
        int padded = blocks_of(client.batch) * LANES;
        long first = client.gram ? client.examples : layers[0].inputs;
        lanes.emplace_back(first * padded);
        rows.emplace_back();
        for (int l = 0; l < depth; l++) {
            lanes.emplace_back((long)layers[l].outputs * padded);
            gradients.emplace_back((long)layers[l].outputs * padded);
            rows.emplace_back((long)layers[l].outputs * client.batch + LANES);
            if (layers[l].learns) lowest = std::min(lowest, l);
        }
        pointers.resize(client.batch);
    }

    // One step on the examples at positions order[0..count); returns the batch's mean loss.
    double step(const int64_t* order, int count) {
        forward(order, count);
        double loss = cross_entropy(order, count);
        for (int l = depth - 1; l >= lowest; l--) {
            if (l > lowest) back_through(l, count);
            if (l == 0 && client.gram) {
                update_changes(order, count);
            } else if (layers[l].learns) {
                for (int b = 0; b < count; b++)
                    pointers[b] = l ? &rows[l][(long)b * layers[l].inputs] : client.images + order[b] * layers[0].inputs;
                update_layer(client, layers[l], {pointers.data(), gradients[l].data(), count});
            }
        }
        return loss;
    }

   private:
    const Client& client;
    const Layer* layers;
    int depth, lowest;  // layers; the lowest that learns
    std::vector<Values> lanes, rows, gradients;  // lanes[l], rows[l]: inputs of layer l; gradients[l]: of its outputs
    std::vector<const REAL*> pointers;

    void forward(const int64_t* order, int count) {
        for (int l = 0; l < depth; l++) {
            const Layer& layer = layers[l];
            bool gram = l == 0 && client.gram;
            if (l == 0) read_batch(order, count);
            for (int s = 0; s < blocks_of(count); s++) {
                REAL* out = &lanes[l + 1][(long)s * layer.outputs * LANES];
                if (gram) {
                    const REAL* products = &lanes[0][(long)s * client.examples * LANES];
                    multiply_back(client.changes, layer.outputs, client.examples, products, out);
                } else {
                    for (int o = 0; o < layer.outputs; o++) store(out + o * LANES, splat(layer.bias[o]));
                    multiply(layer.weight, layer.inputs, layer.outputs, &lanes[l][(long)s * layer.inputs * LANES], out);
                }
                if (l + 1 == depth) continue;
                for (int o = 0; o < layer.outputs; o++) {
                    Vec value = load(out + o * LANES);
                    store(out + o * LANES, value <= Vec{} ? Vec{} : value);
                }
                if (layers[l + 1].learns) to_rows(out, s, count, layer.outputs, rows[l + 1].data());
            }
        }
    }

    // The batch as the first layer reads it: pixels, or products with all examples beside the outputs to begin with.
    void read_batch(const int64_t* order, int count) {
        long first = client.gram ? client.examples : layers[0].inputs;
        for (int b = 0; b < count; b++) pointers[b] = (client.gram ? client.gram : client.images) + order[b] * first;
        to_lanes(pointers.data(), count, first, lanes[0].data());
        if (!client.gram) return;
        for (int b = 0; b < count; b++) pointers[b] = client.start + order[b] * layers[0].outputs;
        to_lanes(pointers.data(), count, layers[0].outputs, lanes[1].data());
    }

    // Gradient of the logits, softmax(z / T) less one at the label, by T and the batch; returns the mean loss.
    double cross_entropy(const int64_t* order, int count) {
        int classes = layers[depth - 1].outputs;
        double total = 0;
        for (int s = 0; s < blocks_of(count); s++) {
            const REAL* logits = &lanes[depth][(long)s * classes * LANES];
            REAL* gradient = &gradients[depth - 1][(long)s * classes * LANES];
            for (int lane = 0; lane < LANES; lane++) {
                int b = s * LANES + lane;
                REAL top = logits[lane], sum = 0;
                for (int c = 1; c < classes; c++) top = std::max(top, logits[c * LANES + lane]);
                for (int c = 0; c < classes; c++) {
                    REAL power = std::exp((logits[c * LANES + lane] - top) * client.inverse_temperature);
                    gradient[c * LANES + lane] = power;
                    sum += power;
                }
                REAL factor = b < count ? client.inverse_temperature / count : 0;
                for (int c = 0; c < classes; c++) gradient[c * LANES + lane] *= factor / sum;
                if (b >= count) continue;
                int label = client.labels[order[b]];
                gradient[label * LANES + lane] -= factor;
                total += std::log(sum) - (logits[label * LANES + lane] - top) * client.inverse_temperature;
            }
        }
        return total / count;
    }

    // gradients[l - 1] from gradients[l], through layer l and the ReLU below it
    void back_through(int l, int count) {
        const Layer& layer = layers[l];
        for (int s = 0; s < blocks_of(count); s++) {
            REAL* out = &gradients[l - 1][(long)s * layer.inputs * LANES];
            std::fill(out, out + (long)layer.inputs * LANES, 0);
            multiply_back(layer.weight, layer.inputs, layer.outputs, &gradients[l][(long)s * layer.outputs * LANES], out);
            const REAL* below = &lanes[l][(long)s * layer.inputs * LANES];
            for (int i = 0; i < layer.inputs; i++) {
                Vec open = load(below + i * LANES);
                store(out + i * LANES, open <= Vec{} ? Vec{} : load(out + i * LANES));
            }
        }
    }

    void update_changes(const int64_t* order, int count) {
        int outputs = layers[0].outputs;
        for (int b = 0; b < count; b++) {
            REAL* row = client.changes + order[b] * outputs;
            const REAL* own = &gradients[0][(long)(b / LANES) * outputs * LANES + b % LANES];
            for (int o = 0; o < outputs; o++) row[o] -= client.lr * own[o * LANES];
        }
    }
};

// Trains on the batches of `order` [count], positions of the client's examples, one after another; returns the sum of
// the steps' mean losses.
extern "C" double perceptron_epoch(const Client* client, const Layer* layers, const int64_t* order, int64_t count) {
    Perceptron network(*client, layers);
    double total = 0;
    for (int64_t at = 0; at < count; at += client->batch)
        total += network.step(order + at, std::min<int64_t>(client->batch, count - at));
    return total;
}
