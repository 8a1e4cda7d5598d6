//! From slog into the log: one drain per DN (rule L1).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use slog::{Drain, KV, Never, OwnedKVList};

use crate::tree::passes;
use crate::{Dn, Level, LogTree, Record};

/// A drain bound to its DN.
#[derive(Debug)]
pub(crate) struct DnDrain {
    tree: LogTree,
    dn: Dn,
    level: Arc<AtomicU8>,
}

impl DnDrain {
    pub(crate) fn new(tree: LogTree, dn: Dn, level: Arc<AtomicU8>) -> DnDrain {
        DnDrain { tree, dn, level }
    }
}

impl Drain for DnDrain {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &slog::Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        let level = Level::from(record.level());
        if !passes(level, &self.level) {
            return Ok(());
        }
        // slog hands out the innermost and last pair first.
        let mut own = Fields::default();
        let mut inherited = Fields::default();
        // A value whose formatting fails is left out; the record is not.
        let _ = record.kv().serialize(record, &mut own);
        let _ = values.serialize(record, &mut inherited);
        let pairs = own.0.into_iter().rev().chain(inherited.0.into_iter().rev());
        let file = record.file().rsplit('/').next().unwrap_or("");
        let record = Record {
            level: Some(level),
            wall_ns: None,
            source: Some(format!("{file}:{}", record.line())),
            message: record.msg().to_string(),
            fields: pairs.collect(),
        };
        self.tree.append(&self.dn, record);
        Ok(())
    }

    fn is_enabled(&self, level: slog::Level) -> bool {
        passes(Level::from(level), &self.level)
    }
}

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl slog::Serializer for Fields {
    fn emit_arguments(&mut self, key: slog::Key, value: &fmt::Arguments<'_>) -> slog::Result {
        self.0.push((key.to_string(), value.to_string()));
        Ok(())
    }
}
