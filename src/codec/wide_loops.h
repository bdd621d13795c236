// SPDX-License-Identifier: Apache-2.0
// LYNX_WIDE_LOOPS: the compiler makes AVX-512 and AVX2 versions of the function's loops too, and
// the loader picks one. The bits are the same, because nothing is contracted or reassociated. The
// sanitizers do not run early enough for the loader's choice.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LYNX_WIDE_LOOPS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LYNX_WIDE_LOOPS
#endif
