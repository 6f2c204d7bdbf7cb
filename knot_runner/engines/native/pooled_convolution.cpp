// 2x2 max-pooling with ReLU after a convolution, and the convolution's gradients from that of the pooled values.
//
// Pooling passes a gradient to one of four outputs of the convolution, and ReLU to about half of these: seven of eight
// of the gradients that a dense backward pass multiplies are zero. Here each output channel has the list of those that
// are not, and only their patches are read (gradient of the weights) and added to (gradient of the inputs).
//
// Channels are last in memory. Inputs are padded: [B, H, W, I] with a slack of a vector behind the last, so that a
// filter's row is one run of K I values. Weights and their gradient are [C, K, R], R = K I rounded up to whole SIMD
// vectors.

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

// Marks a pooled value that ReLU made 0: no gradient passes.
constexpr int NONE = 4;
// Bytes of the inputs under the places that are done together: they stay in the first cache.
constexpr long BAND_BYTES = 20 << 10;
// Most rows of a filter, and vectors of a row, in one tile.
constexpr int TILE_ROWS = 5, TILE_VECTORS = 6;

// The nonzero gradients of one channel: `offsets` of their patches in the inputs, `values`.
struct Gradients {
    const int32_t* offsets;
    const REAL* values;
    int count;
};

// A tile is ROWS rows of a filter, VECTORS vectors of each.
template <int ROWS, int VECTORS>
struct Tile {
    // weights [rows of `run`] += each gradient times its patch of `inputs` [rows of `row`]
    static void add_to_weights(REAL* weights, long run, const REAL* inputs, long row, Gradients found) {
        Vec sums[ROWS][VECTORS];
        EACH(r, ROWS) EACH(v, VECTORS) sums[r][v] = load(weights + r * run + v * LANES);
        for (int k = 0; k < found.count; k++) {
            const REAL* patch = inputs + found.offsets[k];
            Vec gradient = splat(found.values[k]);
            EACH(r, ROWS) {
                EACH(v, VECTORS) sums[r][v] += gradient * load(patch + v * LANES);
                patch += row;
                KEEP_POINTER(patch);
            }
        }
        EACH(r, ROWS) EACH(v, VECTORS) store(weights + r * run + v * LANES, sums[r][v]);
    }

    // each gradient's patch of `inputs` [rows of `row`] += the gradient times weights [rows of `run`]
    static void add_to_inputs(const REAL* weights, long run, REAL* inputs, long row, Gradients found) {
        Vec filter[ROWS][VECTORS];
        EACH(r, ROWS) EACH(v, VECTORS) filter[r][v] = load(weights + r * run + v * LANES);
        for (int k = 0; k < found.count; k++) {
            REAL* patch = inputs + found.offsets[k];
            Vec gradient = splat(found.values[k]);
            EACH(r, ROWS) {
                EACH(v, VECTORS) store(patch + v * LANES, load(patch + v * LANES) + gradient * filter[r][v]);
                patch += row;
                KEEP_POINTER(patch);
            }
        }
    }
};

struct TilePasses {
    void (*add_to_weights)(REAL*, long, const REAL*, long, Gradients);
    void (*add_to_inputs)(const REAL*, long, REAL*, long, Gradients);
};

template <int ROWS>
static TilePasses tile_passes(int vectors) {
    switch (vectors) {
        case 1: return {Tile<ROWS, 1>::add_to_weights, Tile<ROWS, 1>::add_to_inputs};
        case 2: return {Tile<ROWS, 2>::add_to_weights, Tile<ROWS, 2>::add_to_inputs};
        case 3: return {Tile<ROWS, 3>::add_to_weights, Tile<ROWS, 3>::add_to_inputs};
        case 4: return {Tile<ROWS, 4>::add_to_weights, Tile<ROWS, 4>::add_to_inputs};
        case 5: return {Tile<ROWS, 5>::add_to_weights, Tile<ROWS, 5>::add_to_inputs};
        default: return {Tile<ROWS, 6>::add_to_weights, Tile<ROWS, 6>::add_to_inputs};
    }
}

