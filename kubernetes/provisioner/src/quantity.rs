//! Kubernetes quantities (`1.5Gi`, `100m`, `1e3`), exact.
//!
//! Purpose: read the size a claim asks for without ever rounding in the wrong direction, compare sizes
//! written in different formats, and print the canonical form.
//! Owner: everything that looks at `spec.resources` or `spec.capacity`.
//! Invariants: pure; no floating point; a value is a whole number of 10⁻⁹, finer input is rounded away
//! from zero (as apimachinery does); binary suffixes are capped at 2⁶³−1 (as apimachinery does); what does
//! not fit an `i128` of 10⁻⁹ is an error that tells its sign, never a wrapped number.
//! It must not know: claims, volumes, the API server.

use std::{cmp::Ordering, fmt, str::FromStr};

/// Nano units per whole unit: the finest step a quantity keeps.
const NANO: i128 = 1_000_000_000;
/// Digits of a fraction that are kept; what follows only decides the rounding. 24 digits times 2⁶⁰ fit an `i128`.
const FRACTION_DIGITS: usize = 24;
/// Longest accepted text. The API server accepts no longer ones that still are numbers of bytes.
const MAX_TEXT: usize = 512;

/// How a quantity was written, and so how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `100m`, `1`, `2k`, `3G`.
    DecimalSi,
    /// `1Ki`, `1.5Gi`.
    BinarySi,
    /// `1e3`.
    DecimalExponent,
}

/// An exact quantity.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not follow the grammar `<number><suffix>`.
    #[error("{0:?} is not a quantity: write a number with an optional suffix such as Mi or Gi")]
    Malformed(String),
    /// It follows the grammar but is beyond ±1.7 × 10²⁹.
    #[error("the quantity is {} any that can be stored", if *.negative { "below" } else { "above" })]
    OutOfRange {
        /// Whether the number is negative.
        negative: bool,
    },
}

/// What the suffix multiplies with.
enum Scale {
    Ten(i32),
    Two(u32),
}

impl Quantity {
    /// A whole number of bytes, printed with binary suffixes.
    pub fn from_bytes(bytes: u64) -> Quantity {
        Quantity { nano: i128::from(bytes) * NANO, format: Format::BinarySi }
    }

    /// The value in whole units, rounded away from zero.
    pub fn value(self) -> i128 {
        div_away(self.nano, NANO)
    }

    /// The value in whole units if it fits; fractions round away from zero.
    pub fn as_i64(self) -> Option<i64> {
        i64::try_from(self.value()).ok()
    }

    /// How it was written.
    pub fn format(self) -> Format {
        self.format
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        let malformed = || QuantityError::Malformed(text.chars().take(64).collect());
        if text.len() > MAX_TEXT {
            return Err(malformed());
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let whole_len = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = rest.split_at(whole_len);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(after) => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(malformed());
        }
        let (scale, format) = scale(suffix).ok_or_else(malformed)?;
        let nano = nano(whole, fraction, &scale).ok_or(QuantityError::OutOfRange { negative })?;
        let nano = if matches!(scale, Scale::Two(_)) {
            nano.min(i128::from(i64::MAX) * NANO)
        } else {
            nano
        };
        Ok(Quantity { nano: if negative { -nano } else { nano }, format })
    }
}

/// Reads a suffix. `E` alone is Exa; `E` followed by a number is an exponent.
fn scale(suffix: &str) -> Option<(Scale, Format)> {
    let decimal = |p| Some((Scale::Ten(p), Format::DecimalSi));
    let binary = |p| Some((Scale::Two(p), Format::BinarySi));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            // An exponent that does not fit is as far away as the sign says: nothing but zero survives it.
            let far = if exponent.starts_with('-') { -100_000 } else { 100_000 };
            Some((Scale::Ten(exponent.parse().unwrap_or(far)), Format::DecimalExponent))
        }
    }
}

