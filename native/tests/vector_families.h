// Vectors that searches over codes find hard, each family for a reason; all seeded.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace families {

using Vector = std::vector<float>;
using Random = std::mt19937_64;

inline Vector gaussian(Random& random, size_t d, double scale = 1) {
  std::normal_distribution<double> normal;
  Vector vector(d);
  for (float& x : vector) x = float(normal(random) * scale);
  return vector;
}

inline Vector plus(Vector a, const Vector& b, float factor = 1) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
  return a;
}

struct Family {
  std::string name;
  // The n vectors of it that one call makes belong together.
  std::function<std::vector<Vector>(Random&, size_t n, size_t d)> make;
};

inline std::vector<Vector> each(size_t n, const std::function<Vector(size_t)>& one) {
  std::vector<Vector> all;
  for (size_t i = 0; i < n; ++i) all.push_back(one(i));
  return all;
}

inline std::vector<Family> all() {
  return {
      {"random", [](Random& r, size_t n, size_t d) { return each(n, [&](size_t) { return gaussian(r, d); }); }},
      {"clustered",
       [](Random& r, size_t n, size_t d) {
         auto centres = each(5, [&](size_t) { return gaussian(r, d); });
         return each(n, [&](size_t i) { return plus(gaussian(r, d, 0.05), centres[i % 5]); });
       }},
      {"duplicated",
       [](Random& r, size_t n, size_t d) {
         auto few = each(3, [&](size_t) { return gaussian(r, d); });
         return each(n, [&](size_t i) { return few[i % 3]; });
       }},
      {"nearly equal, a last bit apart",
       [](Random& r, size_t n, size_t d) {
         Vector base = gaussian(r, d);
         return each(n, [&](size_t) {
           Vector vector = base;
           size_t i = r() % d;
           vector[i] = std::nextafter(vector[i], r() % 2 ? 1e9f : -1e9f);
           return vector;
         });
       }},
      {"tiny", [](Random& r, size_t n, size_t d) { return each(n, [&](size_t) { return gaussian(r, d, 1e-30); }); }},
      {"huge", [](Random& r, size_t n, size_t d) { return each(n, [&](size_t) { return gaussian(r, d, 1e37); }); }},
      {"denormal",
       [](Random& r, size_t n, size_t d) { return each(n, [&](size_t) { return gaussian(r, d, 1e-41); }); }},
      {"zeros among others",
       [](Random& r, size_t n, size_t d) {
         return each(n, [&](size_t i) { return i % 4 ? gaussian(r, d) : Vector(d, i % 8 ? 0.0f : -0.0f); });
       }},
      {"all zero", [](Random&, size_t n, size_t d) { return each(n, [&](size_t) { return Vector(d); }); }},
      {"one outlier dimension",
       [](Random& r, size_t n, size_t d) {
         return each(n, [&](size_t) {
           Vector vector = gaussian(r, d);
           vector[d / 3] = 40 + vector[d / 3];
           vector[d / 2] *= 300;
           return vector;
         });
       }},
      {"a common direction",
       [](Random& r, size_t n, size_t d) {
         Vector common = gaussian(r, d, 3);
         return each(n, [&](size_t) { return plus(gaussian(r, d, 0.3), common); });
       }},
      {"far from the origin",
       [](Random& r, size_t n, size_t d) {
         Vector far(d, 1000.0f);
         return each(n, [&](size_t) { return plus(gaussian(r, d), far); });
       }},
      {"lengths over many orders of magnitude",
       [](Random& r, size_t n, size_t d) {
         return each(n, [&](size_t) { return gaussian(r, d, std::exp2(double(r() % 200) - 100)); });
       }},
      {"all signs equal, all at the end of the range",
       [](Random& r, size_t n, size_t d) {
         return each(n, [&](size_t) { return Vector(d, r() % 2 ? 1.0f : 0.999f); });
       }},
      {"one component each",
       [](Random& r, size_t n, size_t d) {
         return each(n, [&](size_t) {
           Vector vector(d);
           vector[r() % d] = r() % 2 ? 1.0f : -1.0f;
           return vector;
         });
       }},
      {"ever better",
       [](Random& r, size_t n, size_t d) {
         Vector goal = gaussian(r, d);
         return each(n, [&](size_t i) { return plus(gaussian(r, d, 1 - double(i) / double(n)), goal); });
       }},
      {"small integers, many ties",
       [](Random& r, size_t n, size_t d) {
         return each(n, [&](size_t) {
           Vector vector(d);
           for (float& x : vector) x = float(int(r() % 3)) - 1;
           return vector;
         });
       }},
      {"another distribution after the first rows",
       [](Random& r, size_t n, size_t d) {
         Vector away(d, 5.0f);
         return each(n, [&](size_t i) { return i < n / 3 ? gaussian(r, d) : plus(gaussian(r, d, 20), away); });
       }},
  };
}

}  // namespace families
