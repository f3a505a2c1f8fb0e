// Result<T>: the expected outcome of something that may fail, or an Error with a status of the ABI and words for people.
// Exceptions are for faults of the program (std::bad_alloc, logic errors), never for a request that breaks a rule.
#pragma once

#include <kalos/abi.h>

#include <string>
#include <utility>
#include <variant>

namespace kalos {

struct Error {
  kalos_status status = KALOS_STATUS_INTERNAL;
  std::string words;
};

inline Error invalid(std::string words) { return {KALOS_STATUS_INVALID_REQUEST, std::move(words)}; }

struct Unit {};

template <class T = Unit>
class [[nodiscard]] Result {
 public:
  Result(T value) : outcome_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : outcome_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return outcome_.index() == 0; }
  T& value() { return std::get<0>(outcome_); }
  const T& value() const { return std::get<0>(outcome_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Error& error() { return std::get<1>(outcome_); }
  const Error& error() const { return std::get<1>(outcome_); }

 private:
  std::variant<T, Error> outcome_;
};

}  // namespace kalos
