# SPDX-License-Identifier: Apache-2.0
# How every file is compiled, and how one file gets the instructions of its tier.

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
# Without any optimisation gcc's vector intrinsics are macros, which kernels with -Werror do not get through.
if(NOT CMAKE_C_FLAGS_DEBUG MATCHES "-O")
  set(CMAKE_C_FLAGS_DEBUG "${CMAKE_C_FLAGS_DEBUG} -O1")
endif()

# Contraction would make the rounding of a kernel depend on the compiler; fma is spelled out instead.
add_compile_options(-ffp-contract=off -fno-math-errno
                    -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes)
if(EJK_WERROR)
  add_compile_options(-Werror)
endif()
if(EJK_SANITIZE)
  add_compile_options(-fsanitize=${EJK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${EJK_SANITIZE})
endif()

# RPATH rather than RUNPATH: it holds for the libraries of libraries too.
if(EJK_PORTABLE)
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
  add_link_options(LINKER:--disable-new-dtags)
endif()

# Exactly the flags of each tier.
set(EJK_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(EJK_ISA_FLAGS_avx512 ${EJK_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd
                         -mprefer-vector-width=512)
set(EJK_ISA_FLAGS_avx512_vnni ${EJK_ISA_FLAGS_avx512} -mavx512vnni)
set(EJK_ISA_FLAGS_avx512_bf16 ${EJK_ISA_FLAGS_avx512} -mavx512bf16)
set(EJK_ISA_FLAGS_amx ${EJK_ISA_FLAGS_avx512_bf16} -mavx512vbmi -mamx-tile -mamx-bf16
                      -mamx-int8)
set(EJK_ISA_FLAGS_neon)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(EJK_ISAS avx2 avx512 avx512_vnni avx512_bf16 amx)
  set(EJK_ISA_HEADER immintrin.h)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(EJK_ISAS neon)
  set(EJK_ISA_HEADER arm_neon.h)
endif()

# Headers of intrinsics are precompiled for each tier: gcc 12 takes 0.4 s for immintrin.h. Not beside checkers, as clang
# cannot read those of gcc, and what a file does not include is to be found; nor beside a cache of objects, which mostly
# knows neither.
if(CMAKE_C_COMPILER_LAUNCHER OR EJK_CHECKERS)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()
