//! From bytes to entries: the output of a child, line by line (rules L9, P1).
//!
//! One sink per stream, so that stdout and stderr never mix inside a line. Memory is bounded by the
//! longest line kept; the rest of a longer line is counted and dropped.

use std::io;

use crate::parse::{self, Format};
use crate::{Dn, LogTree, Record, time};

/// Longest raw line in bytes.
pub const MAX_RAW_BYTES: usize = 4 << 10;
/// Longest line of a parsed format in bytes.
pub const MAX_PARSED_BYTES: usize = 16 << 10;

/// Takes bytes, makes entries of lines. An unfinished line is kept until its newline, or until the
/// sink is dropped.
#[derive(Debug)]
pub struct LineSink {
    tree: LogTree,
    dn: Dn,
    format: Format,
    line: Vec<u8>,
    /// Bytes of the present line, dropped ones included.
    seen: usize,
    last: String,
}

impl LineSink {
    pub(crate) fn new(tree: LogTree, dn: Dn, format: Format) -> LineSink {
        LineSink { tree, dn, format, line: Vec::new(), seen: 0, last: String::new() }
    }

    /// The last line that was not empty, at most 512 bytes: for the text of a death.
    pub fn last_line(&self) -> &str {
        &self.last
    }

    /// Takes bytes; never blocks, never fails.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(at) = bytes.iter().position(|b| *b == b'\n') {
            self.keep(&bytes[..at]);
            self.end_line();
            bytes = &bytes[at + 1..];
        }
        self.keep(bytes);
    }

    /// Ends an unfinished line, as at the end of the stream.
    pub fn finish(&mut self) {
        if self.seen > 0 {
            self.end_line();
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let limit = match self.format {
            Format::Raw => MAX_RAW_BYTES,
            Format::Klog | Format::Json | Format::Logfmt | Format::Auto => MAX_PARSED_BYTES,
        };
        self.seen += bytes.len();
        let room = limit.saturating_sub(self.line.len()).min(bytes.len());
        self.line.extend_from_slice(&bytes[..room]);
    }

    fn end_line(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\r');
        if text.is_empty() {
            // An empty line says nothing; children print them as decoration.
            self.line = reuse(line);
            return;
        }
        self.last = text[..text.floor_char_boundary(512)].to_owned();
        let dropped = seen - line.len();
        let parsed = parse::line(self.format, text, time::now_ns());
        match parsed {
            Some(record) => {
                let len = record.message.len() + dropped;
                self.tree.append_cut(&self.dn, record, len, None);
            }
            None => {
                let kept = &text[..text.floor_char_boundary(MAX_RAW_BYTES)];
                let whole = text.len() + dropped;
                let named = !matches!(self.format, Format::Raw | Format::Auto);
                let unparsed = named.then_some(self.format);
                self.tree.append_cut(&self.dn, Record::raw(kept), whole, unparsed);
            }
        }
        self.line = reuse(line);
    }
}

/// The buffer again, unless one long line made it large.
fn reuse(mut line: Vec<u8>) -> Vec<u8> {
    line.clear();
    if line.capacity() > MAX_RAW_BYTES { Vec::new() } else { line }
}

impl io::Write for LineSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LineSink {
    fn drop(&mut self) {
        self.finish();
    }
}
