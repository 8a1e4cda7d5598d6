//! From slog into the log: one drain per DN (rule L1).

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use slog::{Drain, KV, Never, OwnedKVList};

use crate::tree::passes;
use crate::{Dn, Level, LogTree, Record};

/// A colon and the digits of most line numbers.
const LINE_DIGITS: usize = 5;

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
        // slog hands out the innermost and last pair first. A value whose formatting fails is left
        // out; the record is not.
        let mut fields = Fields::default();
        let _ = record.kv().serialize(record, &mut fields);
        fields.0.reverse();
        let own = fields.0.len();
        let _ = values.serialize(record, &mut fields);
        fields.0[own..].reverse();
        let file = record.file().rsplit('/').next().unwrap_or("");
        let mut source = String::with_capacity(file.len() + LINE_DIGITS);
        let _ = write!(source, "{file}:{}", record.line());
        let record = Record {
            level: Some(level),
            wall_ns: None,
            source: Some(source),
            message: record.msg().to_string(),
            fields: fields.0,
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