static TilePasses tile_passes(int rows, int vectors) {
    switch (rows) {
        case 1: return tile_passes<1>(vectors);
        case 2: return tile_passes<2>(vectors);
        case 3: return tile_passes<3>(vectors);
        case 4: return tile_passes<4>(vectors);
        default: return tile_passes<5>(vectors);
    }
}

static REAL sum_of(const REAL* values, int count) {
    Vec sums = {};
    int k = 0;
    for (; k + LANES <= count; k += LANES) sums += load(values + k);
    REAL total = 0;
    for (; k < count; k++) total += values[k];
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

// Vectors of BYTES of values, of integers as wide, and of as many bytes.
template <int BYTES>
struct Vectors;
#define VECTORS(BYTES)                                                         \
    template <>                                                                \
    struct Vectors<BYTES> {                                                    \
        typedef REAL Values __attribute__((vector_size(BYTES)));               \
        typedef Int Ints __attribute__((vector_size(BYTES)));                  \
        typedef uint8_t Bytes __attribute__((vector_size(BYTES / sizeof(REAL)))); \
    };
VECTORS(64)
VECTORS(32)
VECTORS(16)

// The pooling of one place in vectors of BYTES, as far as whole ones go, from channel `c`; returns the channel reached.
// `from`: where the four outputs lie behind `four`.
template <int BYTES>
static int pool_place(const REAL* four, const long* from, REAL* pooled, uint8_t* where, int c, int channels) {
    constexpr int COUNT = BYTES / sizeof(REAL);
    typedef typename Vectors<BYTES>::Values Values;
    typedef typename Vectors<BYTES>::Ints Ints;
    for (; c + COUNT <= channels; c += COUNT) {
        Values best, value;
        std::memcpy(&best, four + c, BYTES);
        Ints index = {};
        EACH(k, 3) {
            std::memcpy(&value, four + from[k + 1] + c, BYTES);
            Ints larger = (value > best) | (value != value);  // NaN is passed on
            index = larger ? (k + 1) - Ints{} : index;
            best = larger ? value : best;
        }
        index = best <= Values{} ? NONE - Ints{} : index;
        best = best <= Values{} ? Values{} : best;
        std::memcpy(pooled + c, &best, BYTES);
        auto small = __builtin_convertvector(index, typename Vectors<BYTES>::Bytes);
        std::memcpy(where + c, &small, sizeof small);
    }
    return c;
}

// `outputs` [B, H, W, C] of a convolution -> max(0, their 2x2 maxima) at the inside of `pooled` [B, h + 2 pad,
// w + 2 pad, C], and in `where` [B, h, w, C] which of the four each is (the first of equal ones), or NONE.
extern "C" void pool_relu(const REAL* outputs, REAL* pooled, uint8_t* where, int batch, int height, int width,
                          int channels, int pad) {
    int h = height / 2, w = width / 2;
    long row = (long)width * channels;
    const long from[4] = {0, channels, row, row + channels};
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < h; i++)
            for (int j = 0; j < w; j++) {
                const REAL* four = outputs + ((long)b * height + 2 * i) * row + 2L * j * channels;
                REAL* to = pooled + (((long)b * (h + 2 * pad) + i + pad) * (w + 2 * pad) + j + pad) * channels;
                uint8_t* which = where + (((long)b * h + i) * w + j) * channels;
                int c = pool_place<VECTOR_BYTES>(four, from, to, which, 0, channels);
                if (VECTOR_BYTES > 32) c = pool_place<32>(four, from, to, which, c, channels);
                if (VECTOR_BYTES > 16) c = pool_place<16>(four, from, to, which, c, channels);
                for (; c < channels; c++) {
                    int best = 0;
                    for (int k = 1; k < 4; k++)
                        if (four[from[k] + c] > four[from[best] + c] || std::isnan(four[from[k] + c])) best = k;
                    REAL value = four[from[best] + c];
                    to[c] = value <= 0 ? 0 : value;
                    which[c] = value <= 0 ? NONE : best;
                }
            }
}

