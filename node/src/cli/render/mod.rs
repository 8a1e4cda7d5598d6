//! What commands print, as pure functions from what the node said to text.
//!
//! Invariants: foreign text cannot drive the terminal (rule L4); without colour and width the text is the
//! same on every machine. Must not know: where data comes from, terminals.
mod crash;
mod lists;
mod table;
mod tree;

pub use crash::crash;
pub use lists::{health, node, top, volumes};
pub use tree::tree;

use dashboard::text;
use jiff::Timestamp;

use self::table::Colour;

/// How text is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Columns of the terminal; none: lines are as long as they are.
    pub width: Option<usize>,
    /// Whether colours are wanted.
    pub colour: bool,
    /// Now, as the node has it.
    pub now: Timestamp,
}

impl Style {
    fn paint(&self, colour: Colour, text: &str) -> String {
        match (self.colour, colour.code()) {
            (true, Some(code)) => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }

    fn age(&self, then: Option<Timestamp>) -> String {
        then.map_or_else(|| "-".to_owned(), |t| text::span(text::seconds_between(t, self.now)))
    }

    fn until(&self, then: Timestamp) -> String {
        match text::seconds_between(self.now, then) {
            ..=0 => "now".to_owned(),
            s => format!("in {}", text::span(s)),
        }
    }
}

/// A log line in the colour of its level; entries keep their own lines.
pub fn log_line(style: &Style, level: Option<logtree::Level>, text: &str) -> String {
    let colour = match level {
        Some(logtree::Level::Critical | logtree::Level::Error) => Colour::Red,
        Some(logtree::Level::Warning) => Colour::Yellow,
        _ => return text.to_owned(),
    };
    text.lines().map(|l| style.paint(colour, l) + "\n").collect()
}

#[cfg(test)]
mod tests;
