//! May an existing certificate stay? (pure)

use std::collections::BTreeSet;
use std::fmt;

use crate::clock::{CLOCK_FLOOR, Lifetime, Validity};
use crate::spec::{Identity, Usage};

/// What was read from a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Subject CN.
    pub common_name: String,
    /// Subject O, if any.
    pub group: Option<String>,
    /// Subject alternative names: DNS names and addresses.
    pub names: BTreeSet<String>,
    /// Extended key usages.
    pub usages: BTreeSet<Usage>,
    /// First and last second.
    pub validity: Validity,
    /// The key file holds the key of this certificate.
    pub key_matches: bool,
    /// The signature is that of our authority's key.
    pub signed_by_us: bool,
    /// It may sign others.
    pub is_authority: bool,
}

/// Why a certificate is issued (again).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// There is none yet.
    Missing,
    /// Certificate or key cannot be read as such.
    Unreadable,
    /// Certificate and key do not belong together.
    KeyMismatch,
    /// Signed by another authority's key.
    ForeignIssuer,
    /// User or group changed.
    SubjectChanged,
    /// Names or addresses changed.
    NamesChanged,
    /// Usages changed.
    UsagesChanged,
    /// Issued while the clock was wrong.
    Provisional,
    /// Begins in the future of this clock.
    NotYetValid,
    /// Near its end, or over.
    Ending,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Missing => "there was none",
            Reason::Unreadable => "certificate or key was unreadable",
            Reason::KeyMismatch => "certificate and key did not belong together",
            Reason::ForeignIssuer => "it was signed by another authority",
            Reason::SubjectChanged => "user or group changed",
            Reason::NamesChanged => "names or addresses changed",
            Reason::UsagesChanged => "usages changed",
            Reason::Provisional => "it was issued while the clock was wrong",
            Reason::NotYetValid => "it begins in the future of this clock",
            Reason::Ending => "it is near its end",
        })
    }
}

/// `None`: the leaf stays. Otherwise the first reason against it.
pub fn leaf(found: &Found, wanted: &Identity, now: i64) -> Option<Reason> {
    if !found.key_matches {
        return Some(Reason::KeyMismatch);
    }
    if !found.signed_by_us || found.is_authority {
        return Some(Reason::ForeignIssuer);
    }
    if found.common_name != wanted.common_name || found.group != wanted.group {
        return Some(Reason::SubjectChanged);
    }
    if found.names != wanted.names {
        return Some(Reason::NamesChanged);
    }
    if found.usages != wanted.usages {
        return Some(Reason::UsagesChanged);
    }
    validity(found.validity, Lifetime::Leaf, now)
}

/// `None`: the authority's certificate stays. Otherwise it is issued anew for the same key.
pub fn authority(found: &Found, now: i64) -> Option<Reason> {
    if !found.key_matches {
        return Some(Reason::KeyMismatch);
    }
    if !found.is_authority {
        return Some(Reason::UsagesChanged);
    }
    validity(found.validity, Lifetime::Authority, now)
}

fn validity(v: Validity, lifetime: Lifetime, now: i64) -> Option<Reason> {
    if now < v.not_before {
        return Some(Reason::NotYetValid);
    }
    if v.is_provisional() {
        return (now >= CLOCK_FLOOR).then_some(Reason::Provisional);
    }
    (v.not_after - now < lifetime.renew_before_end()).then_some(Reason::Ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{DAY, NO_END};
    use crate::spec::{Leaf, Request};

    const NOW: i64 = 1_800_000_000;

    fn wanted() -> Identity {
        Leaf::Apiserver.identity(&Request {
            node_name: "n".to_owned(),
            node_ip: [10, 0, 0, 1].into(),
            service_ip: [10, 96, 0, 1].into(),
        })
    }

    fn found() -> Found {
        let w = wanted();
        Found {
            common_name: w.common_name,
            group: w.group,
            names: w.names,
            usages: w.usages,
            validity: Validity::from_now(NOW, Lifetime::Leaf),
            key_matches: true,
            signed_by_us: true,
            is_authority: false,
        }
    }

    #[test]
    fn a_fresh_leaf_stays_until_a_third_of_its_life_is_left() {
        assert_eq!(leaf(&found(), &wanted(), NOW), None);
        assert_eq!(leaf(&found(), &wanted(), NOW + 245 * DAY), None);
        assert_eq!(leaf(&found(), &wanted(), NOW + 245 * DAY + 1), Some(Reason::Ending));
        assert_eq!(leaf(&found(), &wanted(), NOW + 4000 * DAY), Some(Reason::Ending));
    }

    #[test]
    fn every_difference_is_a_reason_of_its_own() {
        type Change = fn(&mut Found);
        let cases: [(Change, Reason); 7] = [
            (|f| f.key_matches = false, Reason::KeyMismatch),
            (|f| f.signed_by_us = false, Reason::ForeignIssuer),
            (|f| f.is_authority = true, Reason::ForeignIssuer),
            (|f| f.common_name.push('x'), Reason::SubjectChanged),
            (|f| f.group = Some("system:masters".to_owned()), Reason::SubjectChanged),
            (|f| f.names.extend(["evil.example".to_owned()]), Reason::NamesChanged),
            (|f| f.usages.extend([Usage::Client]), Reason::UsagesChanged),
        ];
        for (change, reason) in cases {
            let mut f = found();
            change(&mut f);
            assert_eq!(leaf(&f, &wanted(), NOW), Some(reason));
        }
    }

    #[test]
    fn a_provisional_leaf_stays_while_the_clock_is_wrong_and_goes_when_it_is_right() {
        let mut f = found();
        f.validity = Validity { not_before: 0, not_after: NO_END };
        assert_eq!(leaf(&f, &wanted(), 100), None);
        assert_eq!(leaf(&f, &wanted(), NOW), Some(Reason::Provisional));
    }

    #[test]
    fn a_clock_that_fell_back_makes_a_leaf_not_yet_valid() {
        assert_eq!(leaf(&found(), &wanted(), NOW - DAY), None);
        assert_eq!(leaf(&found(), &wanted(), NOW - DAY - 1), Some(Reason::NotYetValid));
        assert_eq!(leaf(&found(), &wanted(), 100), Some(Reason::NotYetValid));
    }

    #[test]
    fn an_authority_is_renewed_in_its_last_three_years() {
        let mut f = found();
        f.is_authority = true;
        f.validity = Validity::from_now(NOW, Lifetime::Authority);
        assert_eq!(authority(&f, NOW), None);
        assert_eq!(authority(&f, NOW + (3650 - 3 * 365) * DAY), None);
        assert_eq!(authority(&f, NOW + (3650 - 3 * 365) * DAY + 1), Some(Reason::Ending));
    }
}
