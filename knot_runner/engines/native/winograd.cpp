// 3x3 convolutions of stride 1 and padding 1 by Winograd's minimal filtering F(2x2, 3x3) (Lavin and Gray 2016, section
// 4.1): 2x2 outputs, a tile, take 16 products for each pair of channels in place of 36.
//
// Channels are last: inputs [B, H, W, C], outputs [B, H, W, K], and both are whole vectors; weights are [K, C, 3, 3]. At
// each of 16 points the transformed inputs V [tiles, C], filters U [C, K] and outputs V U are matrices. A group of tiles
// is done at a time, so that its V stays in the cache.

#include <algorithm>
#include <memory>
#include <new>

#include "vectors.h"

constexpr int POINTS = 16, TAPS = 9;
// Rows, and vectors of a row, of a product that are summed together.
constexpr int HIGH = 6, WIDE = SUMS >= 24 ? 4 : 2;
// Columns of U and of V U that lie together.
constexpr int CHUNK = WIDE * LANES;
// Tiles of a group: as many times HIGH as fit most layers.
constexpr int GROUP = 11 * HIGH;

// Memory that begins with a cache line, not written yet.
struct Release {
    void operator()(REAL* at) const { ::operator delete(at, std::align_val_t(64)); }
};

static std::unique_ptr<REAL[], Release> memory(long count) {
    return std::unique_ptr<REAL[], Release>((REAL*)::operator new(count * sizeof(REAL), std::align_val_t(64)));
}

// A matrix, or its transpose, whose element (r, d) lies at r * row + d * step.
struct Matrix {
    const REAL* values;
    long row, step;
    Matrix from(int r) const { return {values + r * row, row, step}; }
};

// out [R, V vectors] = a b, or += for `add`: a [R, depth], b [depth, V vectors]; rows of `out` are CHUNK apart
template <int R, int V>
static void multiply_tile(Matrix a, Matrix b, int depth, REAL* out, bool add) {
    Vec sums[R][V];
    const REAL* rows[R];
    EACH(r, R) EACH(v, V) sums[r][v] = add ? load(out + r * CHUNK + v * LANES) : Vec{};
    EACH(r, R) rows[r] = a.values + r * a.row;
    const REAL* own = b.values;
    for (long at = 0, end = depth * a.step; at < end; at += a.step, own += b.row) {
        Vec columns[V];
        EACH(v, V) columns[v] = load(own + v * LANES);
        EACH(r, R) {
            Vec value = splat(rows[r][at]);
            EACH(v, V) sums[r][v] += value * columns[v];
        }
    }
    EACH(r, R) EACH(v, V) store(out + r * CHUNK + v * LANES, sums[r][v]);
}

// The same for any number of rows, of `vectors` vectors, a number that it knows when it is compiled.
template <int V = WIDE>
static void multiply(int vectors, int rows, Matrix a, Matrix b, int depth, REAL* out, bool add) {
    if constexpr (V > 1)
        if (vectors < V) return multiply<V - 1>(vectors, rows, a, b, depth, out, add);
    int r = 0;
    for (; r + HIGH <= rows; r += HIGH) multiply_tile<HIGH, V>(a.from(r), b, depth, out + r * CHUNK, add);
    for (; r + 2 <= rows; r += 2) multiply_tile<2, V>(a.from(r), b, depth, out + r * CHUNK, add);
    for (; r < rows; r++) multiply_tile<1, V>(a.from(r), b, depth, out + r * CHUNK, add);
}

// A batch of images and its tiles, the last of which may be half outside.
struct Images {
    int batch, height, width;

    int tiles() const { return batch * rows() * columns(); }
    int rows() const { return (height + 1) / 2; }
    int columns() const { return (width + 1) / 2; }
};

// Where a tile's outputs lie: place of the first pixel, and whether there is one below and to the right.
struct Tile {
    int image, i, j;
    bool below, right;
    long pixel;
};

static Tile tile_at(const Images& images, int number) {
    int each = images.rows() * images.columns(), own = number % each, image = number / each;
    int i = own / images.columns() * 2, j = own % images.columns() * 2;
    long pixel = ((long)image * images.height + i) * images.width + j;
    return {image, i, j, i + 1 < images.height, j + 1 < images.width, pixel};
}

