/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only sm_90a has: mbarriers that count bytes, TMA, and wgmma. Shared memory is addressed as shared_address()
 * gives it. A warpgroup is four warps, the first a multiple of 4.
 *
 * An operand tile is rows of 128 bytes, 64 elements, under the 128-byte swizzle, at a multiple of 1024 bytes; wider
 * rows are such tiles one after the other. ptxas serialises wgmma, and says so by C7510 to C7520, if one is in
 * flight over a loop's back edge, if a branch decides whether it is issued, or if registers run out.
 */
#ifndef EJKI_CUDA_HOPPER_CUH
#define EJKI_CUDA_HOPPER_CUH

#include "kernels/cuda/mma.cuh"

typedef ejki_cuda_map tensor_map;

/* ---- mbarriers -------------------------------------------------------------------------------------- */

DEVICE void mbarrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
/* After the last mbarrier_init, before __syncthreads(). */
DEVICE void mbarrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}
DEVICE void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and adds bytes of TMA loads that the phase waits for. */
DEVICE void mbarrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Only the bytes: somebody has yet to arrive. */
DEVICE void mbarrier_add_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Waits for the phase of this parity; the one before the first counts as complete, with parity 1. */
DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@over bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Stage and parity in a ring of `size` stages, each with a full and an empty mbarrier. */
template <int size> struct pipeline_state {
    u32 stage, parity;
    DEVICE_MEMBER void next() {
        if (++stage == size) stage = 0, parity ^= 1;
    }
    /* So many stages on, at most `size`. */
    DEVICE_MEMBER void skip(u32 count) {
        stage += count;
        if (stage >= size) stage -= size, parity ^= 1;
    }
};

/* ---- Clusters --------------------------------------------------------------------------------------- */

DEVICE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* All threads of all CTAs of the cluster. */
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The address of a place in the memory of a CTA of the cluster; an mbarrier, and four floats that lie there. */
DEVICE u32 address_at(u32 address, u32 rank) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
DEVICE void mbarrier_arrive_at(u32 remote) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
DEVICE float4 load_four_at(u32 remote) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(remote)
                 : "memory");
    return x;
}

/* True for one lane of a warp that has met; the compiler knows that it is one, and asks each copy for one lane only. */
DEVICE bool is_elected() {
    u32 elected;
    asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.b32 %0, 1, 0, one;\n}\n" : "=r"(elected));
    return elected;
}

/* ---- TMA -------------------------------------------------------------------------------------------- */

/* Makes this thread's generic stores to shared memory visible to wgmma and TMA, before a barrier. */
DEVICE void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE void prefetch_tensor_map(const tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

DEVICE void tma_load(u32 to, const tensor_map *map, u32 barrier, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}
/* With once_policy(). */
DEVICE void tma_load_once(u32 to, const tensor_map *map, u32 barrier, u64 policy, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
                 : "memory");
}
/* To the same place in each CTA of the cluster whose bit is set, with its mbarrier there. */
DEVICE void tma_load_once_to_all(u32 to, const tensor_map *map, u32 barrier, u16 ranks, u64 policy, int c0, int c1,
                                 int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3, %8;" ::"r"(to),
                 "l"(map), "r"(barrier), "h"(ranks), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
                 : "memory");
}
DEVICE void tma_store(const tensor_map *map, u32 from, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}
/* Bulk copies: bytes and both addresses are multiples of 16. */
DEVICE void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
DEVICE void bulk_store(void *to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
/* Adds floats atomically, in no order. */
DEVICE void bulk_add(float *to, u32 from, u32 bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}
DEVICE void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until all but `left` of this thread's bulk groups have read shared memory, or are complete. */
template <int left> DEVICE void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
}
template <int left> DEVICE void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(left) : "memory");
}

/* ---- Registers -------------------------------------------------------------------------------------- */

