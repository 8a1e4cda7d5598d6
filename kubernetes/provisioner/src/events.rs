//! Events on claims and volumes (B4): written once, counted after, never in the way of the work.
//!
//! Purpose: tell the user on the object itself what happens, in the words of the field.
//! Owner: [`EventSink`] belongs to the controller; one task runs [`EventSink::write`].
//! Invariants: [`Book`] is pure (times come in); equal events are one object whose count is patched at most
//! once a minute; an object gets at most 25 writes at once and then one per 5 minutes; the queue holds 1000
//! records and drops the oldest; workers never wait for it. Events are core/v1: upstream's rights cover no others.
//! It must not know: why something happened.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{api::ApiCalls, metrics::Metrics};

/// Shortest time between two count patches of one event.
const PATCH_EVERY: Duration = Duration::from_secs(60);
/// Writes an object may cause at once.
const BURST: f64 = 25.0;
/// After the burst, one write per this time.
const REFILL: Duration = Duration::from_secs(300);
/// Records that wait for the writer.
const QUEUE: usize = 1000;
/// An event nobody repeated for so long is forgotten here; the API server forgets it after an hour too.
const KEEP: Duration = Duration::from_secs(3600);
/// Longest message: what clients of the field cut to.
const MESSAGE_MAX: usize = 1024;

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// The object.
    pub(crate) object: ObjectReference,
    /// Warning or Normal.
    pub(crate) warning: bool,
    /// One of the reasons in section 5 of the specification.
    pub(crate) reason: &'static str,
    /// The sentence.
    pub(crate) message: String,
}

/// What makes two events equal.
type Key = (String, &'static str, String);

#[derive(Debug)]
struct Entry {
    namespace: String,
    name: String,
    count: i32,
    written: i32,
    written_at: Duration,
    seen_at: Duration,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Duration,
}

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    /// A new event, under this number.
    Create(Box<Record>, u64),
    /// A new count of one written before.
    Count {
        /// Where.
        namespace: String,
        /// Which.
        name: String,
        /// How often by now.
        count: i32,
    },
}

/// Decides which events are written, and when.
#[derive(Debug, Default)]
pub(crate) struct Book {
    entries: HashMap<Key, Entry>,
    buckets: HashMap<String, Bucket>,
    due: BTreeMap<(Duration, u64), Key>,
    number: u64,
}

impl Book {
    /// Takes note of a record; `name` makes the name of an event of its number.
    pub(crate) fn observe(
        &mut self,
        now: Duration,
        record: Record,
        name: impl Fn(u64) -> String,
    ) -> Option<Write> {
        let object = object_key(&record.object);
        let key = (object.clone(), record.reason, record.message.clone());
        if let Some(entry) = self.entries.get_mut(&key) {
            let counted = entry.count == entry.written;
            entry.count = entry.count.saturating_add(1);
            entry.seen_at = now;
            if counted {
                // One timer per event: the first repetition after a write sets it.
                self.number += 1;
                self.due.insert(((entry.written_at + PATCH_EVERY).max(now), self.number), key);
            }
            return None;
        }
        self.prune(now);
        if !self.allow(&object, now) {
            return None;
        }
        self.number += 1;
        let number = self.number;
        let entry = Entry {
            namespace: namespace_of(&record.object),
            name: name(number),
            count: 1,
            written: 1,
            written_at: now,
            seen_at: now,
        };
        self.entries.insert(key, entry);
        Some(Write::Create(Box::new(record), number))
    }