// V = B' d B [16, count, channels] of tiles from `first`, d [4, 4] the pixels of `x` around a tile, 0 outside
static void transform_inputs(const Images& images, const REAL* x, int channels, int first, int count, REAL* out) {
    long step = (long)count * channels;
    for (int t = 0; t < count; t++) {
        Tile tile = tile_at(images, first + t);
        const REAL* pixels[4][4];
        EACH(a, 4) EACH(b, 4) {
            int row = tile.i + a - 1, column = tile.j + b - 1;
            bool inside = row >= 0 && row < images.height && column >= 0 && column < images.width;
            pixels[a][b] = inside ? x + (tile.pixel + (long)(a - 1) * images.width + b - 1) * channels : nullptr;
        }
        for (int c = 0; c < channels; c += LANES) {
            Vec d[4][4], e[4][4];
            EACH(a, 4) EACH(b, 4) d[a][b] = pixels[a][b] ? load(pixels[a][b] + c) : Vec{};
            EACH(b, 4) {
                e[0][b] = d[0][b] - d[2][b];
                e[1][b] = d[1][b] + d[2][b];
                e[2][b] = d[2][b] - d[1][b];
                e[3][b] = d[1][b] - d[3][b];
            }
            REAL* to = out + (long)t * channels + c;
            EACH(a, 4) {
                store(to + 4 * a * step, e[a][0] - e[a][2]);
                store(to + (4 * a + 1) * step, e[a][1] + e[a][2]);
                store(to + (4 * a + 2) * step, e[a][2] - e[a][1]);
                store(to + (4 * a + 3) * step, e[a][1] - e[a][3]);
            }
        }
    }
}

// Channels k to k + wide of y = A' m A, of tiles from `first`: m [16, count, CHUNK]
static void transform_outputs(const Images& images, const REAL* m, int first, int count, REAL* y, int channels, int k,
                              int wide) {
    long step = (long)count * CHUNK, row = (long)images.width * channels;
    for (int t = 0; t < count; t++) {
        Tile tile = tile_at(images, first + t);
        for (int c = 0; c < wide; c += LANES) {
            const REAL* from = m + (long)t * CHUNK + c;
            REAL* to = y + tile.pixel * channels + k + c;
            Vec e[2][4];
            EACH(b, 4) {
                Vec own[4];
                EACH(a, 4) own[a] = load(from + (4 * a + b) * step);
                e[0][b] = own[0] + own[1] + own[2];
                e[1][b] = own[1] - own[2] - own[3];
            }
            store(to, e[0][0] + e[0][1] + e[0][2]);
            if (tile.right) store(to + channels, e[0][1] - e[0][2] - e[0][3]);
            if (tile.below) store(to + row, e[1][0] + e[1][1] + e[1][2]);
            if (tile.below && tile.right) store(to + row + channels, e[1][1] - e[1][2] - e[1][3]);
        }
    }
}

// Z = A dy A' [16, count, channels], the gradient of V U, of tiles from `first`
static void transform_gradients(const Images& images, const REAL* dy, int channels, int first, int count, REAL* out) {
    long step = (long)count * channels, row = (long)images.width * channels;
    for (int t = 0; t < count; t++) {
        Tile tile = tile_at(images, first + t);
        for (int c = 0; c < channels; c += LANES) {
            const REAL* from = dy + tile.pixel * channels + c;
            Vec left = load(from), right = tile.right ? load(from + channels) : Vec{};
            Vec low_left = tile.below ? load(from + row) : Vec{};
            Vec low_right = tile.below && tile.right ? load(from + row + channels) : Vec{};
            Vec lefts[4] = {left, left + low_left, left - low_left, -low_left};
            Vec rights[4] = {right, right + low_right, right - low_right, -low_right};
            REAL* to = out + (long)t * channels + c;
            EACH(a, 4) {
                store(to + 4 * a * step, lefts[a]);
                store(to + (4 * a + 1) * step, lefts[a] + rights[a]);
                store(to + (4 * a + 2) * step, lefts[a] - rights[a]);
                store(to + (4 * a + 3) * step, -rights[a]);
            }
        }
    }
}

// Sizes of a convolution.
struct Sizes {
    int32_t batch, height, width, channels, filters;
};

static long rounded_up(int columns) { return (columns + CHUNK - 1) / CHUNK * CHUNK; }

// U = G g G' [chunks, 16, inputs, CHUNK] of the weights; `turned`: of the convolution that takes gradients of the outputs
// to those of the inputs, whose filters are turned by 180 degrees
static void transform_filters(const Sizes& sizes, const REAL* weights, bool turned, REAL* out) {
    int inputs = turned ? sizes.filters : sizes.channels, outputs = turned ? sizes.channels : sizes.filters;
    long of_filter = (long)sizes.channels * TAPS;
    long from_input = turned ? of_filter : TAPS, from_output = turned ? TAPS : of_filter, step = (long)inputs * CHUNK;
    Vec half = splat((REAL)0.5);
    for (int k = 0; k < outputs; k += LANES)
        for (int c = 0; c < inputs; c++) {
            REAL taps[TAPS][LANES];
            const REAL* own = weights + k * from_output + c * from_input;
            for (int lane = 0; lane < LANES; lane++)
                EACH(tap, TAPS) taps[turned ? TAPS - 1 - tap : tap][lane] = own[lane * from_output + tap];
            Vec g[3][3], e[4][3];
            EACH(a, 3) EACH(b, 3) g[a][b] = load(taps[3 * a + b]);
            EACH(b, 3) {
                Vec ends = (g[0][b] + g[2][b]) * half, middle = g[1][b] * half;
                e[0][b] = g[0][b];
                e[1][b] = ends + middle;
                e[2][b] = ends - middle;
                e[3][b] = g[2][b];
            }
            REAL* to = out + (long)(k / CHUNK) * POINTS * step + (long)c * CHUNK + k % CHUNK;
            EACH(a, 4) {
                Vec ends = (e[a][0] + e[a][2]) * half, middle = e[a][1] * half;
                store(to + 4 * a * step, e[a][0]);
                store(to + (4 * a + 1) * step, ends + middle);
                store(to + (4 * a + 2) * step, ends - middle);
                store(to + (4 * a + 3) * step, e[a][2]);
            }
        }
}

