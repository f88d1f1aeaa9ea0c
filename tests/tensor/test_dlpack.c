/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack in both forms: what comes in, what goes out, and who frees what. */
#include "support/expect.h"

#include <dlpack/dlpack.h>
#include <ejkernel/tensor.h>
#include <stdlib.h>

static float storage[24];

static DLTensor tensor_of(int64_t *shape, int64_t *strides, int32_t rank) {
    return (DLTensor){.data = storage,
                      .device = {kDLCPU, 0},
                      .ndim = rank,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = shape,
                      .strides = strides};
}

static ejk_status import(DLTensor from, ejk_tensor *out) {
    DLManagedTensor managed = {.dl_tensor = from};
    DLManagedTensorVersioned versioned = {.version = {1, 0}, .dl_tensor = from};
    ejk_tensor first = {.rank = -7}, second = first;
    ejk_status status = ejk_tensor_from_dlpack(&managed, &first);
    assert_int_equal(ejk_tensor_from_dlpack_versioned(&versioned, &second), status);
    assert_memory_equal(&first, &second, sizeof first);
    if (status == EJK_OK)
        *out = first;
    else
        assert_int_equal(first.rank, -7);
    return status;
}

static void views_come_in(void **state) {
    (void)state;
    int64_t shape[] = {2, 3}, strides[] = {1, 2};
    ejk_tensor tensor = {0};
    EXPECT_OK(import(tensor_of(shape, strides, 2), &tensor));
    assert_ptr_equal(tensor.data, storage);
    assert_int_equal(tensor.strides[1], 2);
    EXPECT_OK(import(tensor_of(shape, NULL, 2), &tensor));
    assert_int_equal(tensor.strides[0], 3);
    EXPECT_OK(import(tensor_of(NULL, NULL, 0), &tensor));
    assert_int_equal(ejk_tensor_count(&tensor), 1);
    DLTensor shifted = tensor_of(shape, NULL, 2);
    shifted.byte_offset = 12;
    EXPECT_OK(import(shifted, &tensor));
    assert_ptr_equal(tensor.data, storage + 3);
    shifted.device = (DLDevice){kDLCUDA, 3};
    EXPECT_OK(import(shifted, &tensor));
    assert_int_equal(tensor.device_type, EJK_DEVICE_CUDA);
    assert_int_equal(tensor.device_index, 3);
    shifted.device = (DLDevice){kDLCUDAHost, 3};
    EXPECT_OK(import(shifted, &tensor));
    assert_int_equal(tensor.device_type, EJK_DEVICE_CPU);
    assert_int_equal(tensor.device_index, 0);
    DLTensor empty = tensor_of((int64_t[]){0, 3}, NULL, 2);
    empty.data = NULL;
    empty.byte_offset = 64;
    EXPECT_OK(import(empty, &tensor));
    assert_null(tensor.data);
}

