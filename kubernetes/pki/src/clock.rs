//! How long certificates live, also on a machine whose clock is wrong (pure).
//!
//! A board without a battery starts in 1970. Certificates of the right validity would then be
//! refused by every peer on the same machine, and certificates of 1970 would be over as soon as
//! the clock is set. So while the clock is before [`CLOCK_FLOOR`] certificates are *provisional*:
//! valid from 1970 on and without an end (RFC 5280, 4.1.2.5), and the first check under a good
//! clock replaces them.

/// 2020-01-01T00:00:00Z. No machine that runs this program lives before it.
pub const CLOCK_FLOOR: i64 = 1_577_836_800;
/// 9999-12-31T23:59:59Z, which RFC 5280 (4.1.2.5) reads as "no well-defined end".
pub const NO_END: i64 = 253_402_300_799;
/// One day in seconds.
pub const DAY: i64 = 86_400;
/// How far a certificate reaches into the past, so that a clock that steps back a little between
/// two boots does not make it "not yet valid".
pub const BACKDATE: i64 = DAY;

/// Which of the two lifetimes a certificate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// An authority: ten years, renewed (with the same key) in its last three.
    Authority,
    /// A leaf: one year, renewed in its last four months. Both bounds keep every leaf's end
    /// before that of its authority.
    Leaf,
}

impl Lifetime {
    /// Seconds from issue to end.
    pub fn length(self) -> i64 {
        match self {
            Lifetime::Authority => 3650 * DAY,
            Lifetime::Leaf => 365 * DAY,
        }
    }

    /// With less than this many seconds left the certificate is issued anew.
    pub fn renew_before_end(self) -> i64 {
        match self {
            Lifetime::Authority => 3 * 365 * DAY,
            Lifetime::Leaf => 120 * DAY,
        }
    }
}

/// First and last second of a certificate's life, as Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First valid second.
    pub not_before: i64,
    /// Last valid second.
    pub not_after: i64,
}

impl Validity {
    /// The validity of a certificate that is issued now.
    pub fn from_now(now: i64, lifetime: Lifetime) -> Validity {
        if now < CLOCK_FLOOR {
            return Validity { not_before: 0, not_after: NO_END };
        }
        Validity { not_before: now - BACKDATE, not_after: now + lifetime.length() }
    }

    /// True for a certificate that was issued while the clock was wrong.
    pub fn is_provisional(&self) -> bool {
        self.not_after >= NO_END
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_before_2020_gives_a_certificate_without_an_end() {
        let v = Validity::from_now(12_345, Lifetime::Leaf);
        assert_eq!(v, Validity { not_before: 0, not_after: NO_END });
        assert!(v.is_provisional());
    }

    #[test]
    fn a_leaf_always_ends_before_its_authority() {
        let worst_left = Lifetime::Authority.renew_before_end();
        assert!(worst_left > Lifetime::Leaf.length());
    }

    #[test]
    fn the_first_good_second_gives_a_bounded_life() {
        let v = Validity::from_now(CLOCK_FLOOR, Lifetime::Leaf);
        assert_eq!(v.not_before, CLOCK_FLOOR - DAY);
        assert_eq!(v.not_after, CLOCK_FLOOR + 365 * DAY);
        assert!(!v.is_provisional());
    }
}