/// `whole.fraction × scale` in 10⁻⁹, rounded up; `None` if it does not fit.
fn nano(whole: &str, fraction: &str, scale: &Scale) -> Option<i128> {
    let fraction = fraction.trim_end_matches('0');
    let kept = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let more = fraction.len() > kept.len();
    let whole = parse_digits(whole)?;
    let part = parse_digits(kept)?;
    if whole == 0 && part == 0 && !more {
        return Some(0);
    }
    let digits = i32::try_from(kept.len()).ok()?;
    let (whole, (part, rest)) = match *scale {
        Scale::Ten(p) => {
            let (w, w_rest) = mul_pow10(whole, p.checked_add(9)?)?;
            let (f, f_rest) = mul_pow10(part, p.checked_add(9)?.checked_sub(digits)?)?;
            // Both parts can lose digits only when the exponent is negative; one step up covers either.
            (w, (f, f_rest || w_rest))
        }
        Scale::Two(bits) => (
            whole.checked_mul(1 << bits)?.checked_mul(NANO)?,
            fraction_times_two(part, digits, bits)?,
        ),
    };
    let sum = whole.checked_add(part)?;
    if rest || more { sum.checked_add(1) } else { Some(sum) }
}

/// Decimal digits to a number; the empty text is 0.
fn parse_digits(digits: &str) -> Option<i128> {
    digits.bytes().try_fold(0_i128, |n, d| n.checked_mul(10)?.checked_add(i128::from(d - b'0')))
}

/// `n × 10^p`, whole part and whether anything was cut off.
fn mul_pow10(n: i128, p: i32) -> Option<(i128, bool)> {
    if n == 0 {
        return Some((0, false));
    }
    if p >= 0 {
        let factor = 10_i128.checked_pow(u32::try_from(p).ok()?)?;
        return Some((n.checked_mul(factor)?, false));
    }
    match 10_i128.checked_pow(p.unsigned_abs()) {
        Some(divisor) => Some((n / divisor, n % divisor != 0)),
        None => Some((0, true)),
    }
}

/// `0.part × 2^bits` in 10⁻⁹ where `part` has `digits` digits: the common factors of 2 and 5 are cancelled
/// first, so that 24 digits fit.
fn fraction_times_two(part: i128, digits: i32, bits: u32) -> Option<(i128, bool)> {
    let down = digits - 9;
    if down <= 0 {
        let factor = 10_i128.checked_pow(down.unsigned_abs())?;
        return Some((part.checked_mul(factor)?.checked_mul(1 << bits)?, false));
    }
    let down = u32::try_from(down).ok()?;
    let (twos, halves) = if bits >= down { (bits - down, 0) } else { (0, down - bits) };
    let numerator = part.checked_mul(1_i128.checked_shl(twos)?)?;
    let divisor = 5_i128.checked_pow(down)?.checked_mul(1_i128.checked_shl(halves)?)?;
    Some((numerator / divisor, numerator % divisor != 0))
}

