/* cuDNN: recurrent networks. The weights of all layers lie in one space, which PyTorch allocates:
 * first the matrices, layer by layer and gate by gate, then the biases in the same order. */
#include <stdbool.h>
#include <string.h>

#include "cudnn_abi.h"

struct rnn {
    int cell;
    int bias;
    int bidirectional;
    int data_type;
    int input;
    int hidden;
    int projection;
    int layers;
};

/* cudnnRNNMode_t and cudnnRNNBiasMode_t, cudnn_adv.h */
enum { CELL_LSTM = 2, CELL_GRU = 3, NO_BIAS = 0 };

EXPORT int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int, int cell, int bias, int direction, int,
                                    int data_type, int, int, int32_t input, int32_t hidden,
                                    int32_t projection, int32_t layers, void *, uint32_t)
{
    *rnn = (struct rnn){ cell, bias, direction, data_type, input, hidden, projection, layers };
    return STATUS_SUCCESS;
}

/* One layer in one direction; cuDNN calls it a pseudo layer. */
static int pass_count(const struct rnn *rnn)
{
    return rnn->layers * (rnn->bidirectional ? 2 : 1);
}

static int pass_input(const struct rnn *rnn, int pass)
{
    int directions = rnn->bidirectional ? 2 : 1;
    return pass / directions == 0 ? rnn->input : rnn->projection * directions;
}

static int gate_count(const struct rnn *rnn)
{
    return rnn->cell == CELL_LSTM ? 4 : rnn->cell == CELL_GRU ? 3 : 1;
}

static size_t element_bytes(const struct rnn *rnn)
{
    switch ((enum data_type)rnn->data_type) {
    case DATA_DOUBLE: return 8;
    case DATA_HALF:
    case DATA_BFLOAT16: return 2;
    }
    return 4;
}

static bool has_projection(const struct rnn *rnn)
{
    return rnn->projection != rnn->hidden;
}

/* The matrices of a pass: one per gate for the input, one per gate for the state, and one for the
 * projection. */
static int matrix_count(const struct rnn *rnn)
{
    return 2 * gate_count(rnn) + has_projection(rnn);
}

static void matrix_shape(const struct rnn *rnn, int pass, int matrix, int *rows, int *columns)
{
    int gates = gate_count(rnn);
    if (matrix == 2 * gates) {
        *rows = rnn->projection;
        *columns = rnn->hidden;
        return;
    }
    *rows = rnn->hidden;
    *columns = matrix < gates ? pass_input(rnn, pass) : rnn->projection;
}

/* Elements before a matrix; before all biases where `pass` is past the last. */
static size_t matrix_offset(const struct rnn *rnn, int pass, int matrix)
{
    size_t offset = 0;
    for (int p = 0; p <= pass && p < pass_count(rnn); p++) {
        int last = p == pass ? matrix : matrix_count(rnn);
        for (int m = 0; m < last; m++) {
            int rows, columns;
            matrix_shape(rnn, p, m, &rows, &columns);
            offset += (size_t)rows * (size_t)columns;
        }
    }
    return offset;
}

static size_t bias_offset(const struct rnn *rnn, int pass, int bias)
{
    int before = pass * 2 * gate_count(rnn) + bias;
    return matrix_offset(rnn, pass_count(rnn), 0) + (size_t)before * (size_t)rnn->hidden;
}

EXPORT int cudnnGetRNNWeightSpaceSize(void *, const struct rnn *rnn, size_t *size)
{
    size_t elements = rnn->bias == NO_BIAS ? matrix_offset(rnn, pass_count(rnn), 0)
                                           : bias_offset(rnn, pass_count(rnn), 0);
    *size = elements * element_bytes(rnn);
    return STATUS_SUCCESS;
}

static void describe(struct tensor *out, int data_type, int rows, int columns)
{
    *out = (struct tensor){
        .data_type = data_type,
        .dimension_count = 3,
        .dimensions = { 1, rows, columns },
        .strides = { rows * columns, columns, 1 },
    };
}

EXPORT int cudnnGetRNNWeightParams(void *, const struct rnn *rnn, int32_t pass, size_t,
                                   const char *space, int32_t matrix, struct tensor *matrix_out,
                                   const char **matrix_address, struct tensor *bias_out,
                                   const char **bias_address)
{
    bool has_matrix = matrix < matrix_count(rnn);
    bool has_bias = rnn->bias != NO_BIAS && matrix < 2 * gate_count(rnn);
    int rows = 0, columns = 0;
    if (has_matrix)
        matrix_shape(rnn, pass, matrix, &rows, &columns);

    if (matrix_out) {
        memset(matrix_out, 0, sizeof *matrix_out);
        if (has_matrix)
            describe(matrix_out, rnn->data_type, rows, columns);
    }
    if (matrix_address)
        *matrix_address =
            has_matrix ? space + matrix_offset(rnn, pass, matrix) * element_bytes(rnn) : NULL;
    if (bias_out) {
        memset(bias_out, 0, sizeof *bias_out);
        if (has_bias)
            describe(bias_out, rnn->data_type, rnn->hidden, 1);
    }
    if (bias_address)
        *bias_address =
            has_bias ? space + bias_offset(rnn, pass, matrix) * element_bytes(rnn) : NULL;
    return STATUS_SUCCESS;
}

EXPORT int cudnnGetRNNTempSpaceSizes(void *, const struct rnn *, int, void *, size_t *work,
                                     size_t *reserve)
{
    if (work)
        *work = WORKSPACE_BYTES;
    if (reserve)
        *reserve = WORKSPACE_BYTES;
    return STATUS_SUCCESS;
}