    /// Counts whose time has come.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<Write> {
        let mut writes = Vec::new();
        while let Some((at, _)) = self.due.first_key_value().map(|(k, _)| *k) {
            if at > now {
                break;
            }
            let Some((_, key)) = self.due.pop_first() else { break };
            if !self.allow(&key.0, now) {
                self.number += 1;
                self.due.insert((now + REFILL, self.number), key);
                continue;
            }
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.written = entry.count;
                entry.written_at = now;
                writes.push(Write::Count {
                    namespace: entry.namespace.clone(),
                    name: entry.name.clone(),
                    count: entry.count,
                });
            }
        }
        writes
    }

    /// When [`Book::due`] has something next.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// The event of that name is no longer there (or was never stored): the next equal one is new.
    pub(crate) fn lost(&mut self, name: &str) {
        self.entries.retain(|_, e| e.name != name);
    }

    fn allow(&mut self, object: &str, now: Duration) -> bool {
        let bucket =
            self.buckets.entry(object.to_owned()).or_insert(Bucket { tokens: BURST, at: now });
        let refill = now.saturating_sub(bucket.at).as_secs_f64() / REFILL.as_secs_f64();
        bucket.tokens = (bucket.tokens + refill).min(BURST);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    fn prune(&mut self, now: Duration) {
        let old = |at: Duration| now.saturating_sub(at) > KEEP;
        self.entries.retain(|_, e| !old(e.seen_at) || e.count != e.written);
        // A bucket that is full again says no more than none.
        let full_after = REFILL.mul_f64(BURST);
        self.buckets.retain(|_, b| now.saturating_sub(b.at) < full_after);
    }
}

fn object_key(o: &ObjectReference) -> String {
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    format!("{}/{}/{}/{}", part(&o.kind), part(&o.namespace), part(&o.name), part(&o.uid))
}

/// Events on objects without a namespace live in `default`.
fn namespace_of(o: &ObjectReference) -> String {
    o.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned())
}

/// Takes records from workers and writes them in its own time.
pub(crate) struct EventSink {
    waiting: Mutex<VecDeque<Record>>,
    arrived: Notify,
    metrics: Metrics,
    component: String,
    host: String,
}

impl EventSink {
    /// A sink that writes as `component` on `host`.
    pub(crate) fn new(component: &str, host: &str, metrics: Metrics) -> EventSink {
        EventSink {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            metrics,
            component: component.to_owned(),
            host: host.to_owned(),
        }
    }

    /// Hands over a record; never waits.
    pub(crate) fn emit(&self, mut record: Record) {
        if record.message.len() > MESSAGE_MAX {
            let mut end = MESSAGE_MAX - 4;
            while !record.message.is_char_boundary(end) {
                end -= 1;
            }
            record.message.truncate(end);
            record.message.push_str(" ...");
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() >= QUEUE {
            waiting.pop_front();
            self.metrics.events_dropped.inc();
        }
        waiting.push_back(record);
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Writes for ever. Cancel safe up to the write under way.
    pub(crate) async fn write(&self, api: &ApiCalls, log: &slog::Logger) {
        let began = Instant::now();
        let mut book = Book::default();
        loop {
            let next = self.waiting.lock().pop_front();
            let writes: Vec<Write> = match next {
                Some(record) => {
                    let base = event_base(&record);
                    book.observe(began.elapsed(), record, |n| event_name(&base, n))
                        .into_iter()
                        .collect()
                }
                None => {
                    let arrived = self.arrived.notified();
                    match book.next_due() {
                        Some(at) => {
                            let _due_or_arrived =
                                tokio::time::timeout_at(began + at, arrived).await;
                        }
                        None => arrived.await,
                    }
                    book.due(began.elapsed())
                }
            };
            for write in writes {
                if let Err((name, e)) = self.put(api, &write, &book).await {
                    self.metrics.events_dropped.inc();
                    slog::debug!(log, "event not written"; "event" => &name, "error" => crate::api::chain(&e));
                    book.lost(&name);
                }
            }
        }
    }

    async fn put(
        &self,
        api: &ApiCalls,
        write: &Write,
        book: &Book,
    ) -> Result<(), (String, crate::api::ApiError)> {
        match write {
            Write::Create(record, number) => {
                let key = (object_key(&record.object), record.reason, record.message.clone());
                let name = book
                    .entries
                    .get(&key)
                    .map_or_else(|| event_name(&event_base(record), *number), |e| e.name.clone());
                let event = self.event(record, name.clone());
                api.create_event(&event).await.map_err(|e| (name, e))
            }
            Write::Count { namespace, name, count } => {
                api.count_event(namespace, name, *count).await.map_err(|e| (name.clone(), e))
            }
        }
    }

    fn event(&self, record: &Record, name: String) -> Event {
        let now = Time(k8s_openapi::jiff::Timestamp::now());
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace_of(&record.object)),
                ..ObjectMeta::default()
            },
            involved_object: record.object.clone(),
            type_: Some(if record.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(record.reason.to_owned()),
            message: Some(record.message.clone()),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: Some(self.host.clone()),
            }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        }
    }
}