/// Division that rounds away from zero.
fn div_away(n: i128, d: i128) -> i128 {
    let (q, r) = (n / d, n % d);
    if r == 0 { q } else { q + n.signum() }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

/// Canonical form: the largest suffix that needs no fraction.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        if self.nano == 0 {
            return f.write_str("0");
        }
        // A binary quantity under 1024 has no binary suffix to wear, and may have a fraction.
        if self.format == Format::BinarySi && self.nano.abs() >= 1024 * NANO {
            let mut n = self.value();
            let mut step = 0;
            while n % 1024 == 0 && step + 1 < BINARY.len() {
                n /= 1024;
                step += 1;
            }
            return write!(f, "{n}{}", BINARY[step]);
        }
        let mut n = self.nano;
        let mut step = 0_usize;
        let steps =
            if self.format == Format::DecimalExponent { usize::MAX } else { DECIMAL.len() - 1 };
        while n % 1000 == 0 && step < steps {
            n /= 1000;
            step += 1;
        }
        match (self.format, step) {
            (Format::DecimalExponent, 3) => write!(f, "{n}"),
            (Format::DecimalExponent, step) => {
                let exponent = i64::try_from(step).unwrap_or(i64::MAX) * 3 - 9;
                write!(f, "{n}e{exponent}")
            }
            (Format::DecimalSi | Format::BinarySi, step) => write!(f, "{n}{}", DECIMAL[step]),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn quantities_have_the_values_of_apimachinery() {
        let table: &[(&str, i128)] = &[
            ("0", 0),
            ("1", 1),
            ("-1", -1),
            ("+5", 5),
            ("100m", 1),
            ("-100m", -1),
            ("1n", 1),
            ("1.", 1),
            (".5", 1),
            ("1k", 1000),
            ("1Ki", 1024),
            ("64Mi", 64 << 20),
            ("1Gi", 1 << 30),
            ("1.5Gi", 1_610_612_736),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1e+3", 1000),
            ("1500e-3", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("8Ei", i64::MAX as i128),
            ("16Ei", i64::MAX as i128),
            ("9223372036854775807", i64::MAX as i128),
            ("9223372036854775808", i64::MAX as i128 + 1),
            ("1e28", 10_i128.pow(28)),
            ("0.0000000000001", 1),
            ("0.000000000000000000000000000000001Ki", 1),
            ("0.1Ki", 103),
            ("1e-100", 1),
            ("0e999999999999", 0),
        ];
        for (text, value) in table {
            assert_eq!(q(text).value(), *value, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_sixty_three_bits_has_no_i64() {
        assert_eq!(q("8Ei").as_i64(), Some(i64::MAX));
        assert_eq!(q("9223372036854775808").as_i64(), None);
    }

    #[test]
    fn text_outside_the_grammar_is_refused() {
        for bad in [
            "", " 1", "1 ", "1K", "1gi", "1KI", "Gi", ".", "-", "1e", "1e+", "0x10", "1_000",
            "1.5.2", "１", "∞",
        ] {
            assert!(matches!(bad.parse::<Quantity>(), Err(QuantityError::Malformed(_))), "{bad}");
        }
        assert!(matches!("9".repeat(600).parse::<Quantity>(), Err(QuantityError::Malformed(_))));
    }

    #[test]
    fn numbers_beyond_the_range_tell_their_sign() {
        assert_eq!("1e40".parse::<Quantity>(), Err(QuantityError::OutOfRange { negative: false }));
        assert_eq!("-1e40".parse::<Quantity>(), Err(QuantityError::OutOfRange { negative: true }));
        assert_eq!(
            "1e99999999999".parse::<Quantity>(),
            Err(QuantityError::OutOfRange { negative: false })
        );
    }

    #[test]
    fn the_canonical_form_uses_the_largest_suffix_without_a_fraction() {
        for (text, canonical) in [
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("1000e0", "1e3"),
            ("100m", "100m"),
            ("0.5Ki", "512"),
            ("0.5", "500m"),
            ("1Gi", "1Gi"),
            ("-2048Ki", "-2Mi"),
            ("0Gi", "0"),
        ] {
            assert_eq!(q(text).to_string(), canonical, "{text}");
        }
        assert_eq!(Quantity::from_bytes(64 << 20).to_string(), "64Mi");
    }

    #[test]
    fn order_goes_by_value_across_formats() {
        assert!(q("1G") < q("1Gi"));
        assert_eq!(q("1000m"), q("1"));
        assert!(q("1e3") > q("999"));
    }

    proptest! {
        #[test]
        fn the_canonical_form_reads_back_as_the_same_value(
            n in any::<i64>(),
            suffix in prop::sample::select(vec!["n", "u", "m", "", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "e3", "e-3"]),
        ) {
            if let Ok(a) = format!("{n}{suffix}").parse::<Quantity>() {
                let b: Quantity = a.to_string().parse().map_err(|e| TestCaseError::fail(format!("{a}: {e}")))?;
                // Binary printing rounds a fraction of a byte up, like apimachinery.
                if a.format() == Format::BinarySi && a.value().abs() >= 1024 {
                    prop_assert_eq!(a.value(), b.value());
                } else {
                    prop_assert_eq!(a, b);
                }
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn whole_numbers_are_exact(n in any::<i64>()) {
            prop_assert_eq!(n.to_string().parse::<Quantity>().map(Quantity::value), Ok(i128::from(n)));
        }
    }
}
