//! Civil dates in UTC, without tables or locks.
//!
//! Pure. The days-to-date rule is Howard Hinnant's for the proleptic Gregorian calendar.

/// A date and time in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    pub(crate) month: u32,
    pub(crate) day: u32,
    pub(crate) hour: u32,
    pub(crate) minute: u32,
    pub(crate) second: u32,
    pub(crate) nanos: u32,
}

const NS: i64 = 1_000_000_000;
const DAY_S: i64 = 86_400;

/// Days since 1970-01-01.
fn days_of(year: i64, month: u32, day: u32) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let month = i64::from(month);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn date_of(days: i64) -> (i64, u32, u32) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = (doy - (153 * mp + 2) / 5 + 1) as u32;
    let month = (if mp < 10 { mp + 3 } else { mp - 9 }) as u32;
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

impl Civil {
    pub(crate) fn from_ns(ns: i64) -> Civil {
        let seconds = ns.div_euclid(NS);
        let (year, month, day) = date_of(seconds.div_euclid(DAY_S));
        let rest = seconds.rem_euclid(DAY_S) as u32;
        Civil {
            year,
            month,
            day,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
            nanos: ns.rem_euclid(NS) as u32,
        }
    }

    /// Nanoseconds since 1970, if the date exists and an i64 can hold it.
    pub(crate) fn to_ns(self) -> Option<i64> {
        let in_range = (1..=12).contains(&self.month)
            && self.day >= 1
            && self.hour < 24
            && self.minute < 60
            && self.second <= 60
            && i64::from(self.nanos) < NS;
        if !in_range {
            return None;
        }
        let days = days_of(self.year, self.month, self.day);
        if date_of(days) != (self.year, self.month, self.day) {
            return None;
        }
        let of_day = i64::from(self.hour * 3600 + self.minute * 60 + self.second);
        let seconds = days.checked_mul(DAY_S)?.checked_add(of_day)?;
        seconds.checked_mul(NS)?.checked_add(i64::from(self.nanos))
    }
}

/// `1970-01-01T00:00:00.000000000Z`, always with nine digits of fraction.
pub fn rfc3339(ns: i64) -> String {
    let c = Civil::from_ns(ns);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z",
        c.year, c.month, c.day, c.hour, c.minute, c.second, c.nanos
    )
}

/// Nanoseconds since 1970, now.
pub(crate) fn now_ns() -> i64 {
    match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        Ok(d) => i64::try_from(d.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_nanos()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_moments_are_printed_right() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(rfc3339(951_782_400 * NS), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(rfc3339(4_102_444_800 * NS), "2100-01-01T00:00:00.000000000Z");
    }

    proptest! {
        #[test]
        fn from_and_to_nanoseconds_are_inverse(ns in any::<i64>()) {
            prop_assert_eq!(Civil::from_ns(ns).to_ns(), Some(ns));
        }
    }
}