fn event_base(record: &Record) -> String {
    record.object.name.clone().unwrap_or_default()
}

/// `<object>.<time and number in hex>`: unique across restarts, at most 253 bytes.
fn event_name(object: &str, number: u64) -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let short: String = object.chars().take(200).collect();
    format!("{short}.{nanos:x}{number:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn record(object: &str, message: &str) -> Record {
        Record {
            object: ObjectReference {
                name: Some(object.into()),
                namespace: Some("ns".into()),
                ..ObjectReference::default()
            },
            warning: true,
            reason: "ProvisioningFailed",
            message: message.into(),
        }
    }

    fn observe(b: &mut Book, at: u64, r: &Record) -> Option<Write> {
        b.observe(s(at), r.clone(), |n| format!("e{n}"))
    }

    #[test]
    fn b4_equal_events_are_one_object_with_a_count_per_minute() {
        let mut b = Book::default();
        let r = record("c", "no space");
        assert!(matches!(observe(&mut b, 0, &r), Some(Write::Create(..))));
        for at in 1..50 {
            assert_eq!(observe(&mut b, at, &r), None);
        }
        assert_eq!(b.next_due(), Some(s(60)));
        assert_eq!(b.due(s(59)), []);
        assert_eq!(
            b.due(s(60)),
            [Write::Count { namespace: "ns".into(), name: "e1".into(), count: 50 }]
        );
        assert_eq!(b.due(s(600)), [], "nothing new, nothing written");
    }

    #[test]
    fn b4_an_object_gets_twenty_five_writes_and_then_one_per_five_minutes() {
        let mut b = Book::default();
        let written = |b: &mut Book, at: u64, n: std::ops::Range<u32>| {
            n.filter(|i| observe(b, at, &record("c", &format!("m{i}"))).is_some()).count()
        };
        assert_eq!(written(&mut b, 0, 0..40), 25);
        assert_eq!(written(&mut b, 299, 40..50), 0);
        assert_eq!(written(&mut b, 300, 50..60), 1);
        assert!(observe(&mut b, 300, &record("d", "m")).is_some(), "another object has its own");
    }

    #[test]
    fn b4_an_event_the_server_forgot_is_written_anew() {
        let mut b = Book::default();
        let r = record("c", "m");
        observe(&mut b, 0, &r);
        b.lost("e1");
        assert!(matches!(observe(&mut b, 1, &r), Some(Write::Create(..))));
    }

    #[test]
    fn memory_is_bounded_by_an_hour_of_events() {
        let mut b = Book::default();
        for i in 0..1000 {
            observe(&mut b, 0, &record(&format!("c{i}"), "m"));
        }
        observe(&mut b, 10_000, &record("last", "m"));
        assert_eq!((b.entries.len(), b.buckets.len()), (1, 1));
    }

    #[test]
    fn b4_a_full_queue_drops_the_oldest_and_long_messages_are_cut_at_a_character() {
        let sink = EventSink::new("driver", "n1", Metrics::default());
        for i in 0..=QUEUE {
            sink.emit(record(&format!("c{i}"), "m"));
        }
        assert_eq!(sink.waiting.lock().len(), QUEUE);
        assert_eq!(
            sink.waiting.lock().front().and_then(|r| r.object.name.clone()).as_deref(),
            Some("c1")
        );
        assert_eq!(sink.metrics.events_dropped.get(), 1);
        sink.emit(record("long", &"é".repeat(2000)));
        let last = sink.waiting.lock().back().map(|r| r.message.clone()).unwrap();
        assert!(last.len() <= MESSAGE_MAX && last.ends_with("é ..."), "{}", last.len());
    }
}