static void hostile_tensors_are_refused(void **state) {
    (void)state;
    int64_t shape[] = {2, 3}, strides[] = {INT64_MAX, 1};
    ejk_tensor tensor = {0};
    DLTensor from = tensor_of(shape, NULL, 9);
    EXPECT_FAIL(INVALID_SHAPE, "rank 9", import(from, &tensor));
    from.ndim = INT32_MIN;
    EXPECT_FAIL(INVALID_SHAPE, "rank", import(from, &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "shape", import(tensor_of(NULL, NULL, 1), &tensor));
    EXPECT_FAIL(OVERFLOW, "spans", import(tensor_of(shape, strides, 2), &tensor));
    EXPECT_FAIL(INVALID_SHAPE, "-1", import(tensor_of((int64_t[]){-1}, NULL, 1), &tensor));
    from = tensor_of(shape, NULL, 2);
    from.byte_offset = UINT64_MAX;
    EXPECT_FAIL(OVERFLOW, "byte_offset", import(from, &tensor));
    from = tensor_of(shape, NULL, 2);
    from.data = NULL;
    from.byte_offset = 64;
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", import(from, &tensor));
    from = tensor_of(shape, NULL, 2);
    from.dtype.lanes = 4;
    EXPECT_FAIL(INVALID_DTYPE, "lanes", import(from, &tensor));
    from.dtype = (DLDataType){kDLUInt, 16, 1};
    EXPECT_FAIL(INVALID_DTYPE, "16 bits", import(from, &tensor));
    from.dtype = (DLDataType){kDLFloat8_e4m3fnuz, 8, 1};
    EXPECT_FAIL(INVALID_DTYPE, "code", import(from, &tensor));
    from = tensor_of(shape, NULL, 2);
    from.device.device_type = kDLROCM;
    EXPECT_FAIL(UNAVAILABLE, "device type 10", import(from, &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "managed", ejk_tensor_from_dlpack(NULL, &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "managed", ejk_tensor_from_dlpack_versioned(NULL, &tensor));
    DLManagedTensorVersioned future = {.version = {2, 0}};
    EXPECT_FAIL(UNAVAILABLE, "version 2.0", ejk_tensor_from_dlpack_versioned(&future, &tensor));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_tensor_from_dlpack_versioned(&future, NULL));
}

static void count_release(void *user) {
    ++*(int *)user;
}

static void views_go_out_and_come_back(void **state) {
    (void)state;
    for (ejk_dtype dtype = EJK_DTYPE_F64; dtype <= EJK_DTYPE_U32; dtype++) {
        ejk_tensor tensor = ejk_tensor_3d(storage, dtype, 2, 3, 2), back = {0};
        tensor = ejk_tensor_transpose(tensor, 0, 2);
        int released = 0;
        DLManagedTensor *managed = NULL;
        EXPECT_OK(ejk_tensor_to_dlpack(&tensor, count_release, &released, &managed));
        EXPECT_OK(ejk_tensor_from_dlpack(managed, &back));
        assert_memory_equal(&back, &tensor, sizeof back);
        assert_int_equal(managed->dl_tensor.dtype.bits, 8 * ejk_dtype_size(dtype));
        managed->deleter(managed);
        assert_int_equal(released, 1);

        DLManagedTensorVersioned *versioned = NULL;
        EXPECT_OK(
            ejk_tensor_to_dlpack_versioned(&tensor, true, count_release, &released, &versioned));
        EXPECT_OK(ejk_tensor_from_dlpack_versioned(versioned, &back));
        assert_memory_equal(&back, &tensor, sizeof back);
        assert_int_equal(versioned->version.major, 1);
        assert_int_equal(versioned->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
        versioned->deleter(versioned);
        assert_int_equal(released, 2);
    }
}

static void types_and_devices_have_dlpacks_numbers(void **state) {
    (void)state;
    DLManagedTensor *managed = NULL;
    ejk_tensor tensor = ejk_tensor_1d(storage, EJK_DTYPE_BF16, 2);
    EXPECT_OK(ejk_tensor_to_dlpack(&tensor, NULL, NULL, &managed));
    assert_int_equal(managed->dl_tensor.dtype.code, kDLBfloat);
    assert_int_equal(managed->dl_tensor.device.device_type, kDLCPU);
    managed->deleter(managed);
    static const struct {
        ejk_dtype dtype;
        int code;
    } floats[] = {{EJK_DTYPE_F8E4M3, kDLFloat8_e4m3fn},
                  {EJK_DTYPE_F8E5M2, kDLFloat8_e5m2},
                  {EJK_DTYPE_F8E8M0, kDLFloat8_e8m0fnu}};
    for (int i = 0; i < 3; i++) {
        tensor = ejk_tensor_1d(storage, floats[i].dtype, 2);
        EXPECT_OK(ejk_tensor_to_dlpack(&tensor, NULL, NULL, &managed));
        assert_int_equal(managed->dl_tensor.dtype.code, floats[i].code);
        managed->deleter(managed);
    }
    tensor = ejk_tensor_1d(storage, EJK_DTYPE_BOOL, 2);
    tensor.device_type = EJK_DEVICE_CUDA;
    tensor.device_index = 1;
    DLManagedTensorVersioned *versioned = NULL;
    EXPECT_OK(ejk_tensor_to_dlpack_versioned(&tensor, false, NULL, NULL, &versioned));
    assert_int_equal(versioned->dl_tensor.dtype.code, kDLBool);
    assert_int_equal(versioned->dl_tensor.device.device_type, kDLCUDA);
    assert_int_equal(versioned->dl_tensor.device.device_id, 1);
    assert_int_equal(versioned->flags, 0);
    versioned->deleter(versioned);
}

static void a_failed_export_takes_nothing_over(void **state) {
    (void)state;
    int released = 0;
    DLManagedTensor *managed = NULL;
    DLManagedTensorVersioned *versioned = NULL;
    ejk_tensor tensor = ejk_tensor_1d(NULL, EJK_DTYPE_F32, 2);
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL",
                ejk_tensor_to_dlpack(&tensor, count_release, &released, &managed));
    EXPECT_FAIL(INVALID_ARGUMENT, "tensor is NULL",
                ejk_tensor_to_dlpack_versioned(NULL, false, count_release, &released, &versioned));
    tensor.data = storage;
    EXPECT_FAIL(INVALID_ARGUMENT, "out",
                ejk_tensor_to_dlpack(&tensor, count_release, &released, NULL));
    tensor.device_type = 77;
    EXPECT_FAIL(UNAVAILABLE, "77",
                ejk_tensor_to_dlpack(&tensor, count_release, &released, &managed));
    assert_int_equal(released, 0);
    assert_null(managed);
    assert_null(versioned);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_come_in),
        cmocka_unit_test(hostile_tensors_are_refused),
        cmocka_unit_test(views_go_out_and_come_back),
        cmocka_unit_test(types_and_devices_have_dlpacks_numbers),
        cmocka_unit_test(a_failed_export_takes_nothing_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