// Gradient G' u G of the weights from u, that of U [chunks, 16, C, CHUNK]
static void filter_gradients(const Sizes& sizes, const REAL* u, REAL* weights) {
    long step = (long)sizes.channels * CHUNK;
    Vec half = splat((REAL)0.5);
    for (int k = 0; k < sizes.filters; k += LANES)
        for (int c = 0; c < sizes.channels; c++) {
            const REAL* from = u + (long)(k / CHUNK) * POINTS * step + (long)c * CHUNK + k % CHUNK;
            Vec e[4][3];
            EACH(a, 4) {
                Vec own[4];
                EACH(b, 4) own[b] = load(from + (4 * a + b) * step);
                Vec sum = (own[1] + own[2]) * half;
                e[a][0] = own[0] + sum;
                e[a][1] = (own[1] - own[2]) * half;
                e[a][2] = sum + own[3];
            }
            REAL taps[TAPS][LANES];
            EACH(b, 3) {
                Vec sum = (e[1][b] + e[2][b]) * half;
                store(taps[b], e[0][b] + sum);
                store(taps[3 + b], (e[1][b] - e[2][b]) * half);
                store(taps[6 + b], sum + e[3][b]);
            }
            for (int lane = 0; lane < LANES; lane++)
                EACH(tap, TAPS) weights[((long)(k + lane) * sizes.channels + c) * TAPS + tap] = taps[tap][lane];
        }
}

// outputs [B, H, W, K] of inputs [B, H, W, C]; `turned`: the gradient of the inputs from that of the outputs
extern "C" void winograd_convolution(const Sizes* sizes, const REAL* x, const REAL* weights, int turned, REAL* y) {
    int inputs = turned ? sizes->filters : sizes->channels, outputs = turned ? sizes->channels : sizes->filters;
    Images images = {sizes->batch, sizes->height, sizes->width};
    int tiles = images.tiles(), group = std::min(tiles, GROUP);
    auto u = memory(POINTS * inputs * rounded_up(outputs)), v = memory((long)POINTS * group * inputs);
    auto m = memory((long)POINTS * group * CHUNK);
    transform_filters(*sizes, weights, turned, u.get());
    for (int first = 0; first < tiles; first += group) {
        int count = std::min(group, tiles - first);
        transform_inputs(images, x, inputs, first, count, v.get());
        for (int k = 0; k < outputs; k += CHUNK) {
            int wide = std::min(CHUNK, outputs - k);
            for (int p = 0; p < POINTS; p++) {
                Matrix a = {v.get() + (long)p * count * inputs, inputs, 1};
                Matrix b = {u.get() + ((long)k * POINTS + (long)p * CHUNK) * inputs, CHUNK, 1};
                multiply(wide / LANES, count, a, b, inputs, m.get() + (long)p * count * CHUNK, false);
            }
            transform_outputs(images, m.get(), first, count, y, outputs, k, wide);
        }
    }
}

// gradient [K, C, 3, 3] of the weights from that of the outputs, for at least one image
extern "C" void winograd_weights_gradient(const Sizes* sizes, const REAL* x, const REAL* dy, REAL* weights) {
    const int C = sizes->channels, K = sizes->filters;
    Images images = {sizes->batch, sizes->height, sizes->width};
    int tiles = images.tiles(), group = std::min(tiles, GROUP);
    auto v = memory((long)POINTS * group * C), z = memory((long)POINTS * group * K);
    auto u = memory(POINTS * C * rounded_up(K));
    for (int first = 0; first < tiles; first += group) {
        int count = std::min(group, tiles - first);
        transform_inputs(images, x, C, first, count, v.get());
        transform_gradients(images, dy, K, first, count, z.get());
        for (int k = 0; k < K; k += CHUNK)
            for (int p = 0; p < POINTS; p++) {
                Matrix a = {v.get() + (long)p * count * C, 1, C};
                Matrix b = {z.get() + (long)p * count * K + k, K, 1};
                REAL* out = u.get() + ((long)k * POINTS + (long)p * CHUNK) * C;
                multiply(std::min(CHUNK, K - k) / LANES, C, a, b, count, out, first > 0);
            }
    }
    filter_gradients(*sizes, u.get(), weights);
}