/* Of each thread of this warpgroup from now on; all warpgroups together stay within the launch's registers. */
template <int count> DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/* Four 8 x 8 matrices of 16-bit elements, rows at the lanes' addresses. */
DEVICE void stmatrix_x4(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
DEVICE void stmatrix_x4_trans(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* ---- wgmma ------------------------------------------------------------------------------------------ */

/* Matrix descriptor. `wide`: bytes from 64 columns to the next 64, of an operand whose rows are those of K. */
DEVICE u64 smem_descriptor(u32 address, u32 wide) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(wide >> 4) << 16 | (u64)(1024 >> 4) << 32 |
           1ull << 62;
}
/* The descriptor so many bytes on. */
DEVICE u64 advance_descriptor(u64 operand, u32 bytes) {
    return operand + (bytes >> 4);
}

DEVICE void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int left> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
/*
 * Makes `x`, which is never below `least`, available before what follows is issued, such as a wait: ptxas does not
 * move a wait ahead of a store, even a predicated one. `least` has to be a kernel argument, or ptxas would drop the
 * store.
 */
DEVICE void finished(float x, float least, u32 anywhere) {
    asm volatile("{\n"
                 ".reg .pred below;\n"
                 "setp.lt.f32 below, %0, %1;\n"
                 "@below st.shared.f32 [%2], %0;\n"
                 "}\n" ::"f"(x),
                 "f"(least), "r"(anywhere)
                 : "memory");
}
/* Pins accumulators and operands in their registers, before wgmma is issued and after it is waited for. */
template <int n> DEVICE void hold(float (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int n> DEVICE void hold(u32 (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+r"(x[i])::"memory");
}

#if ELEMENT == BF16
#define WGMMA_TYPES ".f32.bf16.bf16"
#else
#define WGMMA_TYPES ".f32.f16.f16"
#endif

/* Eight operands of an asm statement, and their constraints. */
#define NAMES_0  "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_1  NAMES_0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_2  NAMES_1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_3  NAMES_2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_4  NAMES_3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_5  NAMES_4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_6  NAMES_5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_7  NAMES_6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_8  NAMES_7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_9  NAMES_8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_10 NAMES_9 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_11 NAMES_10 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_12 NAMES_11 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_13 NAMES_12 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_14 NAMES_13 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define NAMES_15 NAMES_14 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define EIGHT(i)                                                                                   \
    "+f"(c[8 * i]), "+f"(c[8 * i + 1]), "+f"(c[8 * i + 2]), "+f"(c[8 * i + 3]),                    \
        "+f"(c[8 * i + 4]), "+f"(c[8 * i + 5]), "+f"(c[8 * i + 6]), "+f"(c[8 * i + 7])
#define SUMS_0  EIGHT(0)
#define SUMS_1  SUMS_0, EIGHT(1)
#define SUMS_2  SUMS_1, EIGHT(2)
#define SUMS_3  SUMS_2, EIGHT(3)
#define SUMS_4  SUMS_3, EIGHT(4)
#define SUMS_5  SUMS_4, EIGHT(5)
#define SUMS_6  SUMS_5, EIGHT(6)
#define SUMS_7  SUMS_6, EIGHT(7)
#define SUMS_8  SUMS_7, EIGHT(8)
#define SUMS_9  SUMS_8, EIGHT(9)
#define SUMS_10 SUMS_9, EIGHT(10)
#define SUMS_11 SUMS_10, EIGHT(11)
#define SUMS_12 SUMS_11, EIGHT(12)
#define SUMS_13 SUMS_12, EIGHT(13)
#define SUMS_14 SUMS_13, EIGHT(14)
#define SUMS_15 SUMS_14, EIGHT(15)

/*
 * c += a b, or c = a b if `add` is 0, for 64 rows, `columns` columns and 16 of the contracted axis. A lane of warp w
 * has of the rows 16 w + lane / 4 (c[4 n], c[4 n + 1]) and that + 8 (c[4 n + 2], c[4 n + 3]) columns
 * 8 n + 2 * (lane % 4) and the next. turn_a, turn_b: 1 if the operand's rows in memory are those of the contracted
 * axis. `left`, the left operand in registers, is as sums of 16 columns packed in order.
 */
template <int columns> struct wgmma;

#define WGMMA(columns, last, p0, p1, p2, p3, p4, p5, p6)                                        \
    template <> struct wgmma<columns> {                                                         \
        template <int turn_a, int turn_b>                                                          \
        DEVICE_MEMBER static void ss(float (&c)[columns / 2], u64 a, u64 b, int add) {         \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " p2                                \
                         ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k16" WGMMA_TYPES    \
                         " {" NAMES_##last "}, " p0 ", " p1 ", add, 1, 1, " p3 ", " p4 ";\n}\n"    \
                         : SUMS_##last                                                             \
                         : "l"(a), "l"(b), "r"(add), "n"(turn_a), "n"(turn_b));                    \
        }                                                                                          \
        template <int turn_b>                                                                      \
        DEVICE_MEMBER static void rs(float (&c)[columns / 2], const u32 *left, u64 b, int add) { \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " p5                                \
                         ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k16" WGMMA_TYPES    \
                         " {" NAMES_##last "}, {" p0 ", " p1 ", " p2 ", " p3 "}, " p4              \
                                           ", add, 1, 1, " p6 ";\n}\n"                             \
                         : SUMS_##last                                                             \
                         : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(b),         \
                           "r"(add), "n"(turn_b));                                                 \
        }                                                                                          \
    }
WGMMA(16, 0, "%8", "%9", "%10", "%11", "%12", "%13", "%14");
WGMMA(32, 1, "%16", "%17", "%18", "%19", "%20", "%21", "%22");
WGMMA(48, 2, "%24", "%25", "%26", "%27", "%28", "%29", "%30");
WGMMA(64, 3, "%32", "%33", "%34", "%35", "%36", "%37", "%38");
WGMMA(80, 4, "%40", "%41", "%42", "%43", "%44", "%45", "%46");
WGMMA(96, 5, "%48", "%49", "%50", "%51", "%52", "%53", "%54");
WGMMA(112, 6, "%56", "%57", "%58", "%59", "%60", "%61", "%62");
WGMMA(128, 7, "%64", "%65", "%66", "%67", "%68", "%69", "%70");
WGMMA(144, 8, "%72", "%73", "%74", "%75", "%76", "%77", "%78");
WGMMA(160, 9, "%80", "%81", "%82", "%83", "%84", "%85", "%86");
WGMMA(176, 10, "%88", "%89", "%90", "%91", "%92", "%93", "%94");
WGMMA(192, 11, "%96", "%97", "%98", "%99", "%100", "%101", "%102");
WGMMA(208, 12, "%104", "%105", "%106", "%107", "%108", "%109", "%110");
WGMMA(224, 13, "%112", "%113", "%114", "%115", "%116", "%117", "%118");
WGMMA(240, 14, "%120", "%121", "%122", "%123", "%124", "%125", "%126");
WGMMA(256, 15, "%128", "%129", "%130", "%131", "%132", "%133", "%134");

#endif
