//! How long a dead Runnable waits before it is started again (rule T8).
//!
//! Pure: the only randomness is a seeded generator that belongs to the tree.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Backoff;

/// splitmix64: small, seedable, good enough to keep restarts apart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Any 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        // 53 bits are what an f64 holds exactly.
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `min(first × factor^(n−1), max) × uniform[0.5, 1.5)` for the n-th failure in a row.
pub(crate) fn delay(policy: &Backoff, failures: u32, rng: &mut Rng) -> Duration {
    let exponent = f64::from(failures.saturating_sub(1));
    let plain = policy.first.as_secs_f64() * policy.factor.max(1.0).powf(exponent);
    // `min` also takes care of the infinity that a large exponent gives.
    let capped = plain.min(policy.max.as_secs_f64());
    Duration::from_secs_f64(capped * (0.5 + rng.unit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_the_delay_grows_to_the_maximum_and_stays_there_for_ever() {
        let policy = Backoff::default();
        let mut rng = Rng::new(1);
        for n in [1u32, 2, 5, 12, 13, 100, u32::MAX] {
            let plain = (0.5 * 1.5f64.powf(f64::from(n - 1))).min(60.0);
            for _ in 0..100 {
                let d = delay(&policy, n, &mut rng).as_secs_f64();
                assert!((plain * 0.5..plain * 1.5).contains(&d), "n={n} d={d}");
            }
        }
    }

    #[test]
    fn t8_the_jitter_uses_its_whole_range() {
        let mut rng = Rng::new(7);
        let draws: Vec<f64> = (0..1000).map(|_| rng.unit()).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        assert!(draws.iter().any(|u| *u < 0.05) && draws.iter().any(|u| *u > 0.95));
    }
}
