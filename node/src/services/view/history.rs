//! How memory and volumes went in the last hour, for charts. Pure: it is told the time.
//!
//! Owner: `node-view`. Invariant: at most [`POINTS`] points each, for what still exists. Must not know: how
//! they are drawn.
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dashboard::{NodeView, UsePoint, VolumesView};
use jiff::Timestamp;

/// Time between two points.
const EVERY: Duration = Duration::from_secs(30);

/// Points kept: an hour.
const POINTS: usize = 120;

/// What is remembered.
#[derive(Debug, Default)]
pub(crate) struct History {
    newest: Option<Duration>,
    memory: VecDeque<UsePoint>,
    volumes: HashMap<String, VecDeque<UsePoint>>,
}

impl History {
    /// Takes a point if it is time for one, and puts what is remembered into the views. `uptime` decides,
    /// since the wall clock may jump; `at` is what is shown.
    pub(crate) fn note(
        &mut self,
        uptime: Duration,
        at: Timestamp,
        node: &mut NodeView,
        volumes: &mut VolumesView,
    ) {
        if self.newest.is_none_or(|newest| uptime.saturating_sub(newest) >= EVERY) {
            self.newest = Some(uptime);
            let used = node.memory.total_bytes.saturating_sub(node.memory.available_bytes);
            push(&mut self.memory, UsePoint { at, used_bytes: used });
            self.volumes.retain(|id, _| volumes.volumes.iter().any(|v| v.id == *id));
            for volume in &volumes.volumes {
                let points = self.volumes.entry(volume.id.clone()).or_default();
                push(points, UsePoint { at, used_bytes: volume.used_bytes });
            }
        }
        node.memory_history = self.memory.iter().copied().collect();
        for volume in &mut volumes.volumes {
            let points = self.volumes.get(&volume.id);
            volume.history = points.map(|p| p.iter().copied().collect()).unwrap_or_default();
        }
    }
}

fn push(points: &mut VecDeque<UsePoint>, point: UsePoint) {
    if points.len() == POINTS {
        points.pop_front();
    }
    points.push_back(point);
}

#[cfg(test)]
mod tests {
    use dashboard::VolumeView;

    use super::*;

    fn volumes(used: &[(&str, u64)]) -> VolumesView {
        let volume = |(id, used_bytes): &(&str, u64)| VolumeView {
            id: (*id).to_owned(),
            used_bytes: *used_bytes,
            ..VolumeView::default()
        };
        VolumesView { volumes: used.iter().map(volume).collect(), ..VolumesView::default() }
    }

    #[test]
    fn a_point_is_taken_twice_a_minute_and_an_hour_is_kept() {
        let mut history = History::default();
        for second in (0..3 * 3600).step_by(5) {
            let mut node = NodeView::default();
            node.memory.total_bytes = 10_000 + second;
            let mut view = volumes(&[("a", second)]);
            let at = Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
            history.note(Duration::from_secs(second), at, &mut node, &mut view);
            let expected = usize::try_from(second / 30 + 1).unwrap().min(POINTS);
            assert_eq!(node.memory_history.len(), expected);
            assert_eq!(view.volumes[0].history.len(), expected);
            assert_eq!(view.volumes[0].history.last().unwrap().used_bytes, second / 30 * 30);
        }
    }

    #[test]
    fn what_is_gone_is_forgotten_and_what_is_new_begins() {
        let mut history = History::default();
        let mut note = |second: u64, mut view: VolumesView| {
            let (uptime, at) = (Duration::from_secs(second), Timestamp::UNIX_EPOCH);
            history.note(uptime, at, &mut NodeView::default(), &mut view);
            view.volumes.iter().map(|v| v.history.len()).collect::<Vec<_>>()
        };
        assert_eq!(note(0, volumes(&[("a", 1)])), [1]);
        // New since the last point: no history yet.
        assert_eq!(note(5, volumes(&[("a", 1), ("b", 2)])), [1, 0]);
        assert_eq!(note(30, volumes(&[("b", 2)])), [1]);
        assert_eq!(note(60, volumes(&[("a", 1), ("b", 2)])), [1, 2]);
    }
}
