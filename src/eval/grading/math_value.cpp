// A recursive-descent parser into a normal form: {radicand, symbol powers} -> rational coefficient.
#include "eval/grading/math_value.h"

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace cbench {
namespace {

using std::string_view;
__extension__ typedef __int128 Wide;

struct Unreadable : std::runtime_error {
  Unreadable() : std::runtime_error("not a small exact expression") {}
};

void require(bool condition) {
  if (!condition) throw Unreadable();
}

Wide multiply(Wide a, Wide b) {
  Wide out = 0;
  require(!__builtin_mul_overflow(a, b, &out));
  return out;
}

Wide gcd(Wide a, Wide b) {
  a = a < 0 ? -a : a;
  b = b < 0 ? -b : b;
  while (b != 0) a = std::exchange(b, a % b);
  return a;
}

/// A reduced fraction with a positive denominator.
struct Rational {
  Wide top = 0, bottom = 1;

  static Rational of(Wide top, Wide bottom) {
    require(bottom != 0);
    const Wide common = gcd(top, bottom);
    const Wide sign = bottom < 0 ? -1 : 1;
    return {sign * top / common, sign * bottom / common};
  }
  Rational times(const Rational& o) const {
    return of(multiply(top, o.top), multiply(bottom, o.bottom));
  }
  Rational plus(const Rational& o) const {
    Wide sum = 0;
    require(!__builtin_add_overflow(multiply(top, o.bottom), multiply(o.top, bottom), &sum));
    return of(sum, multiply(bottom, o.bottom));
  }
  bool operator==(const Rational&) const = default;
};

/// sqrt(radicand) times powers of symbols; the radicand is square-free.
struct Monomial {
  Wide radicand = 1;
  std::map<std::string, int> powers;
  auto key() const { return std::tie(radicand, powers); }
  bool operator<(const Monomial& o) const { return key() < o.key(); }
  bool operator==(const Monomial& o) const { return key() == o.key(); }
};

using Value = std::map<Monomial, Rational>;  // no zero coefficients

/// n = square * rest with rest square-free: {root of square, rest}.
std::pair<Wide, Wide> take_squares(Wide n) {
  require(n > 0 && n <= Wide{1'000'000'000'000});
  Wide root = 1;
  for (Wide p = 2; p * p <= n; ++p) {
    while (n % (p * p) == 0) {
      n /= p * p;
      root *= p;
    }
  }
  return {root, n};
}

void add_term(Value& value, const Monomial& monomial, const Rational& coefficient) {
  Rational& sum = value[monomial];
  sum = sum.plus(coefficient);
  if (sum.top == 0) value.erase(monomial);
  require(value.size() <= 200);
}

Value add(Value a, const Value& b, Wide sign) {
  for (const auto& [monomial, coefficient] : b) {
    add_term(a, monomial, coefficient.times({sign, 1}));
  }
  return a;
}

Value times(const Value& a, const Value& b) {
  Value out;
  for (const auto& [ma, ca] : a) {
    for (const auto& [mb, cb] : b) {
      Monomial m = ma;
      for (const auto& [symbol, power] : mb.powers) {
        if ((m.powers[symbol] += power) == 0) m.powers.erase(symbol);
      }
      const auto [root, rest] = take_squares(multiply(ma.radicand, mb.radicand));
      m.radicand = rest;
      add_term(out, m, ca.times(cb).times({root, 1}));
    }
  }
  return out;
}

Value number(const Rational& r) {
  Value value;
  add_term(value, {}, r);
  return value;
}

Value symbol(const std::string& name) {
  Value value;
  add_term(value, {1, {{name, 1}}}, {1, 1});
  return value;
}

/// 1 / value for a single term: 1 / (c sqrt(n) s) = sqrt(n) / (c n s).
Value inverse(const Value& value) {
  require(value.size() == 1);
  const auto& [monomial, coefficient] = *value.begin();
  Monomial m{monomial.radicand, {}};
  for (const auto& [name, power] : monomial.powers) m.powers[name] = -power;
  Value out;
  add_term(out, m, Rational::of(coefficient.bottom, multiply(coefficient.top, monomial.radicand)));
  return out;
}

std::optional<Rational> constant(const Value& value) {
  if (value.empty()) return Rational{};
  if (value.size() != 1 || !(value.begin()->first == Monomial{})) return std::nullopt;
  return value.begin()->second;
}

Value power(const Value& base, const Value& exponent) {
  const std::optional<Rational> e = constant(exponent);
  require(e && e->bottom == 1 && e->top >= -16 && e->top <= 16);
  Value out = number({1, 1});
  const Value factor = e->top < 0 ? inverse(base) : base;
  for (Wide i = 0; i < (e->top < 0 ? -e->top : e->top); ++i) out = times(out, factor);
  return out;
}

/// The `degree`-th root of a constant: squares leave the root; other roots must come out exact.
Value root(const Value& value, int degree) {
  const std::optional<Rational> c = constant(value);
  require(c.has_value() && degree >= 2 && degree <= 16 && c->top >= 0);
  if (c->top == 0) return {};
  if (degree == 2) {
    const auto [outside, rest] = take_squares(multiply(c->top, c->bottom));
    Value out;
    add_term(out, {rest, {}}, Rational::of(outside, c->bottom));
    return out;
  }
  const auto exact = [&](Wide n) {
    for (Wide r = 1; r <= 1000; ++r) {
      Wide p = 1;
      for (int i = 0; i < degree && p <= n; ++i) p *= r;
      if (p == n) return r;
      require(p < n);
    }
    throw Unreadable();
  };
  return number(Rational::of(exact(c->top), exact(c->bottom)));
}

class Parser {
 public:
  explicit Parser(string_view text) : text_(text) { require(text.size() <= 2000); }
  Value whole() {
    Value value = sum();
    require(at_ == text_.size());
    return value;
  }

 private:
  bool next_is(string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(string_view word) {
    if (!next_is(word)) return false;
    at_ += word.size();
    return true;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool digit_next() const {
    const char c = peek();
    return c >= '0' && c <= '9';
  }

  Value sum() {
    require(++depth_ <= 32);
    Wide sign = 1;
    if (take("-"))
      sign = -1;
    else
      take("+");
    Value value = add({}, product(), sign);
    while (peek() == '+' || peek() == '-') {
      const Wide s = take("-") ? -1 : (take("+"), 1);
      value = add(value, product(), s);
    }
    --depth_;
    return value;
  }

  bool factor_next() const {
    const char c = peek();
    return digit_next() || c == '.' || c == '(' || c == '{' || next_is("\\frac") ||
           next_is("\\sqrt") || next_is("\\pi") || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z') || (c == ' ' && at_ + 1 < text_.size());
  }

  Value product() {
    Value value = factor();
    while (true) {
      if (take("*")) {
        value = times(value, signed_factor());
      } else if (take("/")) {
        value = times(value, inverse(signed_factor()));
      } else if (factor_next()) {
        value = times(value, factor());
      } else {
        return value;
      }
    }
  }

  Value signed_factor() { return take("-") ? add({}, factor(), -1) : factor(); }

  Value factor() {
    Value base = atom();
    if (!take("^")) return base;
    return power(base, group("{", "}"));
  }

  Value group(string_view open, string_view close) {
    require(take(open));
    Value value = sum();
    require(take(close));
    return value;
  }

  Value atom() {
    take(" ");
    if (digit_next() || peek() == '.') return mixed_number();
    if (peek() == '(') return group("(", ")");
    if (peek() == '{') return group("{", "}");
    if (take("\\frac")) {
      const Value top = group("{", "}");
      return times(top, inverse(group("{", "}")));
    }
    if (next_is("\\sqrt") || next_is("sqrt")) return square_root();
    if (take("\\pi") || take("pi")) return symbol("pi");
    const char c = peek();
    require((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
    ++at_;
    return symbol(std::string(1, c));
  }

  Value square_root() {
    take("\\");
    take("sqrt");
    int degree = 2;
    if (take("[")) {
      require(digit_next());
      degree = 0;
      while (digit_next() && degree < 100) degree = degree * 10 + (text_[at_++] - '0');
      require(take("]"));
    }
    return root(peek() == '(' ? group("(", ")") : group("{", "}"), degree);
  }

  Wide digits(int* count) {
    Wide value = 0;
    for (; digit_next(); ++at_, ++*count) {
      require(*count < 36);
      value = value * 10 + (text_[at_] - '0');
    }
    return value;
  }

  /// "137\frac{1}{2}" and "3 1/2" are sums, as in print.
  Value mixed_number() {
    int whole_digits = 0, places = 0;
    Wide value = digits(&whole_digits);
    Wide scale = 1;
    if (take(".")) {
      const Wide fraction = digits(&places);
      for (int i = 0; i < places; ++i) scale = multiply(scale, 10);
      value = multiply(value, scale) + fraction;
    }
    require(whole_digits + places > 0);
    Value out = number(Rational::of(value, scale));
    const size_t before = at_;
    if (places == 0 && next_is("\\frac{")) {
      at_ += 5;
      const std::optional<Rational> top = constant(group("{", "}"));
      const std::optional<Rational> bottom = constant(group("{", "}"));
      if (top && bottom && bottom->top != 0) {
        return add(out, number(top->times(Rational::of(bottom->bottom, bottom->top))), 1);
      }
      at_ = before;
    } else if (places == 0 && take(" ")) {
      int count = 0;
      const Wide top = digits(&count);
      require(count > 0 && take("/"));
      const Wide bottom = digits(&(count = 0));
      return add(out, number(Rational::of(top, bottom)), 1);
    }
    return out;
  }

  string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

bool same_value(string_view a, string_view b) {
  try {
    return Parser(a).whole() == Parser(b).whole();
  } catch (const Unreadable&) {
    return false;
  }
}

}  // namespace cbench
