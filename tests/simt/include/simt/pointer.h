// SPDX-License-Identifier: Apache-2.0
// Pointers that know the array they point into. p[i] and *p are places: reading converts to T,
// assigning stores, and both are checked (checks.h). Arithmetic and casts keep the array.
#pragma once

#include <concepts>
#include <type_traits>

#include "simt/checks.h"

namespace lynx::simt {

template <typename T, typename Space>
class Pointer;

template <typename T, typename Space>
class Place {
 public:
  using Value = std::remove_const_t<T>;
  static_assert(std::is_trivially_copyable_v<Value>);

  Place(T* at, const typename Space::Object* object, const Site& site)
      : at_(at), object_(object), site_(site) {}
  Place(const Place&) = default;

  operator Value() const {
    alignas(Value) std::byte bytes[sizeof(Value)];
    Space::template Read<sizeof(Value)>(object_, reinterpret_cast<uintptr_t>(at_), alignof(Value),
                                        bytes, site_);
    Value value;
    std::memcpy(static_cast<void*>(&value), bytes, sizeof(Value));
    return value;
  }
  const Place& operator=(const Value& value) const {
    static_assert(!std::is_const_v<T>, "a store through a pointer to const");
    Space::template Write<sizeof(Value)>(object_, reinterpret_cast<uintptr_t>(at_), alignof(Value),
                                         &value, site_);
    return *this;
  }
  const Place& operator=(const Place& other) const { return *this = Value(other); }
  const Place& operator+=(const Value& v) const { return *this = Value(Value(*this) + v); }
  const Place& operator-=(const Value& v) const { return *this = Value(Value(*this) - v); }
  const Place& operator*=(const Value& v) const { return *this = Value(Value(*this) * v); }
  const Place& operator|=(const Value& v) const { return *this = Value(Value(*this) | v); }
  const Place& operator&=(const Value& v) const { return *this = Value(Value(*this) & v); }
  const Place& operator^=(const Value& v) const { return *this = Value(Value(*this) ^ v); }
  Pointer<T, Space> operator&() const { return Pointer<T, Space>(at_, object_); }

 private:
  T* at_;
  const typename Space::Object* object_;
  Site site_;
};

// An index and the source line that uses it.
struct Index {
  template <std::integral I>
  Index(I i, const Site& site = Site::current()) : i(static_cast<ptrdiff_t>(i)), site(site) {}
  ptrdiff_t i;
  Site site;
};

template <typename T, typename Space>
class Pointer {
 public:
  using Object = typename Space::Object;

  Pointer() = default;
  Pointer(std::nullptr_t) {}
  Pointer(T* raw) requires(Space::kFromRaw) : at_(raw), object_(Space::Find(raw)) {}
  Pointer(T* at, const Object* object) : at_(at), object_(object) {}
  template <typename U>
  requires(std::is_same_v<const U, T>) Pointer(const Pointer<U, Space>& p)
      : at_(p.raw()), object_(p.object()) {}

  Place<T, Space> operator[](const Index& index) const {
    return Place<T, Space>(Moved(index.i), object_, index.site);
  }
  Place<T, Space> operator*() const { return Place<T, Space>(at_, object_, Site::current()); }

  template <std::integral I>
  Pointer operator+(I n) const {
    return Pointer(Moved(static_cast<ptrdiff_t>(n)), object_);
  }
  template <std::integral I>
  Pointer operator-(I n) const {
    return Pointer(Moved(-static_cast<ptrdiff_t>(n)), object_);
  }
  template <std::integral I>
  Pointer& operator+=(I n) {
    return *this = *this + n;
  }
  template <std::integral I>
  Pointer& operator-=(I n) {
    return *this = *this - n;
  }
  Pointer& operator++() { return *this += 1; }
  ptrdiff_t operator-(const Pointer& other) const { return at_ - other.at_; }
  bool operator==(const Pointer& other) const { return at_ == other.at_; }
  bool operator==(std::nullptr_t) const { return at_ == nullptr; }
  auto operator<=>(const Pointer& other) const { return at_ <=> other.at_; }
  explicit operator bool() const { return at_ != nullptr; }

  T* raw() const { return at_; }
  const Object* object() const { return object_; }

 private:
  // As numbers: out-of-bounds pointers are made freely and reported when used.
  T* Moved(ptrdiff_t n) const {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(at_) +
                                static_cast<uintptr_t>(n) * sizeof(T));
  }

  T* at_ = nullptr;
  const Object* object_ = nullptr;
};

}  // namespace lynx::simt
