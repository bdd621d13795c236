// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/device.cuh and mma.cuh for the emulated device: the same names, checked.
#pragma once

#include <bit>
#include <cmath>
#include <utility>

#include "lynx/types.h"
#include "simt/pointer.h"
#include "simt/threads.h"

namespace lynx::cuda {

template <typename T>
using Global = simt::Pointer<T, simt::GlobalSpace>;
template <typename T>
using Shared = simt::Pointer<T, simt::SharedSpace>;

template <typename U, typename T, typename Space>
simt::Pointer<U, Space> Cast(const simt::Pointer<T, Space>& p) {
  return simt::Pointer<U, Space>(reinterpret_cast<U*>(p.raw()), p.object());
}

#define LYNX_SHARED(T, name, count)    \
  const ::lynx::cuda::Shared<T> name = \
      ::lynx::simt::DeclareSharedAs<T>(#name, count, ::lynx::simt::Site::current())
#define LYNX_DYNAMIC_SHARED(name) \
  const ::lynx::cuda::Shared<std::byte> name = ::lynx::simt::DynamicSharedBytes()

inline void CopyAsync16(Shared<std::byte> to, Global<const std::byte> from,
                        const simt::Site& site = simt::Site::current()) {
  simt::StartCopy(to.object(), to.raw(), from.object(), reinterpret_cast<uintptr_t>(from.raw()),
                  site);
}
inline void CopyCommit() { simt::CommitCopies(); }
template <int kPending>
void CopyWait(const simt::Site& site = simt::Site::current()) {
  simt::FinishCopies(kPending, site);
}

}  // namespace lynx::cuda

namespace lynx::simt {

template <typename T>
cuda::Shared<T> DeclareSharedAs(const char* name, size_t count, const Site& site) {
  const SharedArray* array = DeclareShared(name, count * sizeof(T), site);
  return cuda::Shared<T>(reinterpret_cast<T*>(array->base), array);
}
inline cuda::Shared<std::byte> DynamicSharedBytes() {
  const SharedArray* array = DynamicShared();
  return cuda::Shared<std::byte>(array->base, array);
}

}  // namespace lynx::simt

#include "simt/intrinsics.h"
#include "simt/tensor_core.h"
