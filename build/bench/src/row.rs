//! One line of the table, and how repeated measurements become one number.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// One number.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    against: Option<(&'static str, f64)>,
}

impl Row {
    /// A number that stands for itself.
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Row {
        Row { name: name.into(), value, unit, against: None }
    }

    /// Compared with something: `ratio` of 1 is as costly, less is cheaper.
    pub(crate) fn against(mut self, what: &'static str, ratio: f64) -> Row {
        self.against = Some((what, ratio));
        self
    }

    pub(crate) fn json(&self) -> Value {
        let (against, ratio) = self.against.unzip();
        json!({ "name": self.name, "value": self.value, "unit": self.unit,
            "against": against, "ratio": ratio })
    }
}

/// The shortest of some runs: what the machine can do when nothing else disturbs it.
pub(crate) fn best(runs: usize, mut run: impl FnMut() -> Duration) -> Duration {
    (0..runs).map(|_| run()).min().unwrap_or_default()
}

/// How long a function takes.
pub(crate) fn timed(f: impl FnOnce()) -> Duration {
    let began = Instant::now();
    f();
    began.elapsed()
}

/// The middle and the 99th percentile.
pub(crate) fn spread(mut samples: Vec<Duration>) -> (Duration, Duration) {
    samples.sort_unstable();
    let at = |share: f64| {
        let index = (samples.len() as f64 * share) as usize;
        samples.get(index.min(samples.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    (at(0.5), at(0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_samples_is_their_middle_and_their_worst_hundredth() {
        let samples = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(spread(samples), (Duration::from_millis(51), Duration::from_millis(100)));
        assert_eq!(spread(Vec::new()), (Duration::ZERO, Duration::ZERO));
    }
}