// Values of a vector: R is a multiple of it.
extern "C" int lanes() { return LANES; }

// Sizes of one convolution: its padded inputs [batch, height, width, inputs], `kernel` x `kernel` filters, and its
// pooled outputs [batch, h, w, channels], whose gradient lies within a padding of `pad`.
struct Shape {
    int32_t batch, h, w, channels, height, width, inputs, kernel, pad;
};

// Adds to `weights_gradient` [C, K, R], `bias_gradient` [C] and, if given, `inputs_gradient` (as `inputs`) what follows
// from `gradient` [B, h + 2 pad, w + 2 pad, C] of the pooled values; `where` as of pool_relu.
extern "C" void convolution_backward(const Shape* shape, const REAL* gradient, const uint8_t* where, const REAL* inputs,
                                     const REAL* weights, REAL* inputs_gradient, REAL* weights_gradient,
                                     REAL* bias_gradient) {
    const auto [batch, h, w, channels, height, width, depth, kernel, pad] = *shape;
    int vectors = (kernel * depth + LANES - 1) / LANES;
    long run = (long)vectors * LANES, row = (long)width * depth, image = height * row;
    // bands of rows of an image, or several small images
    long fit = (BAND_BYTES / (long)(row * sizeof(REAL)) - kernel + 1) / 2;
    int rows = std::max(1L, std::min((long)h, fit));
    int images = rows < h ? 1 : std::max(1L, std::min((long)batch, BAND_BYTES / (long)(image * sizeof(REAL))));
    long most = (long)images * rows * w;
    std::vector<int32_t> starts(most), offsets(channels * most), counts(channels);
    std::vector<long> places(most);  // of the pooled values in the gradient
    std::vector<REAL> values(channels * most);
    const int shift[NONE + 1] = {0, depth, (int)row, (int)row + depth, 0};

    for (int b0 = 0; b0 < batch; b0 += images)
        for (int i0 = 0; i0 < h; i0 += rows) {
            int found = 0;
            for (int b = b0; b < std::min(batch, b0 + images); b++)
                for (int i = i0; i < std::min(h, i0 + rows); i++)
                    for (int j = 0; j < w; j++) {
                        places[found] = (((long)b * (h + 2 * pad) + i + pad) * (w + 2 * pad) + j + pad) * channels;
                        starts[found++] = (b - b0) * image + 2 * i * row + 2L * j * depth;
                    }
            long first = ((long)b0 * h + i0) * w * channels;
            for (int c = 0; c < channels; c++) {
                int count = 0;
                for (int p = 0; p < found; p++) {  // without a branch: every second would be mispredicted
                    int which = where[first + (long)p * channels + c];
                    REAL value = gradient[places[p] + c];
                    offsets[c * most + count] = starts[p] + shift[which];
                    values[c * most + count] = value;
                    count += which != NONE;
                }
                counts[c] = count;
                bias_gradient[c] += sum_of(&values[c * most], count);
            }
            for (int r = 0; r < kernel; r += TILE_ROWS) {
                int high = std::min(TILE_ROWS, kernel - r);
                int tiles = (vectors + std::min(TILE_VECTORS, SUMS / high) - 1) / std::min(TILE_VECTORS, SUMS / high);
                int even = (vectors + tiles - 1) / tiles;
                for (int v = 0; v < vectors; v += even) {
                    TilePasses passes = tile_passes(high, std::min(even, vectors - v));
                    long to = b0 * image + r * row + v * LANES;
                    for (int c = 0; c < channels; c++) {
                        Gradients own = {&offsets[c * most], &values[c * most], counts[c]};
                        long at = ((long)c * kernel + r) * run + v * LANES;
                        passes.add_to_weights(weights_gradient + at, run, inputs + to, row, own);
                    }
                    for (int c = 0; c < channels && inputs_gradient; c++) {
                        Gradients own = {&offsets[c * most], &values[c * most], counts[c]};
                        long at = ((long)c * kernel + r) * run + v * LANES;
                        passes.add_to_inputs(weights + at, run, inputs_gradient + to, row, own);
                    }
                }
            }
        }
}
