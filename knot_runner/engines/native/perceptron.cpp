// An epoch of SGD on a perceptron's cross-entropy: forward, backward and update of all its batches in one call.
//
// Activations are kept twice: by lanes (dense.h) for what multiplies by weights, and by rows ([B, units]) for the
// gradient of the weights.

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "dense.h"

// What a client's epochs share. `images` [n, inputs] with a slack of a vector behind the last.
// With `gram` [n, n] the first layer is in Gram form: `start` [n, outputs] are its outputs under the first weights, and
// `changes` [n, outputs] is what it has learned since, by example, and `velocity`, as changes, that of momentum or null.
struct Client {
    const REAL *images, *gram, *start;
    REAL *changes, *velocity;
    const int64_t* labels;
    int64_t examples;
    int32_t layers, batch;
    REAL lr, momentum, rate, bias_rate, inverse_temperature;
};

// Memory whose vectors begin with a line of the cache: one that lies in two takes twice as long to read.
template <typename T>
struct Aligned {
    typedef T value_type;
    T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64))); }
    void deallocate(T* at, std::size_t) { ::operator delete(at, std::align_val_t(64)); }
    bool operator==(const Aligned&) const { return true; }
    bool operator!=(const Aligned&) const { return false; }
};

typedef std::vector<REAL, Aligned<REAL>> Values;

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
            rows.emplace_back((long)padded_to_vectors(layers[l].outputs) * client.batch);
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
                    pointers[b] = l ? &rows[l][(long)b * padded_to_vectors(layers[l].inputs)] : client.images + order[b] * layers[0].inputs;
                const Sgd weights = {client.lr, client.momentum, client.rate};
                const Sgd biases = {client.lr, client.momentum, client.bias_rate};
                update_layer(layers[l], weights, biases, {pointers.data(), gradients[l].data(), count}, l + 1 < depth);
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
            Vec top = load(logits), sum = {}, shares = {};
            for (int c = 1; c < classes; c++) {
                Vec logit = load(logits + c * LANES);
                top = logit > top ? logit : top;
            }
            for (int c = 0; c < classes; c++) {
                Vec power = exponential((load(logits + c * LANES) - top) * splat(client.inverse_temperature));
                store(gradient + c * LANES, power);
                sum += power;
            }
            int held = std::min(count - s * LANES, LANES);
            REAL factor = client.inverse_temperature / count;
            for (int lane = 0; lane < held; lane++) shares[lane] = factor / sum[lane];
            for (int c = 0; c < classes; c++) store(gradient + c * LANES, load(gradient + c * LANES) * shares);
            for (int lane = 0; lane < held; lane++) {
                int label = client.labels[order[s * LANES + lane]];
                gradient[label * LANES + lane] -= factor;
                total += std::log(sum[lane]) - (logits[label * LANES + lane] - top[lane]) * client.inverse_temperature;
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

    // A step of SGD on the changes A, whose gradient is that of the outputs for the examples of the batch and rate A, of
    // the proximal term, for all.
    void update_changes(const int64_t* order, int count) {
        int outputs = layers[0].outputs;
        long all = client.examples * outputs;
        REAL *changes = client.changes, *velocity = client.velocity;
        if (velocity) {
            for (long i = 0; i < all; i++) velocity[i] = client.momentum * velocity[i] + client.rate * changes[i];
        } else if (client.rate) {
            for (long i = 0; i < all; i++) changes[i] -= client.lr * client.rate * changes[i];
        }
        REAL* target = velocity ? velocity : changes;
        REAL scale = velocity ? 1 : -client.lr;
        for (int s = 0; s < blocks_of(count); s++) {
            const int64_t* examples = order + s * LANES;
            auto take = [&](int b, int o, auto gradient) {
                REAL* at = target + examples[b] * outputs + o;
                if constexpr (std::is_same<decltype(gradient), Vec>::value)
                    store(at, load(at) + splat(scale) * gradient);
                else
                    *at += scale * gradient;
            };
            each_row(&gradients[0][(long)s * outputs * LANES], std::min(count - s * LANES, LANES), outputs, take);
        }
        for (long i = 0; velocity && i < all; i++) changes[i] -= client.lr * velocity[i];
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
